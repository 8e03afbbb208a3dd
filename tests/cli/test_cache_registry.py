"""Kernels are pushed to a registry and pulled by the command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mcfuser.cli import cache_registry
from mcfuser.cli.cache import app
from mcfuser.errors import InputError
from mcfuser_db import Storage
from mcfuser_service import importing
from mcfuser_service.importing import Imported
from mcfuser_service.oci import transfer
from mcfuser_service.oci.reference import Reference
from mcfuser_service.oci.transfer import Login, Pulled
from tests.support.cache_command import cache
from tests.support.kernels import tuned
from tests.support.records import line, searched
from tests.support.registries import needs_oras, needs_registry, real_registry

WHERE = "oci://ci.example/kernels:main"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    monkeypatch.setenv("MCFUSER_DATA", str(tmp_path))
    with closing(Storage(f"sqlite:///{tmp_path / 'mcfuser.db'}")) as store:
        yield store


@dataclass
class Pretended:
    """A registry that takes everything, and gives some lines."""

    pushed: list[tuple[bytes, Reference, dict[str, str]]] = field(default_factory=list)
    access: list[Login] = field(default_factory=list)

    def push(self, file: Path, where: Reference, notes: dict[str, str], access: Login) -> str:
        self.pushed.append((file.read_bytes(), where, notes))
        self.access.append(access)
        return "sha256:0"

    def pull(self, file: Path, where: Reference, access: Login) -> Pulled:
        file.write_text("kept known refused")
        self.access.append(access)
        return Pulled("sha256:1", "sha256:2", {})


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Pretended:
    made = Pretended()
    monkeypatch.setattr(transfer, "push", made.push)
    monkeypatch.setattr(transfer, "pull", made.pull)
    return made


def test_what_is_pushed_is_what_is_exported(
    store: Storage, pretended: Pretended, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="no kernel is kept that could be pushed"):
        cache("push", WHERE)
    store.put(searched())
    assert "pushed 1 kernels to oci://ci.example/kernels:main (sha256:0)" in cache(
        "push", WHERE
    ).stdout.replace("\n", "")
    ((data, where, notes),) = pretended.pushed
    cache("export", str(tmp_path / "x"))
    assert data == (tmp_path / "x").read_bytes() and str(where) == WHERE
    assert notes["vnd.mcfuser.kernels"] == "1" and notes["vnd.mcfuser.devices"] == "cpu"
    assert "llvm " in notes["vnd.mcfuser.toolchain"] and notes["vnd.mcfuser.format"] == "1"
    assert notes["org.opencontainers.image.created"].endswith("Z")
    store.put(tuned(device="nvidia/h200"))
    document = json.loads(cache("push", WHERE, "--device", "cpu", "--json").stdout)
    assert document["digest"] == "sha256:0" and document["kernels"] == 1
    assert document["reference"] == WHERE and document["devices"] == ["cpu"]


def test_what_is_pulled_is_imported(
    store: Storage, pretended: Pretended, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "_MODULE", "tests.support.import_dies")
    document = json.loads(cache("pull", WHERE, "--json", status=1).stdout)
    assert document == {
        "reference": WHERE, "digest": "sha256:1", "kept": 1, "known": 1,
        "refused": [{"line": 4, "reason": "a reason"}],
    }  # fmt: skip
    text = cache("pull", WHERE, status=1).stdout
    assert "pulled oci://ci.example/kernels:main (sha256:1)" in text.replace("\n", "")
    assert "line 4 is refused: a reason" in text and "1 were there already" in text


def test_a_password_comes_from_a_file_or_from_standard_input(
    store: Storage, pretended: Pretended, tmp_path: Path
) -> None:
    store.put(searched())
    (secret := tmp_path / "password").write_bytes(b"s e\r\nno more")
    cache("push", WHERE, "--username", "ci", "--password-file", str(secret), "--plain-http")
    words = ["push", WHERE, "--username", "ci", "--password-stdin", "--transfer-timeout", "1m"]
    assert CliRunner().invoke(app, words, input="word\n").exit_code == 0
    assert pretended.access == [
        Login(True, "ci", "s e", 300.0),
        Login(False, "ci", "word", 60.0),
    ]
    assert "word" not in repr(pretended.access[1])


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["http://h/k:x"], "names no artefact of a registry"),
        ([WHERE, "--password-stdin"], "a password and no user"),
        ([WHERE, "--username", "a:b", "--password-stdin"], "has a colon"),
        ([WHERE, "--username", "a"], "no terminal to ask for it; give --password-file"),
        ([WHERE, "--username", "a", "--password-stdin"], "is empty"),
        ([WHERE, "--username", "a", "--password-file", "no"], "password file 'no' cannot be read"),
        ([WHERE, "--transfer-timeout", "x"], "transfer-timeout 'x' is not a time"),
        (
            [WHERE, "--username", "a", "--password-file", "no", "--password-stdin"],
            "choose one",
        ),
    ],
)
@pytest.mark.parametrize("command", ["push", "pull"])
def test_what_cannot_be_done_is_said(
    store: Storage, pretended: Pretended, command: str, words: list[str], why: str
) -> None:
    with pytest.raises(InputError, match=why):
        cache(command, *words)
    assert not pretended.access


@needs_oras
@needs_registry
def test_kernels_go_from_one_machine_to_another_through_a_registry(
    store: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = list[bytes]()

    def imported(file: Path, limit: float) -> Imported:
        taken.append(file.read_bytes())
        return Imported(kept=1)

    monkeypatch.setattr(cache_registry, "imported", imported)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    store.put(searched())
    (tmp_path / "registry").mkdir()
    with real_registry(tmp_path / "registry") as host:
        pushed = json.loads(cache("push", f"oci://{host}/team/k:x", "--json").stdout)
        monkeypatch.setenv("MCFUSER_DATA", str(tmp_path / "other"))
        pinned = f"oci://{host}/team/k@{pushed['digest']}"
        pulled = json.loads(cache("pull", pinned, "--json").stdout)
        assert pulled == {
            "reference": pinned, "digest": pushed["digest"], "kept": 1, "known": 0, "refused": []
        }  # fmt: skip
        assert taken[0].decode().splitlines()[1:] == [line(searched())]
        monkeypatch.setenv("MCFUSER_TEAM_CACHE", f"oci://{host}/team/k:x")
        monkeypatch.setenv("MCFUSER_DATA", str(tmp_path / "third"))
        assert "the team's cache has a kernel" in cache("explain", searched().chain.key).stdout
