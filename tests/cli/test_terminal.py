"""How commands end: a full disk, a reader that has gone, words that mean nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from mcfuser.cli.command import app
from mcfuser.cli.terminal import ended

COMMANDS = (
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


@pytest.mark.thorough
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


@pytest.mark.thorough
@pytest.mark.parametrize("words", COMMANDS)
def test_a_reader_that_has_gone_is_no_news(words: tuple[str, ...], tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    status, told = ran(words, tmp_path, writer)
    os.close(writer)
    assert (status, told) == (1, "")


def test_no_standard_output_at_all(tmp_path: Path) -> None:
    command = f"exec {sys.executable} -m mcfuser.cli device h100 >&-"
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


def test_a_deep_chain_file_is_told_by_the_command(tmp_path: Path) -> None:
    path = tmp_path / "chain.json"
    path.write_bytes(b"[" * 100_000)
    status, told = ran(("explain", str(path)), tmp_path, subprocess.DEVNULL)
    assert (status, told) == (2, f"mcfuser: chain file '{path}' is nested too deep to be read\n")


def test_a_question_that_is_not_answered_is_one_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asking = typer.Typer()

    @asking.command()
    def ask() -> None:
        raise typer.Abort  # as a prompt does where standard input ends

    assert ended(asking, ()) == 1
    assert capsys.readouterr().err == ("mcfuser: nothing was done: the question was not answered\n")


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
def test_words_that_are_none(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(app, words) == 2
    told = capsys.readouterr().err
    assert told.startswith("mcfuser: ") and told.count("\n") == 1
