"""Makes a folder with which mcfuser is installed on a machine without a network.

    python3.11 deploy/bundle.py --extra gpu -o bundle/

The folder has mcfuser's wheel and those of everything it needs, in the versions of
requirements.lock, their SHA-256, and install.sh, which checks them and installs them into a new
environment. It fits machines with the Python and the architecture with which it is made.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("pyproject.toml", "README.md", "mcfuser", "db", "service")
"""What the wheel is made from; left-overs of earlier builds beside it would get into it."""
OLDEST = 5
"""The oldest minor version of glibc 2 that wheels are made for."""
LEGACY = {"manylinux1": 5, "manylinux2010": 12, "manylinux2014": 17}
"""Names of wheels for a glibc 2.x, from before they named it."""
TOLD = 12
"""Lines of what pip says that are shown where it fails."""

_TARGET = """
import json, platform, sys
print(json.dumps({"version": "%d.%d" % sys.version_info[:2], "machine": platform.machine(),
                  "system": platform.system()}))
"""


class BundleError(Exception):
    """The bundle cannot be made, and what to do."""


@dataclass(frozen=True)
class Target:
    """A Python, by its command, and the machines that the bundle is for: those with its
    architecture and at least this glibc."""

    python: str
    version: str
    machine: str
    glibc: int

    @property
    def platforms(self) -> list[str]:
        """The tags of wheels that run there, as pip takes them."""
        named = [f"manylinux_2_{n}_{self.machine}" for n in range(self.glibc, OLDEST - 1, -1)]
        old = [f"{name}_{self.machine}" for name, n in LEGACY.items() if n <= self.glibc]
        return [*named, *old, f"linux_{self.machine}"]


def target(python: str, glibc: str) -> Target:
    """What a bundle that is made with a Python is for; `glibc` is as 2.28."""
    major, _, minor = glibc.partition(".")
    if major != "2" or not minor.isdecimal() or int(minor) < OLDEST:
        raise BundleError(f"--glibc is '{glibc}'; give a version such as 2.28")
    try:
        told = subprocess.run(
            [python, "-c", _TARGET], check=True, capture_output=True, text=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        raise BundleError(
            f"--python is '{python}', which is no Python that runs here; give one, as python3.11"
        ) from None
    found = json.loads(told)
    if found["system"] != "Linux":
        raise BundleError(f"bundles are made on Linux, for Linux; this is {found['system']}")
    return Target(python, found["version"], found["machine"], int(minor))


def make(
    output: Path,
    target: Target,
    extras: Sequence[str],
    project: Path = ROOT,
    sources: Sequence[str] = (),
) -> None:
    """Makes the bundle in a folder that is not there yet; `sources` are options of pip's that say
    where wheels come from. Raises BundleError where pip finds no wheel."""
    if output.exists():
        raise BundleError(f"{output} is there already; remove it, or give another folder")
    lock = project / "requirements.lock"
    with tempfile.TemporaryDirectory(dir=_parent(output)) as folder:
        made = Path(folder) / "bundle"
        wheels = made / "wheels"
        wheels.mkdir(parents=True)
        own = _built(target, project, wheels, Path(folder) / "source", sources)
        wanted = f"{own}[{','.join(extras)}]" if extras else str(own)
        platforms = [word for name in target.platforms for word in ("--platform", name)]
        _pip(
            target, "download", "--dest", str(wheels), "--only-binary", ":all:",
            "--constraint", str(lock), *platforms, *sources, wanted,
        )  # fmt: skip
        (made / "requirements.txt").write_text(requirements(wheels))
        script = (Path(__file__).parent / "install.sh.in").read_text()
        for name in ("version", "machine"):
            script = script.replace(f"@{name}@", getattr(target, name))
        (made / "install.sh").write_text(script)
        (made / "install.sh").chmod(0o755)
        (made / "SHA256SUMS").write_text(sums(made))
        made.chmod(0o755)
        made.rename(output)


def _parent(output: Path) -> Path:
    parent = output.absolute().parent
    if not parent.is_dir():
        raise BundleError(f"there is no folder {parent}; make it first")
    return parent


def _built(target: Target, project: Path, wheels: Path, copy: Path, sources: Sequence[str]) -> Path:
    """The wheel of the project, built from a copy without left-overs."""
    copy.mkdir()
    for path in (project / name for name in SOURCES if (project / name).exists()):
        if path.is_dir():
            shutil.copytree(path, copy / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, copy)
    alone = ["--no-build-isolation"] if "--no-index" in sources else []
    _pip(target, "wheel", "--no-deps", "--wheel-dir", str(wheels), *alone, *sources, str(copy))
    (own,) = wheels.glob("*.whl")
    return own


def requirements(wheels: Path) -> str:
    """Every wheel of a folder by its name and version, with its hash, as pip reads them."""
    lines = []
    for path in sorted(wheels.glob("*.whl")):
        name, version, *_ = path.name.split("-")
        lines.append(f"{name.replace('_', '-')}=={version} --hash=sha256:{digest(path)}\n")
    return "".join(lines)


def sums(folder: Path) -> str:
    """The SHA-256 of every file of a folder, as sha256sum reads them."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != "SHA256SUMS")
    return "".join(f"{digest(p)}  {p.relative_to(folder).as_posix()}\n" for p in files)


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _pip(target: Target, *words: str) -> None:
    done = subprocess.run(
        [target.python, "-m", "pip", "--disable-pip-version-check", *words],
        check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    if done.returncode != 0:
        said = "\n".join(f"  {line}" for line in done.stdout.strip().splitlines()[-TOLD:])
        raise BundleError(f"pip {words[0]} failed, and says in the end:\n{said}")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, required=True, help="a folder to make")
    parser.add_argument(
        "--extra", action="append", default=[], choices=("gpu", "postgres"), help="may be repeated"
    )
    parser.add_argument("--python", default=sys.executable, help="the Python it is for, with pip")
    parser.add_argument("--glibc", default="2.28", help="the oldest C library it is for")
    parser.add_argument("--find-links", action="append", default=[], help="a folder of wheels")
    parser.add_argument("--no-index", action="store_true", help="take wheels from there alone")
    given = parser.parse_args(words)
    sources = [word for place in given.find_links for word in ("--find-links", place)]
    sources += ["--no-index"] if given.no_index else []
    try:
        make(given.output, target(given.python, given.glibc), given.extra, ROOT, sources)
    except BundleError as error:
        print(error, file=sys.stderr)
        return 1
    size = sum(p.stat().st_size for p in given.output.rglob("*") if p.is_file())
    count = len(list((given.output / "wheels").iterdir()))
    print(f"{given.output}: {count} wheels, {size / 1e6:,.0f} MB")
    print(f"SHA256SUMS has the SHA-256 {digest(given.output / 'SHA256SUMS')}")
    print(f"copy the folder, and run there: {given.output.name}/install.sh /opt/mcfuser")
    return 0


if __name__ == "__main__":
    sys.exit(main())
