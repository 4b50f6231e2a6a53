"""Build the documentation as a site, in `site/`; `serve` shows it. Zensical has no hooks, so it gets prepared pages."""

import json
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PREPARED = ROOT / "build" / "site"
TOP = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
    "SECURITY.md": "security-policy.md",
}
ROW = re.compile(r"^\|.*", re.MULTILINE)
DOTTED = re.compile(r"`([\w-]+(?:\.[\w-]+)+)`")


def main():
    """Prepare the pages, and build them or serve them; return the exit code."""
    shutil.rmtree(PREPARED, ignore_errors=True)
    pages = PREPARED / "docs"
    shutil.copytree(ROOT / "docs", pages)
    for name, page in TOP.items():
        (pages / page).write_text((ROOT / name).read_text().replace("](docs/", "]("))
    for notebook in pages.glob("notebooks/*.ipynb"):
        notebook.with_suffix(".md").write_text(page_of(notebook))
    for page in pages.rglob("*.md"):
        page.write_text(breakable(relinked(page.read_text())))
    archive = add_source(pages)
    (PREPARED / "mkdocs.yml").write_text(configuration())
    command = sys.argv[1:] or ["build", "--clean", "--strict"]
    code = subprocess.run([sys.executable, "-m", "zensical", *command, "-f", "mkdocs.yml"], cwd=PREPARED).returncode
    if command[0] == "build" and not code:
        shutil.rmtree(ROOT / "site", ignore_errors=True)
        shutil.move(PREPARED / "site", ROOT / "site")
        print(f"The site is in {ROOT / 'site'}, with {archive}.")
    return code


def configuration():
    """Return the configuration with the version, and with the repository if git knows one that a browser opens."""
    text = (
        (ROOT / ".ci" / "mkdocs.yml").read_text().replace("VERSION", version("lookupcache")).replace("ROOT", str(ROOT))
    )
    origin = subprocess.run(["git", "remote", "get-url", "origin"], cwd=ROOT, capture_output=True, text=True).stdout
    return text + (f"repo_url: {origin.strip()}\n" if origin.startswith("https://") else "")


def add_source(pages):
    """Put the source of the last commit into the site, and a link to it on the first page; return its name."""
    name = f"lookupcache-{version('lookupcache')}.tar.gz"
    subprocess.run(["git", "archive", "--prefix=lookupcache/", "-o", pages / name, "HEAD"], cwd=ROOT, check=True)
    with (pages / "index.md").open("a") as page:
        page.write(
            f"\nThese pages describe version {version('lookupcache')}: [its source]({name}), [changes](changelog.md).\n"
        )
    return name


def page_of(notebook):
    """Return a notebook as a page: texts, code, and what the code has printed or drawn."""
    blocks = []
    for cell in json.loads(notebook.read_text())["cells"]:
        source = "".join(cell["source"])
        blocks.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            data = {"text/plain": output.get("text"), **output.get("data", {})}
            if "text/html" in data:
                # A line without text would end the HTML.
                blocks.append(re.sub(r"\n\s*\n", "\n", f"<div>{''.join(data['text/html'])}</div>"))
                continue
            text = "".join(data["text/plain"]).strip("\n")
            blocks.append(f"```text\n{text}\n```")
    title, *rest = blocks
    return "\n\n".join([title, f"[This notebook as a file]({notebook.name})", *rest]) + "\n"


def relinked(text):
    """Let links to documents of the top folder lead to their pages."""
    for name, page in TOP.items():
        text = re.sub(rf"\]\(((?:\.\./)*?)(?:\.\./)?{re.escape(name)}", rf"](\1{page}", text)
    return text


def breakable(text):
    """Let names of options in a table be broken after a dot, instead of anywhere."""
    return ROW.sub(lambda row: DOTTED.sub(lambda name: f"<code>{name[1].replace('.', '.<wbr>')}</code>", row[0]), text)


if __name__ == "__main__":
    sys.exit(main())
