"""How commands end: a full disk, a reader that has gone, files that are not what they should be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mcfuser.arguments.duration import LONGEST, seconds
from mcfuser.arguments.files import check_readable, read_json
from mcfuser.arguments.shapes import shapes
from mcfuser.cli.command import app
from mcfuser.cli.options import read_chain
from mcfuser.cli.results import read_report
from mcfuser.cli.terminal import ended
from mcfuser.errors import InputError

COMMANDS = (
    ("devices",),
    ("device", "h100", "--json"),
    ("explain", "gemm:1,64,64,32,32"),
    ("--help",),
)


def ran(words: tuple[str, ...], data: Path, stdout: int, **more: str) -> tuple[int, str]:
    child = subprocess.run(
        [sys.executable, "-m", "mcfuser.cli", *words], stdout=stdout, stderr=subprocess.PIPE,
        env={**os.environ, "MCFUSER_DATA": str(data), **more}, check=False, text=True,
    )  # fmt: skip
    return child.returncode, child.stderr


@pytest.mark.parametrize("words", COMMANDS)
def test_a_full_device_is_one_sentence(words: tuple[str, ...], tmp_path: Path) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    status, told = ran(words, tmp_path, full)
    os.close(full)
    assert status == 1
    assert told == (
        "mcfuser: the output cannot be written: No space left on device; free some space and try "
        "again\n"
    )


@pytest.mark.parametrize("words", COMMANDS)
def test_a_reader_that_has_gone_is_no_news(words: tuple[str, ...], tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    status, told = ran(words, tmp_path, writer)
    os.close(writer)
    assert (status, told) == (1, "")


def test_no_standard_output_at_all(tmp_path: Path) -> None:
    command = f"exec {sys.executable} -m mcfuser.cli devices >&-"
    child = subprocess.run(
        ["sh", "-c", command], stderr=subprocess.PIPE, check=False,
        env={**os.environ, "MCFUSER_DATA": str(tmp_path)},
    )  # fmt: skip
    assert (child.returncode, child.stderr) == (0, b"")


def test_a_full_device_for_errors_leaves_the_status(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        child = subprocess.run(
            [sys.executable, "-m", "mcfuser.cli", "space", "gemm:1"], stderr=full,
            stdout=subprocess.PIPE, check=False,
            env={**os.environ, "MCFUSER_DATA": str(tmp_path)},
        )  # fmt: skip
    assert (child.returncode, child.stdout) == (2, b"")


def test_what_a_terminal_cannot_show_is_escaped(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    document = {"name": "中", "axes": {"m": 4}, "operators": ["Y[m] = X[m]"]}
    path.write_text(json.dumps(document | {"tensors": {"X": {"shape": ["m"]}}}))
    child = subprocess.run(
        [sys.executable, "-m", "mcfuser.cli", "space", str(path)], capture_output=True, check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "MCFUSER_DATA": str(tmp_path)},
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    assert b"\\u4e2d" in child.stdout


FILES = {
    "deep lists": b"[" * 100_000,
    "deep objects": b'{"axes":' * 100_000,
    "deep inside": b'{"operators": ["Y[m] = X[m]"], "axes": ' + b"[" * 900 + b"]" * 900 + b"}",
    "a deep line": json.dumps({"axes": {"m": 4}, "operators": ["Y[m] = " + "(" * 90_000]}).encode(),
    "signs": json.dumps({"axes": {"m": 4}, "operators": ["Y[m] = " + "-" * 90_000 + "1"]}).encode(),
    "no UTF-8": b'{"name": "\xff\xfe"}',
    "a long number": b'{"axes": {"m": ' + b"9" * 5000 + b"}}",
    "not a number": b'{"axes": {"m": NaN}, "operators": []}',
    "a list": b"[]",
    "nothing": b"",
    "a surrogate": b'{"name": "\\ud800", "axes": {"m": 1}, "operators": ["Y[m] = m"]}',
}


@pytest.mark.parametrize("name", FILES)
def test_a_chain_file_that_is_none_is_one_sentence(name: str, tmp_path: Path) -> None:
    path = tmp_path / "chain.json"
    path.write_bytes(FILES[name])
    with pytest.raises(InputError) as refused:
        read_chain(str(path), "float32")
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 600


def test_a_deep_chain_file_is_told_by_the_command(tmp_path: Path) -> None:
    path = tmp_path / "chain.json"
    path.write_bytes(FILES["deep lists"])
    status, told = ran(("explain", str(path)), tmp_path, subprocess.DEVNULL)
    assert (status, told) == (2, f"mcfuser: chain file '{path}' is nested too deep to be read\n")


@pytest.mark.parametrize(
    "words",
    [
        ("space", "gemm:" + ",".join(["9" * 5000] * 5)),
        ("space", "attention:0,1,1,1,1"),
        ("compile", "m.onnx", "-o", "o", "--shape", "x=" + "9" * 5000),
        ("compile", "m.onnx", "-o", "o", "--timeout", "9" * 400),
        ("compile", "m.onnx", "-o", "o", "--timeout", "25h"),
        ("compile", "m.onnx", "-o", "o", "--shape", "x=0"),
        ("compile", ".", "-o", "o"),
        ("explain", "/proc/self/mem.json"),
        ("explain", "x" * 5000 + ".json"),
    ],
)
def test_words_that_are_none(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["mcfuser", *words])
    assert ended(app) == 2
    told = capsys.readouterr().err
    assert told.startswith("mcfuser: ") and told.count("\n") == 1


REPORTS = {
    "a list": [],
    "shapes in words": {"shapes": "x=1"},
    "an extent in words": {"shapes": {"x": ["1"]}},
    "a negative extent": {"shapes": {"x": [-1]}},
    "an extent without end": {"shapes": {"x": [1e400]}},
    "an axis for a shape": {"shapes": {"x": 4}},
    "a device that is none": {"device": 7},
    "a device of words": {"device": {"kind": "cpu"}},
}


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_of_other_types_is_one_sentence(name: str, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(json.dumps(REPORTS[name]))
    with pytest.raises(InputError, match=r"^report '.*compile the model again|must hold an object"):
        read_report(tmp_path)


def test_times_and_shapes_are_read() -> None:
    assert [seconds(w) for w in ("500ms", "60", "60s", "5m", "1h", "24h", " 1.5s ")] == [
        0.5, 60, 60, 300, 3600, 86400, 1.5,
    ]  # fmt: skip
    for bad in ("", "0", "-1", "1e3", "inf", "nan", "25h", "6０s", "5 m", "m", "1.", "9" * 400):
        with pytest.raises(InputError, match="timeout"):
            seconds(bad, most=LONGEST)
    assert shapes(["input=1x128", "a=b:0=007"]) == {"input": (1, 128), "a=b:0": (7,)}


def test_a_large_file_is_not_read_whole(tmp_path: Path) -> None:
    with (tmp_path / "zero").open("wb") as file:
        file.truncate(1 << 40)  # sparse
    with pytest.raises(InputError, match="more than"):
        read_json(tmp_path / "zero", "chain file 'zero'")


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.onnx"
    os.mkfifo(pipe)
    for path, found in ((pipe, "a pipe"), (Path("/dev/zero"), "device"), (tmp_path, "a folder")):
        with pytest.raises(InputError, match=f"model 'm' cannot be read: it is .*{found}"):
            check_readable(path, "model 'm'")
    with pytest.raises(InputError, match="cannot be read: No such file"):
        check_readable(tmp_path / "none", "model 'm'")
