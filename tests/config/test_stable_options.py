"""Options that were there once are still there, with the same default: `docs/reference.md` promises it.

``LOOKUPCACHE_UPDATE_GOLDEN=1`` records options that are new. One that is gone or has another default is edited in
`options.json` by hand, with a line under "Changed" in the changes.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from lookupcache.config import LookupConfig
from lookupcache.connector import connector_class

RECORD = Path(__file__).parent / "options.json"
CONNECTORS = ("dynamodb", "feast", "files", "http", "openai", "redis", "sql")


def options_of_today() -> dict[str, dict[str, Any]]:
    """Return the default of each ``lookup.*`` option, and for each connector its options, with what they are now."""
    found = {"lookup": {field.metadata["key"]: field.metadata["shown"] for field in dataclasses.fields(LookupConfig)}}
    for name in CONNECTORS:
        kind = connector_class(name)
        found[name] = {**{option: option for option in (kind.options or {})}, **kind.renamed}
    return found


def test_options_keep_their_names_defaults_and_meanings():
    today = options_of_today()
    if os.environ.get("LOOKUPCACHE_UPDATE_GOLDEN"):
        before = json.loads(RECORD.read_text()) if RECORD.exists() else {}
        added = {group: {**options, **before.get(group, {})} for group, options in today.items()}
        RECORD.write_text(json.dumps(added, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    assert json.loads(RECORD.read_text()) == today, "see the docstring of this file"
