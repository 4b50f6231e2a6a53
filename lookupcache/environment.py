"""What connectors and their drivers read from outside of a job: variables, settings files, the user of the host."""

from __future__ import annotations

import getpass
import os
import pwd
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lookupcache.errors import ConnectorError
from lookupcache.redaction import is_credential, without_credentials


def variables(*beginnings: str) -> dict[str, str]:
    """Return the environment variables whose names begin so, but for credentials.

    >>> import os
    >>> os.environ |= {"SHOPUSER": "ann", "SHOPPASSWORD": "s3cret"}
    >>> variables("SHOP")
    {'SHOPUSER': 'ann'}
    """
    return named_variables(name for name in os.environ if name.startswith(beginnings))


def named_variables(names: Iterable[str]) -> dict[str, str]:
    """Return the environment variables of these names that are set, but for credentials."""
    found = {name: os.environ[name] for name in names if name in os.environ}
    return dict(without_credentials(found))


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
        name, _, value = line.partition("=")
        if line.startswith("["):
            lines = found.setdefault(line[1:].partition("]")[0], [])
        elif line and not line.startswith(("#", ";")) and not is_credential(name.strip()):
            lines.append(f"{name.strip()}={without_credentials(value.strip())}")
    return found


def time_zone() -> list[int]:
    """Return the offsets of the system's local time, in seconds, over the years that have rules.

    Names say less: those of Havana and Chicago are the same.
    """
    return [time.localtime(day * 86_400).tm_gmtoff for day in range(0, 24_800, 10)]


def cloud_settings() -> dict[str, Any]:
    """Return what the clients of object stores read: an endpoint, a profile, a login."""
    aws = {
        name: settings_file(os.environ.get(variable) or default)
        for name, variable, default in (
            ("config", "AWS_CONFIG_FILE", "~/.aws/config"),
            ("credentials", "AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
        )
    }
    found = {**aws, "variables": variables("AWS_", "GOOGLE_", "GCLOUD_", "CLOUDSDK_", "STORAGE_EMULATOR", "AZURE_")}
    return {name: value for name, value in found.items() if value}
