"""The files by which the service is run say what docs/service.md promises."""

from __future__ import annotations

import configparser
import re

import pytest

from tests.support.paths import ROOT

DEPLOY = ROOT / "deploy"


def unit() -> dict[str, str]:
    parser = configparser.RawConfigParser(strict=False, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(DEPLOY / "mcfuser.service")
    return dict(parser["Service"])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WorkingDirectory", "%S/mcfuser"), ("UMask", "0077"), ("StateDirectoryMode", "0700"),
        ("RuntimeDirectoryMode", "0700"), ("NoNewPrivileges", "yes"), ("ProtectSystem", "strict"),
        ("MemoryMax", "90%"), ("CapabilityBoundingSet", ""), ("LockPersonality", "yes"),
        ("SystemCallFilter", "@system-service"), ("ProtectProc", "invisible"),
    ],
)  # fmt: skip
def test_the_unit_is_closed(name: str, value: str) -> None:
    assert unit()[name] == value


def test_the_unit_s_locks_lie_in_its_runtime_folder() -> None:
    assert "XDG_RUNTIME_DIR=%t/mcfuser" in unit()["Environment"]
    assert unit()["RuntimeDirectory"] == "mcfuser"


def test_an_image_asks_for_keys_and_is_published_on_loopback_alone() -> None:
    image = (DEPLOY / "Containerfile").read_text()
    compose = (DEPLOY / "compose.yaml").read_text()
    assert "MCFUSER_INSECURE" not in image + compose
    assert "MCFUSER_HOST=0.0.0.0 MCFUSER_ALLOWED_HOSTS=localhost" in image
    published = re.findall(r'^ +- "(.*:8642)"$', compose, re.MULTILINE)
    assert published == ["127.0.0.1:8642:8642"]


def test_containers_share_one_lock() -> None:
    image = (DEPLOY / "Containerfile").read_text()
    compose = (DEPLOY / "compose.yaml").read_text()
    assert "XDG_RUNTIME_DIR=/run/mcfuser" in image
    assert "--mode=0700 /data /run/mcfuser" in image
    assert "- locks:/run/mcfuser" in compose and re.search(r"^  locks:", compose, re.MULTILINE)
