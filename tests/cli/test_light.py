"""What the command costs before it does anything."""

from __future__ import annotations

import os
import subprocess
import sys

HEAVY = (
    "alembic", "cryptography", "cuda", "fastapi", "mcfuser_db", "mcfuser_service", "numpy", "onnx",
    "onnxruntime", "pydantic", "sqlalchemy", "sympy", "torch", "triton", "tvm", "tvm_ffi",
    "uvicorn",
)  # fmt: skip


def test_the_command_loads_neither_compiler_nor_database_nor_server() -> None:
    code = (
        "import sys, mcfuser.cli, mcfuser.cli.command; "
        f"print(*[m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_help_takes_at_most_twice_as_long_as_the_libraries_that_print_it() -> None:
    """That is 0.3 s on an idle machine; on a busy one both take longer by the same factor."""
    ours, theirs = [], []
    for _ in range(5):
        theirs.append(processor_seconds("-c", "import typer, typer.rich_utils"))
        ours.append(processor_seconds("-m", "mcfuser.cli", "--help"))
    assert min(ours) < 2 * min(theirs)


def processor_seconds(*words: str) -> float:
    before = os.times()
    subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True)
    after = os.times()
    user = after.children_user - before.children_user
    return user + after.children_system - before.children_system
