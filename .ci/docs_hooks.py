"""Hooks of mkdocs: pages that are files of the top folder, and links to them."""

import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security-policy.md"}


def on_files(files, config):
    """Add the top folder's documents as pages."""
    for name, page in PAGES.items():
        text = (ROOT / name).read_text()
        # Links from the top folder lead into docs/, those of the page stay in it.
        text = re.sub(r"\]\(docs/", "](", text)
        files.append(File.generated(config, page, content=_relink(text)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Let links to documents of the top folder lead to their pages."""
    return _relink(markdown)


def _relink(text):
    for name, page in PAGES.items():
        text = re.sub(rf"\]\((?:\.\./)?{re.escape(name)}", f"]({page}", text)
    return text
