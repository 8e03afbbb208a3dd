"""Shell completion: what a shell asks, and what it gets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("numpy", "onnx", "sqlalchemy", "sympy", "triton", "tvm", "tvm_ffi")


def completed(words: str) -> list[str]:
    """What bash is told for a line, whose last word is being written; the compilers must not be
    loaded for it."""
    code = (
        "import sys\nfrom mcfuser.cli.command import main\ntry:\n    main()\nfinally:\n"
        f"    print(*[m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    asked = {
        "_MCFUSER_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, **asked},
    )  # fmt: skip
    assert done.stderr.strip() == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("mcfuser comp", {"compile"}),
        ("mcfuser compile --pre", {"--precision"}),
        ("mcfuser compile m.onnx --device nvidia/h", {"nvidia/h100", "nvidia/h200"}),
        ("mcfuser compile m.onnx --precision ", {"fp16", "bf16", "tf32"}),
        ("mcfuser space c.json --space ch", {"chimera"}),
    ],
)
def test_commands_options_and_values_are_completed_without_a_compiler(
    words: str, expected: set[str]
) -> None:
    assert set(completed(words)) == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_its_script(shell: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mcfuser.cli"], capture_output=True, text=True, check=True,
        env={**os.environ, "_MCFUSER_COMPLETE": f"source_{shell}"},
    )  # fmt: skip
    assert f"complete_{shell}" in done.stdout and "mcfuser" in done.stdout


def test_bash_completes_with_the_script(tmp_path: Path) -> None:
    """As a person's shell does: the script is read, and its function is called."""
    program = tmp_path / "mcfuser"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m mcfuser.cli "$@"\n')
    program.chmod(0o755)
    script = (
        'eval "$(_MCFUSER_COMPLETE=source_bash mcfuser)"; COMP_WORDS=(mcfuser dev); COMP_CWORD=1; '
        '_mcfuser_completion mcfuser; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", script], capture_output=True, text=True, check=True,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.stdout.split() == ["devices", "device"] and done.stderr == ""
