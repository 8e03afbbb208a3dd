"""Folders that are signed, checked, and tampered with."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mcfuser.errors import InputError, SignatureError
from mcfuser.signing.folder import ENVELOPE, LARGEST, sign, verified, verify
from tests.support.signatures import (
    MODEL,
    MODULE,
    REPORT,
    WEIGHTS,
    private_key,
    sha256,
    write_compilation,
)

KEY = private_key()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A signed folder."""
    made = write_compilation(tmp_path / "out")
    (made / ENVELOPE).write_bytes(sign(made, KEY))
    return made


def wrong(folder: Path, model: Path | None = None) -> tuple[str, ...]:
    return verify(folder, KEY.public, model).wrong


def test_a_signed_folder_is_verified(folder: Path) -> None:
    found = verify(folder, KEY.public)
    assert found.wrong == () and found.keyid == KEY.public.keyid
    assert found.statement is not None and found.statement.predicate["device"]["name"] == "cpu"


def replaced(path: Path, data: bytes) -> None:
    path.unlink()
    path.write_bytes(data)


def linked(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def huge(path: Path) -> None:
    os.truncate(path, 1 << 42)


TAMPERED: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "another module": ("module.so", lambda p: replaced(p, MODULE[:-1] + b"x"), "is not the signed"),
    "a longer module": ("module.so", lambda p: replaced(p, MODULE + b"x"), "has 11001 bytes; the"),
    "an endless module": ("module.so", huge, "has 4398046511104 bytes"),
    "no module": ("module.so", Path.unlink, "cannot be read: No such file"),
    "a link to the module": ("module.so", linked, "it is a link, not a file"),
    "a pipe for a module": ("module.so", piped, "it is a pipe, socket or device"),
    "a folder for a module": ("module.so", lambda p: (p.unlink(), p.mkdir()), "cannot be read: "),
    "another report": ("report.json", lambda p: replaced(p, b"{}"), "has 2 bytes"),
    "a link to the report": ("report.json", linked, "it is a link"),
    "no envelope": (ENVELOPE, Path.unlink, "is not signed: it has no module.intoto.jsonl"),
    "a link to the envelope": (ENVELOPE, linked, "it is a link"),
    "a pipe for an envelope": (ENVELOPE, piped, "it is a pipe"),
    "an endless envelope": (ENVELOPE, huge, f"has more than {LARGEST} bytes"),
    "an empty envelope": (ENVELOPE, lambda p: replaced(p, b""), "is no DSSE envelope"),
}  # fmt: skip


@pytest.mark.parametrize("name", TAMPERED)
def test_what_was_tampered_with_is_named(folder: Path, name: str) -> None:
    file, tamper, words = TAMPERED[name]
    tamper(folder / file)
    (sentence,) = wrong(folder)
    assert file in sentence and words in sentence and sentence.isprintable()
    with pytest.raises(SignatureError) as caught, verified(folder, KEY.public):
        pytest.fail("it is handed out")
    assert str(caught.value) == sentence


def test_all_that_is_wrong_is_told(folder: Path) -> None:
    (folder / "module.so").unlink()
    (folder / "report.json").write_text("{}")
    assert [sentence.split()[0] for sentence in wrong(folder)] == ["module.so", "report.json"]


def test_another_folders_envelope_is_about_other_files(folder: Path, tmp_path: Path) -> None:
    other = write_compilation(tmp_path / "other", seed=8)
    (other / ENVELOPE).write_bytes((folder / ENVELOPE).read_bytes())
    assert [sentence.split()[0] for sentence in wrong(other)] == ["report.json"]


def test_a_strangers_folder_is_refused_and_its_statement_not_read(folder: Path) -> None:
    found = verify(folder, private_key(2).public)
    assert len(found.wrong) == 1 and "was signed by another key" in found.wrong[0]
    assert found.statement is None


def test_the_model_is_the_stated_one(folder: Path, tmp_path: Path) -> None:
    model, weights = tmp_path / "model.onnx", tmp_path / "model.onnx.data"
    model.write_bytes(MODEL)
    weights.write_bytes(WEIGHTS)
    assert wrong(folder, model) == ()
    weights.write_bytes(b"other weights")
    (sentence,) = wrong(folder, model)
    assert "'model.onnx.data' with weights of model" in sentence and "not the one" in sentence
    weights.unlink()
    (sentence,) = wrong(folder, model)
    assert "cannot be read: No such file" in sentence
    model.write_bytes(b"another model")
    (sentence,) = wrong(folder, model)
    assert "is not the one that was compiled: its sha256 is " + sha256(b"another model") in sentence
    with pytest.raises(InputError, match=r"none\.onnx' cannot be read"):
        wrong(folder, tmp_path / "none.onnx")


def test_a_model_may_be_the_archive_that_was_posted(tmp_path: Path) -> None:
    posted = tmp_path / "model.zip"
    posted.write_bytes(b"PK archive")
    stated = REPORT["model"] | {"archive": sha256(b"PK archive")}
    out = write_compilation(tmp_path / "out", model=stated)
    (out / ENVELOPE).write_bytes(sign(out, KEY))
    assert wrong(out, posted) == ()


def test_what_is_handed_out_is_what_was_checked(folder: Path) -> None:
    """Whatever becomes of the original meanwhile."""
    with verified(folder, KEY.public) as copy:
        (folder / "module.so").write_bytes(b"changed")
        assert (copy / "module.so").read_bytes() == MODULE
        assert (copy / "report.json").read_bytes() == (folder / "report.json").read_bytes()
        assert copy.stat().st_mode & 0o777 == 0o700
        assert {p.name for p in copy.iterdir()} == {"module.so", "report.json"}
    assert not copy.exists()


def test_only_a_compilation_is_signed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"module\.so cannot be read: No such file"):
        sign(tmp_path, KEY)
    out = write_compilation(tmp_path / "out")
    (out / "module.so").write_bytes(b"another")
    with pytest.raises(InputError, match=r"is not the one that report\.json tells of"):
        sign(out, KEY)
    linked(out / "report.json")
    with pytest.raises(InputError, match=r"report\.json cannot be read: it is a link"):
        sign(out, KEY)
    os.truncate(write_compilation(tmp_path / "big") / "report.json", LARGEST + 1)
    with pytest.raises(InputError, match=f"has more than {LARGEST} bytes"):
        sign(tmp_path / "big", KEY)


def test_without_a_key_the_statement_alone_is_given(folder: Path) -> None:
    assert sign(folder, None).startswith(b'{"_type":"https://in-toto.io/Statement/v1"')
