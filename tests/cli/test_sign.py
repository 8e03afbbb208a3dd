"""Signing by command: with a compilation, and after it; what runs only if it is signed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from mcfuser.cli.results import write_results
from mcfuser.errors import InputError
from mcfuser.signing.folder import ENVELOPE, verify
from tests.support.command import mcfuser
from tests.support.paths import FIXTURES
from tests.support.signatures import MODULE, REPORT, private_key, write_compilation, write_keys

KEY = private_key()


def test_a_compilation_is_signed_verified_and_run(tmp_path: Path) -> None:
    """The weights are in a file beside the model. A module that was changed is not run."""
    private, public = map(str, write_keys(tmp_path, KEY, b"open sesame"))
    words = tmp_path / "passphrase"
    words.write_text("open sesame\n")
    for name in ("linear.onnx", "linear.onnx.data"):
        shutil.copy(FIXTURES / "external" / name, tmp_path)
    model, out = str(tmp_path / "linear.onnx"), tmp_path / "out"
    done = mcfuser(
        "compile", model, "-o", str(out), "--trials", "1", "--no-cache", "--sign", private,
        "--passphrase-file", str(words), data=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"and {out / ENVELOPE}" in done.stdout
    asked = ("verify", str(out), "--key", public, "--model", model, "--json")
    told = mcfuser(*asked, data=tmp_path)
    assert told.returncode == 0, told.stdout
    predicate = json.loads(told.stdout)["predicate"]
    report = json.loads((out / "report.json").read_text())
    kernels = [k for c in report["chains"] for k in c["kernels"]]
    assert [k["key"] for k in predicate["kernels"]] == [k["key"] for k in kernels] != []
    assert predicate["check"]["errors"] == report["check"]["outputs"]
    assert predicate["device"]["key"] == report["lock"]["device"]
    assert report["shapes"] == {} and predicate["built"] == report["built"]
    run = ("run", str(out), "--verify", public, "--check", model)
    ran = mcfuser(*run, data=tmp_path)
    assert ran.returncode == 0 and "norm-wise relative error" in ran.stdout
    for path in (tmp_path / "linear.onnx.data", out / "module.so"):
        with path.open("r+b") as file:
            file.write(b"\1")
    told = mcfuser(*asked, data=tmp_path)
    first, second = json.loads(told.stdout)["wrong"]
    assert first.startswith("module.so is not the signed one: its sha256 is ")
    assert second.startswith("the file 'linear.onnx.data' with weights of model")
    ran = mcfuser(*run, data=tmp_path)
    assert (ran.returncode, ran.stdout, ran.stderr) == (1, "", f"mcfuser: {first}\n")


def test_what_was_compiled_is_signed_later(tmp_path: Path) -> None:
    private, public = map(str, write_keys(tmp_path, KEY))
    one, other = write_compilation(tmp_path / "a"), write_compilation(tmp_path / "b", seed=8)
    done = mcfuser("sign", str(one), str(other), "--key", private, data=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"wrote {one / ENVELOPE}", f"wrote {other / ENVELOPE}"]
    again = mcfuser("sign", str(one), str(other), "--key", private, "--json", data=tmp_path)
    assert json.loads(again.stdout) == {"envelopes": [str(one / ENVELOPE), str(other / ENVELOPE)]}
    for folder in (one, other):
        told = mcfuser("verify", str(folder), "--key", public, data=tmp_path)
        assert told.returncode == 0 and KEY.public.keyid in told.stdout


def test_what_another_signer_signs_is_printed(tmp_path: Path) -> None:
    out = write_compilation(tmp_path / "out")
    done = mcfuser("sign", str(out), "--statement", data=tmp_path)
    assert json.loads(done.stdout)["subject"][0]["name"] == "module.so"
    assert not (out / ENVELOPE).exists()
    document = mcfuser("sign", str(out), "--statement", "--json", data=tmp_path).stdout
    assert json.loads(document) == {"statements": [done.stdout]}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["sign", "out"], "say with which key to sign"),
        (["sign", "out", "--statement", "--key", "release.key"], "say with which key to sign"),
        (["sign", "out", "--key", "release.pub"], "is a public key"),
        (["sign", "out", "--key", "release.key"], "is encrypted, and there is no terminal to ask"),
        (["sign", "out", "--key", "release.key", "--passphrase-file", "no"], "cannot be read"),
        (["sign", "no", "--statement"], "'no' is no folder that compile wrote"),
        (["compile", "m.onnx", "-o", "x", "--sign", "no"], "'no' cannot be read: No such file"),
        (["compile", "m.onnx", "-o", "x", "--passphrase-file", "no"], "a passphrase and no key"),
        (["run", "out", "--verify", "release.key"], "is a private key, which verifies nothing"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path: Path, words: list[str], sentence: str) -> None:
    """And it is told before anything is compiled."""
    write_keys(tmp_path, KEY, b"open sesame")
    write_compilation(tmp_path / "out")
    (tmp_path / "m.onnx").touch()
    done = mcfuser(*words, data=tmp_path / "data", folder=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1 and sentence in done.stderr
    assert not (tmp_path / "x").exists()


def test_a_folder_never_has_an_envelope_of_earlier_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither after an unsigned compilation, nor where one ends in the middle."""
    report = json.dumps(REPORT).encode()
    written = write_results(tmp_path, MODULE, report, KEY)
    assert [p.name for p in written] == ["module.so", "report.json", ENVELOPE]
    assert verify(tmp_path, KEY.public).wrong == ()
    write_results(tmp_path, b"another module", b"{}", None)
    assert not (tmp_path / ENVELOPE).exists()
    write_results(tmp_path, MODULE, report, KEY)

    def killed(path: Path, data: bytes) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mcfuser.cli.results.write_whole", killed)
    with pytest.raises(KeyboardInterrupt):
        write_results(tmp_path, b"another module", b"{}", None)
    assert not (tmp_path / ENVELOPE).exists()


def test_nothing_is_written_where_nothing_can_be_signed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not say what is to be signed"):
        write_results(tmp_path / "out", MODULE, b"{}", KEY)
    assert not (tmp_path / "out").exists()
