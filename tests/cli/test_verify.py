"""`mcfuser verify`: its sentences, its JSON, its status, and what it loads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mcfuser.signing.folder import ENVELOPE, sign
from tests.support.command import mcfuser
from tests.support.signatures import MODEL, private_key, write_compilation, write_keys

KEY = private_key()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_keys(tmp_path, KEY)
    made = write_compilation(tmp_path / "out")
    (made / ENVELOPE).write_bytes(sign(made, KEY))
    return made


def test_each_thing_that_is_wrong_is_a_line(folder: Path, tmp_path: Path) -> None:
    (folder / "module.so").unlink()
    (folder / "report.json").write_text("{}")
    (tmp_path / "other.onnx").write_bytes(MODEL + b"x")
    words = ("verify", "out", "--key", "release.pub", "--model", "other.onnx")
    done = mcfuser(*words, data=tmp_path, folder=tmp_path)
    assert done.returncode == 1 and done.stderr == ""
    first, second, third = done.stdout.splitlines()
    assert first.startswith("module.so cannot be read")
    assert second.startswith("report.json has 2 bytes")
    assert third.startswith("model 'other.onnx' is not the one that was compiled")
    told = json.loads(mcfuser(*words, "--json", data=tmp_path, folder=tmp_path).stdout)
    assert told["verified"] is False and told["wrong"] == [first, second, third]
    assert told["key"] == KEY.public.keyid and told["predicate"]["built"]


def test_nothing_is_told_of_what_a_stranger_states(folder: Path, tmp_path: Path) -> None:
    (folder / ENVELOPE).write_bytes(sign(folder, private_key(2)))
    done = mcfuser("verify", "out", "--key", "release.pub", "--json", data=tmp_path,
                   folder=tmp_path)  # fmt: skip
    told = json.loads(done.stdout)
    assert done.returncode == 1 and (told["verified"], told["predicate"]) == (False, None)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["none", "--key", "release.pub"], "'none' is no folder; give one that compile wrote"),
        (["out", "--key", "none"], "public key 'none' cannot be read: No such file"),
        (["out", "--key", "release.pub", "--model", "none"], "model 'none' cannot be read"),
        (["out", "--key", "release.pub", "--model", "out"], "it is a folder, not a file"),
    ],
)
def test_a_mistake_is_one_sentence(
    folder: Path, tmp_path: Path, words: list[str], sentence: str
) -> None:
    done = mcfuser("verify", *words, data=tmp_path, folder=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and sentence in done.stderr


def test_without_a_key_nothing_is_verified(folder: Path, tmp_path: Path) -> None:
    done = mcfuser("verify", "out", data=tmp_path, folder=tmp_path)
    assert done.returncode == 2 and "--key" in done.stderr


def test_it_loads_neither_tvm_nor_the_module(folder: Path, tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from mcfuser.cli.command import app\n"
        "sys.argv = ['mcfuser', 'verify', 'out', '--key', 'release.pub']\n"
        "try: app()\n"
        "except SystemExit as end: assert not end.code\n"
        "maps = open('/proc/self/maps').read()\n"
        "assert 'module.so' not in maps and 'libtvm' not in maps\n"
        "print(*[m for m in ('tvm', 'numpy', 'onnx', 'sqlalchemy') if m in sys.modules])\n"
    )
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == ""
