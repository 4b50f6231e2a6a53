"""What connectors and their drivers read from outside of a job: variables, settings files, the user of the host."""

from __future__ import annotations

import bisect
import getpass
import hashlib
import itertools
import json
import os
import pwd
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lookupcache.errors import ConnectorError
from lookupcache.redaction import is_credential, without_credentials

_YEARS_WITH_RULES = 24_800 * 86_400
"""Seconds from 1970 on, which end in 2037: from then on SQLite uses the rules of an earlier year."""
_OF_CLOUDS = re.compile(
    "(aws|azure|google|gcloud|cloudsdk|cloud_storage|storage_emulator)_.*|(http|https|all|no)_proxy"
    "|proxy_url|endpoint(_url)?|(default_)?region|use_emulator",
    re.IGNORECASE,
)
"""Variables that clients of object stores and DynamoDB read; deltalake's takes some in any case, and without prefix."""
_OF_ONE_RUN = re.compile(
    "AWS_(BATCH|CONTAINER|LAMBDA|XRAY)_.*|AWS_(CREDENTIAL|SESSION)_EXPIRATION|AWS_(PAGER|ROLE_SESSION_NAME)"
    "|GOOGLE_GHA_CREDS_PATH"
    "|SPARK_(APPLICATION_ID|CONNECT_LOCAL_URL|DRIVER_(BIND_ADDRESS|POD_IP|POD_NAME|URL)|EXECUTOR_(ID|POD_IP|POD_NAME)"
    "|EXECUTOR_DIRS|JAVA_OPT_.*|JOB_ARTIFACT_UUID|LOCAL_DIRS|LOG_URL_.*|YARN_STAGING_DIR)"
    "|PYSPARK_GATEWAY_PORT|PYTHON_WORKER_FACTORY_(PORT|SOCK_DIR|SOCK_PATH)"
)
"""Variables with another value in each container or job, which do not decide its rows: its number, log or folder."""
OF_LIBPQ = (
    "PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE", "PGUSER", "PGSERVICE", "PGSERVICEFILE", "PGSYSCONFDIR", "PGOPTIONS",
    "PGTARGETSESSIONATTRS", "PGTZ", "PGDATESTYLE", "PGAPPNAME", "PGCLIENTENCODING", "PGGEQO", "PGSSLCERT",
)  # fmt: skip
"""Variables by which PostgreSQL's library finds a database and logs in, and that its session shows."""
_READ_BY_LIBPQ = re.compile("PG(?!(?:DATA|PASSFILE|SSLKEY|SSLCERT|LOCALEDIR)$)[A-Z]+")
"""Also those of versions to come; not those of a server and of poolers, whose names have a ``_``."""
DIRECTORIES = frozenset(("PWD", "OLDPWD"))
"""Variables of shells, whose names are elsewhere those of passwords."""


def variables(*beginnings: str) -> dict[str, str]:
    """Return the environment variables whose names begin so, but for credentials.

    >>> import os
    >>> os.environ |= {"SHOPUSER": "ann", "SHOPPASSWORD": "s3cret"}
    >>> variables("SHOP")
    {'SHOPUSER': 'ann'}
    """
    return _values_of(name for name in os.environ if name.startswith(beginnings))


def libpq_settings(certificate_path: str | None = None) -> dict[str, Any]:
    """Return what PostgreSQL's library reads where a URL does not say it: variables, and a client's certificate.

    ``certificate_path`` is that of a certificate which is set elsewhere.
    """
    read = _values_of(name for name in os.environ if _READ_BY_LIBPQ.fullmatch(name))
    given = certificate_path or os.environ.get("PGSSLCERT")
    paths = [given] if given else [f"{home}/.postgresql/postgresql.crt" for home in _homes()]
    found = {
        "variables": read,
        "sockets": real_sockets(os.environ.get("PGHOST", ""), os.environ.get("PGPORT", "")),
        "certificates": [one for one in map(certificate, paths) if one],
    }
    return {name: value for name, value in found.items() if value}


def real_sockets(hosts: str, ports: str = "") -> list[str]:
    """Return where the links of Unix sockets lead, in a list of hosts as PostgreSQL's library reads it."""
    names = [f".s.PGSQL.{port}" for port in (ports or "5432").split(",")]
    return [os.path.realpath(f"{host}/{name}") for host in hosts.split(",") if host.startswith("/") for name in names]


def _homes() -> list[str]:
    """Return the user's home by the variable, and by the system's list of users."""
    found = [os.environ.get("HOME", "")]
    with suppress(KeyError):  # A container's user may have no name.
        found.append(pwd.getpwuid(os.geteuid()).pw_dir)
    return list(dict.fromkeys(filter(None, found)))


def named_variables(names: Iterable[str]) -> dict[str, str]:
    """Return the environment variables of these names, but for credentials; one that ends in ``_`` is a beginning."""
    names = frozenset(names)
    beginnings = tuple(one for one in names if one.endswith("_"))
    began = (one for one in os.environ if one.startswith(beginnings) and not _OF_ONE_RUN.fullmatch(one))
    return _values_of({*(names & os.environ.keys()), *began})


def _values_of(names: Iterable[str]) -> dict[str, str]:
    """Return the environment variables of these names, but for credentials."""
    found = {name: os.environ[name] for name in names}
    return {**without_credentials(found), **{name: found[name] for name in DIRECTORIES & found.keys()}}


def login() -> list[str]:
    """Return the user of the operating system: his number, and what variables and the system call him."""
    found = [str(os.geteuid())]
    for name in (getpass.getuser, lambda: pwd.getpwuid(os.geteuid()).pw_name):
        with suppress(KeyError, OSError):  # A container's user may have no name.
            found.append(name())
    return found


def settings_file(path: str | Path) -> dict[str, list[str]]:
    """Return the lines of each section of a settings file, but for credentials; none if there is no such file.

    Lines and not values: drivers differ in which of two settings of one name counts, and in what indented lines mean.
    Raises ConnectorError for a file that cannot be read.
    """
    found: dict[str, list[str]] = {}
    try:
        text = Path(path).expanduser().read_text()
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RuntimeError) as error:
        raise ConnectorError(f"The settings in {str(path)!r} cannot be read: {type(error).__name__}.") from None
    lines = found.setdefault("", [])
    for line in map(str.strip, text.splitlines()):
        name, value = (*re.split("[=:]", line, maxsplit=1), "")[:2]  # AWS's clients take both.
        if line.startswith("["):
            lines = found.setdefault(line[1:].partition("]")[0], [])
        elif line and not line.startswith(("#", ";")) and not is_credential(name.strip(), value):
            lines.append(f"{name.strip()}={without_credentials(value.strip())}")
    return found


def time_zone() -> list[tuple[int, int]]:
    """Return the offsets of the system's local time, in seconds, and when each began, over the years that have rules.

    Names say less: those of Havana and Chicago are the same. Berlin and Vienna differ by hours of a single day.
    """
    starts = range(0, _YEARS_WITH_RULES, 864_000)
    changes = [_change(one, after) for one, after in itertools.pairwise(starts) if _offset(one) != _offset(after)]
    return [(one, _offset(one)) for one in (0, *changes)]


def _change(start: int, end: int) -> int:
    """Return the first second after the start that has another offset; there is one."""
    before = _offset(start)
    return start + bisect.bisect(range(start, end), False, key=lambda at: _offset(at) != before)


def _offset(seconds: int) -> int:
    return time.localtime(seconds).tm_gmtoff


def certificate(path: str) -> dict[str, Any]:
    """Return the names in a client's certificate, by which a server knows the client; a renewed one has the same.

    Those of a file without any are a hash of it. Empty where it cannot be read: to connect fails, too.
    """
    try:
        data = Path(path).read_bytes()
    except (OSError, ValueError):
        return {}
    try:
        import _ssl  # Python decodes a certificate without a connection only there.

        decoded = _ssl._test_decode_cert(path)  # type: ignore[attr-defined]
    except Exception:
        return {"hash": hashlib.sha256(data).hexdigest()}
    return {name: decoded[name] for name in ("subject", "subjectAltName", "issuer") if name in decoded}


def cloud_settings() -> dict[str, Any]:
    """Return what the clients of object stores read: an endpoint, a proxy, a profile, a login."""
    aws = {  # boto3 replaces variables in the paths.
        name: settings_file(os.path.expandvars(os.environ.get(variable) or default))
        for name, variable, default in (
            ("config", "AWS_CONFIG_FILE", "~/.aws/config"),
            ("credentials", "AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
        )
    }
    read = (name for name in os.environ if _OF_CLOUDS.fullmatch(name) and not _OF_ONE_RUN.fullmatch(name))
    found = {**aws, "variables": _values_of(read), "google": _google_endpoints()}
    return {name: value for name, value in found.items() if value}


def _google_endpoints() -> list[str]:
    """Return the endpoints that files of Google's credentials name; deltalake takes the variables in any case."""
    found = []
    for name in sorted(os.environ):
        if name.upper() in ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH"):
            try:
                read = json.loads(Path(os.environ[name]).expanduser().read_text())
            except (OSError, ValueError, RuntimeError):  # The client's error says more.
                continue
            if isinstance(read, dict):
                found += [f"{one}={read[one]}" for one in ("gcs_base_url", "universe_domain") if one in read]
    return found
