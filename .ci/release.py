"""Build what is released, check it, and try it in an empty environment; nothing is uploaded.

    python3 .ci/dev.py release              wheel, sdist and SBOM in dist/
    python3 .ci/dev.py release --no-demo    the same, without the demo from the built wheel

The version is that of the git tag of the commit, such as `v0.1.0`; a commit without a tag builds a development version.
The public Python API is compared with the last tag's: changes that break callers fail, unless the version raises its
major number, or, before 1.0, its minor number.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"


def main() -> int:
    """Build and check; return 0 if all is in order."""
    parser = argparse.ArgumentParser(prog="dev.py release")
    parser.add_argument("--no-demo", action="store_true")
    options = parser.parse_args()
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", DIST, ROOT)
    wheel, sdist = *DIST.glob("*.whl"), *DIST.glob("*.tar.gz")
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
    run(sys.executable, "-m", "check_wheel_contents", "--config", ROOT / "pyproject.toml", wheel)
    version = wheel.name.split("-")[1]
    breaks = breaking_changes(ROOT, version)
    with tempfile.TemporaryDirectory() as folder:
        python = install(wheel, Path(folder) / "environment")
        write_sbom(python, DIST / f"lookupcache-{version}.cdx.json", wheel)
        if not options.no_demo:
            run(python.parent / "lookupcache", "demo", cwd=folder)
    print(
        "", *(f"  {path.relative_to(ROOT)}  {path.stat().st_size:,} bytes" for path in sorted(DIST.iterdir())), sep="\n"
    )
    print("", *(breaks or ["No change of the Python API breaks callers."]), sep="\n")
    return 1 if breaks else 0


def breaking_changes(root: Path, version: str) -> list[str]:
    """Return the changes of the API since the last tag that break callers and that the version does not announce."""
    import griffe

    tag = last_tag(root, f"v{version}")
    if tag is None:
        print("No tag yet: there is no API to compare with.")
        return []
    if leading_numbers(tag.removeprefix("v")) != leading_numbers(version):
        return []
    # A package of this name in the current folder would go before `search_paths`.
    how = {"resolve_aliases": True, "resolve_implicit": True}
    before = griffe.load_git("lookupcache", ref=tag, repo=root, **how)
    after = griffe.load("lookupcache", search_paths=[root], try_relative_path=False, **how)
    public = {str(name) for name in before.exports or ()}
    found = griffe.find_breaking_changes(before, after)
    return [f"Since {tag}: {sentence(change)}" for change in found if is_public(change.obj.path, public)]


def sentence(change: Any) -> str:
    """Return what has changed, such as `lookup_join(on): Parameter was removed`, without colours and the place."""
    return re.sub(r"\x1b\[\d*m", "", change.explain()).partition(": ")[2]


def is_public(path: str, exported: set[str]) -> bool:
    """Is this the path of an exported name of lookupcache, or of a member of one, wherever it is defined?"""
    return bool(exported.intersection(path.split(".")[1:]))


def last_tag(root: Path, own: str) -> str | None:
    """Return the last tag before this version's own, or None."""
    line = ["git", "describe", "--tags", "--abbrev=0", "--match=v*", f"--exclude={own}"]
    answer = subprocess.run(line, cwd=root, capture_output=True, text=True)
    return answer.stdout.strip() or None


def leading_numbers(version: str) -> tuple[str, ...]:
    """Return the numbers that a breaking change raises: the major one, before 1.0 the minor one too."""
    major, minor = version.split(".")[:2]
    return (major, minor) if major == "0" else (major,)


def install(wheel: Path, folder: Path) -> Path:
    """Install the wheel with what its demo needs in an empty environment; return its Python."""
    venv.create(folder)
    python = folder / "bin" / "python"
    requirement = f"lookupcache[demo,java]=={wheel.name.split('-')[1]}"
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--find-links", DIST, requirement)
    return python


def write_sbom(python: Path, target: Path, wheel: Path) -> None:
    """Write what an installation consists of as CycloneDX; paths of this machine are left out."""
    options = ["--output-reproducible", "--of", "JSON", "--pyproject", ROOT / "pyproject.toml", "-o", target]
    run(sys.executable, "-m", "cyclonedx_py", "environment", *options, python)
    text = target.read_text().replace(wheel.as_uri(), wheel.name)
    found = [path for path in (str(ROOT), str(python.parents[1])) if path in text]
    if found:
        raise SystemExit(f"The SBOM contains paths of this machine: {', '.join(found)}")
    target.write_text(text)


def run(*words: object, cwd: object = ROOT) -> None:
    """Run a program; end with its code if it fails."""
    print("+", *(Path(str(words[0])).name, *words[1:]), flush=True)
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONPATH": ""}
    code = subprocess.run([str(word) for word in words], cwd=str(cwd), env=environment).returncode
    if code:
        raise SystemExit(code)


if __name__ == "__main__":
    sys.exit(main())
