"""Build what is released, check it, and try it in an empty environment; nothing is uploaded.

    python3 .ci/dev.py release              wheel, sdist and SBOM in dist/
    python3 .ci/dev.py release --no-demo    the same, without the demo from the built wheel

The version is that of the git tag of the commit, such as `v0.1.0` or `v0.2.0rc1`; a commit without a tag builds a
development version. The public Python API is compared with that of the last release, the last tag that is no
pre-release: changes that break callers fail, unless the version raises its major number, or, before 1.0, its minor one.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
PUBLIC = (
    "lookupcache",
    "lookupcache.environment",
    "lookupcache.errors",
    "lookupcache.connector",
    "lookupcache.testing",
    "lookupcache.source_options",
    "lookupcache.tls",
    "lookupcache.formats",
    "lookupcache.http.client",
    "lookupcache.spark.exporter",
    "lookupcache.spark.listener",
)
"""The modules that docs/reference.md promises: those that it and "your own connector" of docs/functions.md name."""


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
    """Return what breaks callers of the last release's API, unless the version announces it by its number."""
    import griffe

    tag = last_release(root, version)
    if tag is None:
        print("No release yet: there is no API to compare with.")
        return []
    if leading_numbers(tag) != leading_numbers(version):
        return []
    # A package of this name in the current folder would go before `search_paths`.
    how = {"resolve_aliases": True, "resolve_implicit": True}
    before = griffe.load_git("lookupcache", ref=tag, repo=root, **how)
    after = griffe.load("lookupcache", search_paths=[root], try_relative_path=False, **how)
    found = dict.fromkeys(text for name in PUBLIC for text in module_changes(before, after, name))
    return [f"Since {tag}: {text}" for text in found]


def module_changes(before: Any, after: Any, name: str) -> Iterator[str]:
    """Yield what breaks callers of a module's names; griffe passes over submodules that `__all__` does not name."""
    import griffe

    old, new = (submodule(package, name) for package in (before, after))
    if old is None:
        return
    if new is None:
        yield f"{name}: Public module was removed"
        return
    for member in old.members.values():
        member.public = is_public(old, member)
        if member.public and member.name in new.members and not is_public(new, new.members[member.name]):
            yield f"{name}.{member.name}: Public name was removed"
    yield from (sentence(change) for change in griffe.find_breaking_changes(old, new))


def submodule(package: Any, name: str) -> Any:
    """Return a module of a package that griffe has read, or None."""
    for part in name.split(".")[1:]:
        if part not in package.members or not package.members[part].is_module:
            return None
        package = package.members[part]
    return package


def is_public(module: Any, member: Any) -> bool:
    """Return whether callers may use a member: one of `__all__`, else one defined here or imported `as` itself."""
    if member.is_alias and not member.resolved and member.target_path.startswith("lookupcache."):
        return False  # What it was imported from has no such name.
    if module.exports is not None:
        return member.name in {str(name) for name in module.exports}
    if member.is_alias:
        return member.name in re.findall(r"import (\w+) as \1\b", module.source)
    return not member.name.startswith("_")


def sentence(change: Any) -> str:
    """Return what has changed, such as `lookup_join(on): Parameter was removed`, without colours and the place."""
    return re.sub(r"\x1b\[\d*m", "", change.explain()).partition(": ")[2]


def last_release(root: Path, own: str) -> str | None:
    """Return the tag of the last release before a version, without pre-releases, which may break the one before."""
    line = ["git", "tag", "--merged", "HEAD", "--list", "v*"]
    answer = subprocess.run(line, cwd=root, capture_output=True, text=True)
    tags = {found: tag for tag in answer.stdout.split() if (found := version_of(tag)) is not None}
    before = [version for version in tags if not version.is_prerelease and version < Version(own)]
    return tags[max(before)] if before else None


def version_of(tag: str) -> Version | None:
    """Return the version that a tag names, or None."""
    try:
        return Version(tag)
    except InvalidVersion:
        return None


def leading_numbers(version: str) -> tuple[int, ...]:
    """Return the numbers that a breaking change raises: the major one, before 1.0 the minor one too."""
    parsed = Version(version)
    return (parsed.major,) if parsed.major else (parsed.major, parsed.minor)


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
