"""The options of Flink's JDBC connector and of Spark's JDBC source as those of the connector `sql`.

Every table passes its options through `from_jdbc`, wherever they were written: SQL, Python, TOML or `spark.read`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from lookupcache.errors import LookupAdvice, OptionError
from lookupcache.jdbc_url import (
    Parameter,
    database_of,
    from_parameters,
    is_jdbc,
    is_parameter,
    refuse_contradictions,
    split_url,
    with_parameters,
)
from lookupcache.secrets import is_reference

_RENAMED = {
    "dbtable": "table", "table-name": "table", "query": "query", "username": "user", "user": "user",
    "password": "password",
}  # fmt: skip
_NO_EFFECT = {
    "driver", "compatible-mode", "filter.handling.policy", "connection.max-retry-timeout", "fetchsize", "batchsize",
    "isolationlevel", "truncate", "cascadetruncate", "tablecomment", "createtableoptions", "createtablecolumntypes",
    "partitioncolumn", "lowerbound", "upperbound", "numpartitions", "pushdownpredicate", "pushdownaggregate",
    "pushdownlimit", "pushdownoffset", "pushdowntablesample", "pushdownjoin", "hint", "prefertimestampntz",
    "prefertimestampnanos",
}  # fmt: skip
_NO_EFFECT_BEGIN = ("scan.", "sink.")
"""Options of full scans, of writers and of the driver: a lookup has nothing to do with them."""

_KERBEROS = "Log in with 'user' and 'password': Kerberos is not supported."
_REFUSED = {
    "customschema": "Give the columns as the table's schema: 'id BIGINT, name STRING'.",
    "preparequery": "Write it into option 'query', as in WITH … SELECT ….",
    "sessioninitstatement": "Set it for the user in the database, as by ALTER ROLE … SET.",
    **dict.fromkeys(("keytab", "principal", "refreshkrb5config", "connectionprovider"), _KERBEROS),
}
_BY_SCHEMA = "The table's schema says which type a column has."
_ADVICE = {
    "connection.max-retry-timeout": "'connect.timeout' limits how long it takes to connect.",
    **dict.fromkeys(("fetchsize", "scan.fetch-size"), "'lookup.batch.max-size' limits the keys of a call."),
    "numpartitions": "'pool.size' limits the connections of a worker.",
    **dict.fromkeys(("tinyint1isbit", "yearisdatetype", "prefertimestampntz", "prefertimestampnanos"), _BY_SCHEMA),
}
_PROPERTIES = "properties."
"""What Flink's names of a driver's parameters begin with; Spark's are those of the driver."""

_PART = re.compile(r'"(?:[^"]|"")+"|`(?:[^`]|``)+`|\[[^\]]+\]|[^\s.,;()"`\[\]]+')
_NAME = re.compile(rf"(?:{_PART.pattern})(?:\.(?:{_PART.pattern}))*")


def from_jdbc(options: Mapping[str, Any], table: str) -> dict[str, Any]:
    """Return the options of a table, those of JDBC as those of the connector ``sql``; of other connectors, unchanged.

    JDBC's names are read where the connector is ``jdbc`` or ``sql``. They are also read for a JDBC URL without a
    connector, as in the options of Spark's source. Upper and lower case letters in them are equal. Options that say
    nothing about lookups are left out, with a `LookupAdvice` that names them.

    Raises OptionError, which names the option and not its value, for one that cannot be used.

    >>> from_jdbc({"url": "jdbc:mysql://db:3306/shop?useSSL=false", "dbtable": "customers", "user": "reader"}, "c")
    {'connector': 'sql', 'url': 'mysql://db:3306/shop', 'tls.mode': 'disable', 'table': 'customers', 'user': 'reader'}
    """
    url = options.get("url")
    connector = str(options.get("connector") or ("jdbc" if is_jdbc(url) else ""))
    if connector.lower() not in ("jdbc", "sql"):
        return dict(options)
    base, in_url = split_url(str(url)) if is_jdbc(url) else (str(url or ""), [])
    kind = database_of(url)
    given = [one._replace(value=_literal(one.value)) for one in in_url]
    given += [
        Parameter(name.removeprefix(_PROPERTIES), _text(value), f"Option {name!r}")
        for name, value in options.items()
        if _is_parameter(kind, name)
    ]
    others = {name: value for name, value in options.items() if not _is_parameter(kind, name)}
    own = _own_options(others, kind, base)
    meant, ignored = from_parameters(kind, given)
    refuse_contradictions(meant, own)
    _advise(table, [*filter(_is_ignored, options), *ignored])
    base, meant = with_parameters(base, meant)
    return {"connector": "sql", **({"url": base} if "url" in options else {}), **meant, **own}


def changed_options(options: Mapping[str, Any], changes: Mapping[str, Any], table: str) -> dict[str, Any]:
    """Return the changes of a table's options, those of JDBC as those of the connector ``sql``; raises OptionError.

    >>> changed_options({"connector": "sql", "url": "mysql://db/shop", "table": "c"}, {"table-name": "d"}, "c")
    {'table': 'd'}
    """
    known = {name: options[name] for name in ("connector", "url") if name in options}
    found = from_jdbc({**known, **changes}, table)
    return {name: value for name, value in found.items() if name not in known or value != known[name]}


# ── names ────────────────────────────────────────────────────────────────────────────────────────────────────


def _is_ignored(name: str) -> bool:
    return name.lower() in _NO_EFFECT or name.lower().startswith(_NO_EFFECT_BEGIN)


def _is_parameter(kind: str, name: str) -> bool:
    """Return whether an option is a parameter of the database's JDBC driver; the login is an option of ours."""
    if name.lower() in ("user", "password") or _is_ignored(name):
        return False
    return bool(kind) and (name.startswith(_PROPERTIES) or is_parameter(kind, name))


def _own_options(options: Mapping[str, Any], kind: str, url: str) -> dict[str, Any]:
    """Return the options that are no parameters of a driver, under our names; raises OptionError."""
    found: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for name, value in options.items():
        if _is_ignored(name) or name in ("connector", "url"):
            continue
        for ours, meant in _own_option(name, value, kind, url):
            if found.setdefault(ours, meant) != meant:
                raise OptionError(
                    f"Options {origin[ours]!r} and {name!r} are the same option with two values.",
                    hint=f"Leave out {origin[ours] if origin[ours] != ours else name!r}.",
                )
            origin.setdefault(ours, name)
    return found


def _own_option(name: str, value: Any, kind: str, url: str) -> Iterator[tuple[str, Any]]:
    lower = name.lower()
    if lower in _REFUSED:
        raise OptionError(f"Option {name!r} of JDBC cannot be used.", hint=_REFUSED[lower])
    if lower in ("dbtable", "table-name") and isinstance(value, str) and not is_reference(value):
        yield from _table(name, value.strip(), kind, url)
    elif lower != "querytimeout":
        yield _RENAMED.get(lower, name), value
    elif str(value) != "0":
        yield "statement.timeout", value


def _table(name: str, text: str, kind: str, url: str) -> Iterator[tuple[str, str]]:
    """Yield what ``table-name`` or ``dbtable`` names: a table, one of a schema, or what Spark puts into FROM."""
    is_sql = name.lower() == "dbtable"
    if not _NAME.fullmatch(text):
        yield ("query", f"SELECT * FROM {text}") if is_sql and text else ("table", text)
        return
    parts = [_unquoted(part, folds=is_sql and kind == "postgresql") for part in _PART.findall(text)]
    if kind in ("mysql", "mariadb") and parts[:-1] == [unquote(url.partition("?")[0].rpartition("/")[2])]:
        parts = parts[-1:]
    if len(parts) > (1 if kind in ("mysql", "mariadb") else 2):
        raise OptionError(
            f"Option {name!r} names a table of another database.", hint="Write that database into option 'url'."
        )
    yield from zip(("table", "schema"), reversed(parts), strict=False)


def _unquoted(part: str, *, folds: bool) -> str:
    if part[0] not in '"`[':
        return part.lower() if folds else part
    close = "]" if part[0] == "[" else part[0]
    return part[1:-1].replace(close * 2, close)


# ── values ───────────────────────────────────────────────────────────────────────────────────────────────────


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _literal(value: str) -> str:
    """Return the value of a parameter as an option's value that is no reference to a secret."""
    return re.sub(r"^(env|file):", r"\1::", value)


def _advise(table: str, ignored: Sequence[str]) -> None:
    if ignored:
        names = ", ".join(map(repr, ignored))
        more = dict.fromkeys(_ADVICE[name.lower()] for name in ignored if name.lower() in _ADVICE)
        text = f"Table {table!r} ignores options of JDBC that say nothing about lookups: {names}."
        warnings.warn(" ".join([text, *more]), LookupAdvice, stacklevel=4)
