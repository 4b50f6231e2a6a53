"""Which environment variables code reads: those whose names stand where it reads them; of others nothing is known.

    os.environ["SHOP"], os.getenv("SHOP", "at"), "SHOP" in environ    known
    os.environ[name], dict(os.environ), os.path.expandvars(path)      not known

What a client reads by itself, as AWS's and PostgreSQL's do, is known by the names of its variables. Variables that a
program reads do not count.
"""

from __future__ import annotations

import dis
import functools
import itertools
import re
import types
from collections.abc import Iterable, Sequence

from lookupcache.environment import OF_LIBPQ

_MAPPINGS, _FUNCTIONS = frozenset(("environ", "environb")), frozenset(("getenv", "getenvb"))
_READERS = _MAPPINGS | _FUNCTIONS
_METHODS = frozenset(("get", "pop", "setdefault", "__contains__", "__getitem__"))
_UNKNOWN = frozenset(("BaseSettings", "auto_envvar_prefix", "envvar", "expandvars"))
"""Names with which code reads variables by names that stand elsewhere, or are fields."""
_LIBRARIES = frozenset(
    ("configargparse", "decouple", "dynaconf", "environ", "environs", "everett", "jsonargparse", "omegaconf",
     "pydantic_settings", "starlette.config", "typed_settings")
)  # fmt: skip
"""Modules that do the same."""

_OF_AWS, _OF_AZURE, _OF_GOOGLE = ("AWS_",), ("AZURE_",), ("GOOGLE_", "CLOUDSDK_")
_OF_HUB, _OF_ORACLE = ("HF_", "TRANSFORMERS_"), ("ORACLE_", "TNS_ADMIN", "TWO_TASK")
_OF_CLIENTS = {
    "adbc_driver_postgresql": OF_LIBPQ, "adlfs": _OF_AZURE, "aioboto3": _OF_AWS, "aiobotocore": _OF_AWS,
    "aiopg": OF_LIBPQ, "anthropic": ("ANTHROPIC_",), "asyncpg": OF_LIBPQ, "awswrangler": ("AWS_", "WR_"),
    "azure": _OF_AZURE, "boto3": _OF_AWS, "botocore": _OF_AWS, "cx_Oracle": _OF_ORACLE,
    "databricks": ("DATABRICKS_",), "deltalake": (*_OF_AWS, *_OF_AZURE, *_OF_GOOGLE), "django": OF_LIBPQ,
    "gcsfs": _OF_GOOGLE, "google": _OF_GOOGLE, "huggingface_hub": _OF_HUB, "hvac": ("VAULT_",),
    "mlflow": ("DATABRICKS_", "MLFLOW_"), "ollama": ("OLLAMA_",), "openai": ("AZURE_OPENAI_", "OPENAI_"),
    "oracledb": _OF_ORACLE, "peewee": OF_LIBPQ, "psycopg": OF_LIBPQ, "psycopg2": OF_LIBPQ, "psycopg_pool": OF_LIBPQ,
    "pyodbc": ("ODBCINI", "ODBCINSTINI", "ODBCSYSINI"), "s3fs": _OF_AWS, "sentence_transformers": _OF_HUB,
    "snowflake": ("SNOWFLAKE_",), "sqlalchemy": OF_LIBPQ, "transformers": _OF_HUB,
}  # fmt: skip
"""Variables that clients read, which the code that uses them need not name: where the service is, and the login."""

_NAMES = (
    "IMPORT_FROM", "LOAD_ATTR", "LOAD_FROM_DICT_OR_DEREF", "LOAD_FROM_DICT_OR_GLOBALS", "LOAD_GLOBAL", "LOAD_METHOD",
    "LOAD_NAME", "LOAD_SUPER_ATTR",
)  # fmt: skip
_STORES = ("STORE_GLOBAL", "STORE_NAME")
_FORMATTED = re.compile(r"\{\w*[\w.\[\]]*\.environb?\b")
"""A variable of the module that a text is formatted with, as in ``"{o.environ[SHOP]}".format(o=os)``."""
_SUBSCRIPTS = ("BINARY_SUBSCR", "DELETE_SUBSCR", "STORE_SUBSCR")


def variables_of_clients(libraries: Iterable[str]) -> frozenset[str]:
    """Return the names of variables, or their beginnings, that packages read."""
    return frozenset(name for library in libraries for name in _OF_CLIENTS.get(library, ()))


def reads_unknown(modules: Iterable[str]) -> bool:
    """Return whether one of some modules reads variables whose names are not known."""
    return any(one in _LIBRARIES or one.partition(".")[0] in _LIBRARIES for one in modules)


@functools.lru_cache(maxsize=2048)
def variables_in(code: types.CodeType) -> frozenset[str] | None:
    """Return the variables that code reads; None if it may read others. Functions within are not in it.

    >>> variables_in(compile("import os; a = os.environ['A'], os.getenv('B', str(1)), 'C' in os.environ", "", "exec"))
    frozenset({...})
    >>> print(variables_in(compile("import os; a = os.environ['A' + b]", "", "exec")))
    None
    """
    texts = {one for one in code.co_consts if isinstance(one, str)}
    named = {name for one in code.co_consts if isinstance(one, tuple) for name in one if isinstance(name, str)}
    if not _READERS.isdisjoint(texts) or not _UNKNOWN.isdisjoint(texts.union(code.co_names, named)):
        return None
    if runs_text(code) and any(map(may_read_variables, texts)):
        return None
    if any(map(_FORMATTED.search, texts)):
        return None
    if _READERS.isdisjoint(code.co_names):
        return frozenset()
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("EXTENDED_ARG", "CACHE", "NOP")]
    found = set()
    for at, step in enumerate(steps):
        if step.opname in _NAMES and step.argval in _READERS and not _is_kept_under_its_name(steps, at):
            name = _variable_at(code, steps, at)
            if name is None:
                return None
            found.add(name)
    return frozenset(found)


def runs_text(code: types.CodeType) -> bool:
    """Return whether code runs a text."""
    return not {"eval", "exec"}.isdisjoint(code.co_names)


def may_read_variables(text: str) -> bool:
    """Return whether a text may be code that reads environment variables."""
    return any(reader in text for reader in _READERS)


def _is_kept_under_its_name(steps: Sequence[dis.Instruction], at: int) -> bool:
    """Return whether the reader is only bound to its own name, as by ``from os import environ``."""
    after = steps[at + 1]
    return after.opname in _STORES and after.argval == steps[at].argval


def _variable_at(code: types.CodeType, steps: Sequence[dis.Instruction], at: int) -> str | None:
    """Return the name of the variable that is read by the reader at a position; None if it does not stand there."""
    rest = list(itertools.dropwhile(lambda step: step.opname == "PUSH_NULL", steps[at + 1 :]))
    if steps[at].argval in _MAPPINGS:
        if rest[0].opname == "CONTAINS_OP":
            before = at - 1 if steps[at].opname in ("LOAD_GLOBAL", "LOAD_NAME") else at - 2
            is_choice = any(step.is_jump_target for step in steps[before + 1 : at + 2])
            return None if before < 0 or is_choice else _text_of(steps[before])
        if rest[0].argval not in _METHODS:
            is_read = rest[1].opname in _SUBSCRIPTS or (rest[1].opname == "BINARY_OP" and rest[1].argrepr == "[]")
            return _text_of(rest[0]) if is_read else None
        rest = list(itertools.dropwhile(lambda step: step.opname == "PUSH_NULL", rest[1:]))
    return _text_of(rest[0]) if _is_whole_argument(code, rest) else None


def _is_whole_argument(code: types.CodeType, steps: Sequence[dis.Instruction]) -> bool:
    """Return whether the first instruction loads the first argument of the call that follows, and nothing changes it.

    ``depth`` is how many values the instructions have put on the stack.
    """
    call = "PRECALL" if any(step.opname == "PRECALL" for step in steps) else "CALL"
    depth = 1
    for before, step in itertools.pairwise(steps):  # The names of arguments stand before the call.
        arguments = int(step.arg or 0)
        if (step.opname == call and depth == arguments) or (step.opname == "CALL_KW" and depth == arguments + 1):
            is_named = before.opname == "KW_NAMES" or step.opname == "CALL_KW"
            names: Sequence[str] = code.co_consts[int(before.arg or 0)] if is_named else ()
            return len(names) < arguments or names[0] == "key"
        effect = dis.stack_effect(step.opcode, step.arg, jump=False)
        depth += effect
        if step.is_jump_target or step.opcode in dis.hasjrel or (effect < 0 and depth <= 1):
            return False
    return False


def _text_of(step: dis.Instruction) -> str | None:
    if step.opname != "LOAD_CONST" or not isinstance(step.argval, str | bytes):
        return None
    return step.argval if isinstance(step.argval, str) else step.argval.decode(errors="surrogateescape")
