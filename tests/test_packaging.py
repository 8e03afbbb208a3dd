"""What a built wheel holds, which is what setuptools' build_py copies."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mcfuser.devices.catalogue import CATALOGUE
from tests.support.paths import PACKAGES, ROOT

FOLDERS = ("mcfuser", "db", "service", "tests", "benchmarks")
BUILD = "from setuptools import setup; setup()"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("setuptools")
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    for folder in FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__", "data", "golden")
        shutil.copytree(ROOT / folder, source / folder, ignore=ignored)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-c", BUILD, "-q", "build_py", "--build-lib", str(built)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    return built


def test_a_wheel_holds_every_source_and_no_other_package(built: Path) -> None:
    assert {p.name for p in built.iterdir()} == set(PACKAGES)
    for name, folder in PACKAGES.items():
        here = {p.relative_to(folder) for p in folder.rglob("*.py")}
        assert {p.relative_to(built / name) for p in (built / name).rglob("*.py")} == here


def test_a_wheel_holds_what_is_read_beside_the_sources(built: Path) -> None:
    for name in CATALOGUE:
        assert (built / "mcfuser" / "devices" / f"{name}.toml").is_file()
    page = Path("service", "mcfuser_service", "page")
    here = {p.name for p in (ROOT / page).iterdir()}
    assert "index.html" in here
    assert {p.name for p in (built / "mcfuser_service" / "page").iterdir()} == here
    assert (built / "mcfuser_db" / "migrations" / "script.py.mako").is_file()
