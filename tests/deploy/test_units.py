"""The files by which the service is run say what docs/service.md promises."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import ROOT

DEPLOY = ROOT / "deploy"


UNITS = ("mcfuser.service", "mcfuser-worker@.service")
EXPOSURE = 20
"""The most that systemd may find exposed, in tenths: 96 is a unit that says nothing."""
ANALYZE = shutil.which("systemd-analyze")


def unit(name: str) -> dict[str, str]:
    parser = configparser.RawConfigParser(strict=False, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(DEPLOY / name)
    return dict(parser["Service"])


@pytest.mark.parametrize("name", UNITS)
@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("UMask", "0077"), ("StateDirectoryMode", "0700"), ("RuntimeDirectoryMode", "0700"),
        ("NoNewPrivileges", "yes"), ("ProtectSystem", "strict"), ("MemoryMax", "90%"),
        ("CapabilityBoundingSet", ""), ("LockPersonality", "yes"), ("KillMode", "mixed"),
        ("SystemCallFilter", "@system-service"), ("ProtectProc", "invisible"),
    ],
)  # fmt: skip
def test_units_are_closed(name: str, setting: str, value: str) -> None:
    assert unit(name)[setting] == value


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_s_locks_lie_in_its_runtime_folder(name: str) -> None:
    folder = unit(name)["RuntimeDirectory"]
    assert f"XDG_RUNTIME_DIR=%t/{folder}" in unit(name)["Environment"]
    assert unit(name)["WorkingDirectory"] == f"%S/{unit(name)['StateDirectory']}"


def test_workers_of_one_machine_share_their_lock() -> None:
    assert "%i" not in unit(UNITS[1])["RuntimeDirectory"]
    assert unit(UNITS[1])["RuntimeDirectoryPreserve"] == "yes", "one stops before the others"
    assert "MCFUSER_WORKER_NAME=%H:%i" in unit(UNITS[1])["Environment"]


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("name", UNITS)
def test_systemd_finds_nothing_wrong_and_little_exposed(name: str, tmp_path: Path) -> None:
    text = (DEPLOY / name).read_text()
    installed = re.sub(r"^ExecStart=\S+", f"ExecStart={shutil.which('true')}", text, flags=re.M)
    path = tmp_path / name.replace("@", "@1")
    path.write_text(installed)
    for words in (["verify"], ["security", "--offline=true", f"--threshold={EXPOSURE}"]):
        done = subprocess.run(
            [str(ANALYZE), *words, str(path)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert path.name not in done.stderr, done.stderr


def test_an_image_asks_for_keys_and_is_published_on_loopback_alone() -> None:
    image = (DEPLOY / "Containerfile").read_text()
    compose = (DEPLOY / "compose.yaml").read_text()
    assert "MCFUSER_INSECURE" not in image + compose
    assert "MCFUSER_HOST=0.0.0.0 MCFUSER_ALLOWED_HOSTS=localhost" in image
    published = re.findall(r'^ +- "(.*:8642)"$', compose, re.MULTILINE)
    assert published == ["127.0.0.1:8642:8642"]


def test_images_are_built_from_the_lock_and_run_without_root() -> None:
    image = (DEPLOY / "Containerfile").read_text()
    installed = re.findall(r"pip (.*?)\n\n", image.replace("\\\n", ""), re.DOTALL)
    assert len(installed) == 2
    for words, extras in zip(installed, ("postgres", "postgres,gpu"), strict=True):
        assert "--constraint /source/requirements.lock" in words and f"[{extras}]" in words
    last = image.rindex("AS runtime")
    assert "\nUSER mcfuser\n" in image[last:] and "USER root" not in image
    assert "g++" not in image, "modules are linked by gcc"


def test_an_image_has_what_it_copies() -> None:
    ignored = (ROOT / ".dockerignore").read_text().split()
    image = (DEPLOY / "Containerfile").read_text()
    for line in re.findall(r"^COPY (?!--from)(.*) \S+$", image, re.MULTILINE):
        for path in line.split():
            assert f"!{path}" in ignored and (ROOT / path).exists()


def test_containers_share_one_lock() -> None:
    image = (DEPLOY / "Containerfile").read_text()
    compose = (DEPLOY / "compose.yaml").read_text()
    assert "XDG_RUNTIME_DIR=/run/mcfuser" in image
    assert re.search(r"--mode=0700 /data /run/mcfuser\b", image)
    assert "- locks:/run/mcfuser" in compose and re.search(r"^  locks:", compose, re.MULTILINE)
