"""The bundle for machines without a network: made from small wheels, and installed without one."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import bundle

WITHOUT_NETWORK = ("unshare", "--net", "--map-root-user")
GLIBC = "2.28"
PLAIN = {n: v for n, v in os.environ.items() if not n.startswith(("PYTHON", "PIP_"))}
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["mcfuser"]
"""
BACKEND = '''
"""Builds a wheel of all that lies in the folder: Pythons have no setuptools that does."""

import zipfile
from pathlib import Path

INFO = "mcfuser-9.9.dist-info"
METADATA = """Metadata-Version: 2.1
Name: mcfuser
Version: 9.9
Provides-Extra: gpu
Requires-Dist: tiny
Requires-Dist: wee; extra == "gpu"
"""


def build_wheel(folder, config_settings=None, metadata_directory=None):
    name = "mcfuser-9.9-py3-none-any.whl"
    with zipfile.ZipFile(Path(folder) / name, "w") as archive:
        for path in Path().rglob("*.py"):
            archive.write(path)
        archive.writestr(f"{INFO}/METADATA", METADATA)
        tag = "Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
        archive.writestr(f"{INFO}/WHEEL", tag)
        archive.writestr(f"{INFO}/RECORD", "")
    return name
'''


def wheel(
    folder: Path, name: str, version: str, tag: str = "py3-none-any", needs: str = ""
) -> Path:
    """A wheel with one module, which tells its version."""
    path = folder / f"{name}-{version}-{tag}.whl"
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"VERSION = '{version}'\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + (f"Requires-Dist: {needs}\n" if needs else ""),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    lines = [
        f"{n},sha256={base64.urlsafe_b64encode(hashlib.sha256(t.encode()).digest()).rstrip(b'=').decode()},{len(t)}"
        for n, t in files.items()
    ]
    files[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,"]) + "\n"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, text in files.items():
            archive.writestr(inside, text)
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a project `mcfuser` that needs `tiny`, and with its extra `wee`, as locked."""
    folder = tmp_path_factory.mktemp("bundles")
    store, project = folder / "store", folder / "project"
    store.mkdir()
    for version in ("1.0", "2.0"):
        wheel(store, "tiny", version, needs="small")
        wheel(store, "wee", version, tag=f"py3-none-manylinux_2_17_{os.uname().machine}")
    wheel(store, "small", "0.1")
    (project / "mcfuser").mkdir(parents=True)
    (project / "mcfuser" / "__init__.py").write_text("import tiny\nprint('tiny', tiny.VERSION)\n")
    (project / "build" / "lib" / "mcfuser").mkdir(parents=True)
    (project / "build" / "lib" / "mcfuser" / "old.py").write_text("left over")
    (project / "requirements.lock").write_text("tiny==1.0\nwee==1.0\nsmall==0.1\n")
    (project / "mcfuser" / "backend.py").write_text(BACKEND)
    (project / "pyproject.toml").write_text(PROJECT)
    output = folder / "bundle"
    sources = ["--find-links", str(store), "--no-index"]
    bundle.make(output, bundle.target(sys.executable, GLIBC), ["gpu"], project, sources)
    return output


@contextmanager
def copied(made: Path, folder: Path) -> Iterator[Path]:
    """The bundle on another machine."""
    there = folder / "there"
    shutil.copytree(made, there)
    yield there


def install(bundle: Path, *words: str, offline: bool = False) -> subprocess.CompletedProcess[str]:
    started = [*WITHOUT_NETWORK] if offline else []
    return subprocess.run(
        [*started, "sh", str(bundle / "install.sh"), *words],
        capture_output=True, text=True, check=False, cwd=bundle.parent, env=PLAIN,
    )  # fmt: skip


def can_part_from_the_network() -> bool:
    try:
        done = subprocess.run([*WITHOUT_NETWORK, "true"], check=False, capture_output=True)
    except OSError:
        return False
    return done.returncode == 0


def test_a_bundle_has_the_locked_wheels_and_their_hashes(made: Path) -> None:
    names = {p.name.rpartition("-py3")[0] for p in (made / "wheels").iterdir()}
    assert names == {"mcfuser-9.9", "tiny-1.0", "wee-1.0", "small-0.1"}
    required = (made / "requirements.txt").read_text().splitlines()
    assert len(required) == 4 and all("==" in r and " --hash=sha256:" in r for r in required)
    own = next((made / "wheels").glob("mcfuser-*"))
    assert not any("old" in name for name in zipfile.ZipFile(own).namelist())
    checked = subprocess.run(["sha256sum", "-c", "--strict", "SHA256SUMS"], cwd=made, check=False,
                             capture_output=True)  # fmt: skip
    assert checked.returncode == 0
    assert "@" not in (made / "install.sh").read_text().replace('"$@"', "")


@pytest.mark.thorough
@pytest.mark.skipif(not can_part_from_the_network(), reason="no network namespace can be made here")
def test_a_bundle_is_installed_without_a_network(made: Path, tmp_path: Path) -> None:
    with copied(made, tmp_path) as there:
        done = install(there, "installed", sys.executable, offline=True)
        assert done.returncode == 0, done.stderr
        python = tmp_path / "installed" / "bin" / "python"
        told = subprocess.run(
            [python, "-c", "import mcfuser, wee; print(wee.VERSION)"],
            capture_output=True, text=True, check=True, cwd=tmp_path, env=PLAIN,
        )  # fmt: skip
        assert told.stdout.split() == ["tiny", "1.0", "1.0"]
        again = install(there, "installed", sys.executable)
        assert again.returncode == 2 and "is there already" in again.stderr


@pytest.mark.parametrize("what", ["changed", "missing", "added"])
def test_a_bundle_that_is_not_as_it_was_made_is_not_installed(
    made: Path, tmp_path: Path, what: str
) -> None:
    with copied(made, tmp_path) as there:
        wheels = there / "wheels"
        if what == "changed":
            with next(wheels.glob("tiny-*")).open("ab") as file:
                file.write(b"x")
        elif what == "missing":
            next(wheels.glob("tiny-*")).unlink()
        else:
            wheel(wheels, "tiny", "3.0")
        done = install(there, "installed", sys.executable)
        assert done.returncode == 1 and "copy it again" in done.stderr
        assert not (tmp_path / "installed").exists()


def test_another_python_or_machine_is_told_so(made: Path, tmp_path: Path) -> None:
    with copied(made, tmp_path) as there:
        for words in (["x", "no-such-python"], [], ["x", "y", "z"]):
            assert install(there, *words).returncode == 2
        script = there / "install.sh"
        script.write_text(script.read_text().replace(os.uname().machine, "riscv64"))
        done = install(there, "x", sys.executable)
        assert done.returncode == 2 and "is for riscv64" in done.stderr


def test_what_cannot_be_made_is_one_sentence(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, sentence in (
        (["-o", str(made)], "is there already"),
        (["-o", str(tmp_path / "a" / "b")], "there is no folder"),
        (["-o", str(tmp_path / "x"), "--glibc", "musl"], "--glibc is 'musl'"),
        (["-o", str(tmp_path / "x"), "--python", "none"], "no Python that runs here"),
    ):
        assert bundle.main(words) == 1
        told = capsys.readouterr().err
        assert sentence in told and len(told.splitlines()) == 1
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_a_wheel_that_is_nowhere_is_named(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "requirements.lock").write_text("tiny==7.0\n")
    (project / "mcfuser").mkdir()
    (project / "mcfuser" / "backend.py").write_text(BACKEND)
    (project / "pyproject.toml").write_text(PROJECT)
    wheel(tmp_path, "tiny", "1.0")
    sources = ["--find-links", str(tmp_path), "--no-index"]
    with pytest.raises(bundle.BundleError, match=r"tiny==7\.0"):
        bundle.make(tmp_path / "out", bundle.target(sys.executable, GLIBC), [], project, sources)
    assert not (tmp_path / "out").exists()


def test_wheels_are_those_of_an_old_enough_c_library() -> None:
    made_for = bundle.Target("python", "3.11", "x86_64", 20)
    assert made_for.platforms[0] == "manylinux_2_20_x86_64"
    assert "manylinux_2_21_x86_64" not in made_for.platforms
    assert {"manylinux2014_x86_64", "linux_x86_64"} <= set(made_for.platforms)
    older = bundle.Target("python", "3.11", "x86_64", 12)
    assert "manylinux2014_x86_64" not in older.platforms
