"""Hooks of mkdocs: pages of the top folder and of notebooks, links to them, and where names are broken."""

import json
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
    for notebook in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{notebook.stem}.md", content=_page_of(notebook)))
    return files


def _page_of(notebook):
    """Return a notebook as a page: texts, code, and what the code has printed."""
    blocks = []
    for cell in json.loads(notebook.read_text())["cells"]:
        source = "".join(cell["source"])
        blocks.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            text = "".join(output.get("text") or output["data"]["text/plain"]).strip("\n")
            blocks.append(f"```text\n{text}\n```")
    title, *rest = blocks
    return "\n\n".join([title, f"[This notebook as a file]({notebook.name})", *rest]) + "\n"


def on_page_markdown(markdown, page, config, files):
    """Let links to documents of the top folder lead to their pages."""
    return _relink(markdown)


def on_page_content(html, page, config, files):
    """Let names of options in the first column of a table be broken after a dot, instead of anywhere."""
    return re.sub(r"<tr>\n<td><code>[a-z.-]+</code></td>", lambda cell: cell[0].replace(".", ".<wbr>"), html)


def _relink(text):
    for name, page in PAGES.items():
        text = re.sub(rf"\]\((?:\.\./)?{re.escape(name)}", f"]({page}", text)
    return text
