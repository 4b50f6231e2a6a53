"""Lookup joins on a standalone cluster of two workers with two executors each, to which lookupcache is shipped."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections import Counter
from pathlib import Path
from zipfile import ZipFile

import pyspark
import pytest
import shipped_connector
import shipped_job
from needs import needs_spark
from standalone import StandaloneCluster

ROOT = Path(__file__).parents[2]
CONNECTOR, JOB = Path(shipped_connector.__file__), Path(shipped_job.__file__)
has_connect = needs_spark("4.0", "PyPI's Spark 3.5 has no server of Spark Connect")
WAYS = ["--py-files", "--archives", pytest.param("addArtifact", marks=has_connect)]
"""Each is a submission with four executors."""


@pytest.fixture(scope="module")
def cluster():
    with StandaloneCluster() as running:
        yield running


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """Return the package and its connectors as a zip, laid out as in the wheel."""
    path = tmp_path_factory.mktemp("package") / "lookupcache.zip"
    with ZipFile(path, "w") as package:
        for folder in (ROOT, ROOT / "connectors"):
            for file in folder.glob("*lookupcache*/**/*.py"):
                package.write(file, file.relative_to(folder))
    return path


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """Return the Python of an environment with what lookupcache requires, but without it."""
    return new_environment(tmp_path_factory.mktemp("bare"))


def new_environment(folder):
    """Make an environment that has our packages from ours; lookupcache, which is installed as a link, is left out."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    [site] = folder.glob("lib/python*/site-packages")
    paths = [sysconfig.get_path("purelib"), str(Path(pyspark.__path__[0]).parent)]
    (site / "dependencies.pth").write_text("".join(f"{path}\n" for path in paths))
    return folder / "bin" / "python"


def pack(folder, package):
    """Return an archive of an environment with lookupcache and the connector, as venv-pack makes it."""
    python = new_environment(folder / "packed")
    [site] = (folder / "packed").glob("lib/python*/site-packages")
    with ZipFile(package) as files:
        files.extractall(site)
    shutil.copy(CONNECTOR, site)
    with tarfile.open(folder / "packed.tar.gz", "w:gz", compresslevel=1) as archive:
        archive.add(python.parent.parent, ".")
    return folder / "packed.tar.gz"


def assert_each_host_requested_each_key_once(log):
    """Check that the two executors of a worker shared a cache: what one of them has requested, the other has not."""
    lines = [line.rsplit(" ", 1) for line in log.read_text().splitlines()]
    hosts = Counter((host_of(local), key) for local, key in lines)
    assert len({host for host, _ in hosts}) == 2
    assert set(hosts.values()) == {1}
    assert len({local for local, _ in lines}) == 4


def host_of(local):
    """Return the part of an executor's local directory that is its worker's."""
    return next(part for part in Path(local).parts if part.startswith("local-"))


if os.environ.get("LOOKUPCACHE_MATRIX"):  # only in `dev.py matrix`: a submission starts seven JVMs

    @pytest.mark.spark
    @pytest.mark.parametrize("way", WAYS)
    def test_a_join_runs_where_lookupcache_is_shipped(cluster, package, bare, tmp_path, way):
        log, conf = tmp_path / "log", dict(cluster.settings)
        if way == "--py-files":
            conf |= {"spark.submit.pyFiles": f"{package},{CONNECTOR}", "spark.pyspark.python": str(bare)}
            printed = cluster.submit(JOB, str(log), conf=conf)
        elif way == "--archives":
            archive = pack(tmp_path, package)
            conf |= {"spark.archives": f"{archive}#environment", "spark.pyspark.python": "./environment/bin/python"}
            conf |= {"spark.pyspark.driver.python": str(tmp_path / "packed" / "bin" / "python")}
            conf |= {"spark.python.daemon.module": "lookupcache.daemon"}
            printed = cluster.submit(JOB, str(log), conf=conf)
        else:
            printed = cluster.run(
                [str(bare), "-W", "ignore", str(JOB), str(log), str(package), str(CONNECTOR)],
                PYTHONPATH=f"{package}{os.pathsep}{CONNECTOR.parent}", PYSPARK_PYTHON=str(bare),
                SETTINGS=json.dumps({**conf, "spark.master": cluster.url, "spark.api.mode": "connect"}),
            )  # fmt: skip
        found = json.loads(printed.splitlines()[-1])
        assert (found["rows"], found["wrong"]) == (16 * shipped_job.KEYS, [0, 0])
        assert found["session"].startswith("pyspark.sql.connect") is (way == "addArtifact")
        assert [file for file in found["files"] if str(ROOT) in file] == []
        assert len(found["executors"]) == 4
        assert_each_host_requested_each_key_once(log)
