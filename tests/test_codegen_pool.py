"""Compiling side by side, in processes that are kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mcfuser.chain import gemm
from mcfuser.codegen.cubin import Binary
from mcfuser.codegen.pool import Compilers, Pending, outcome
from mcfuser.codegen.triton import Lowering, Source, generate
from mcfuser.device import CATALOGUE
from mcfuser.space.prune import distinct, prune, space
from mcfuser.space.statement import Illegal


def source():
    chain = gemm(1, 64, 64, 32, 32, "float16")
    plan, tiles = distinct(prune(space(chain), CATALOGUE["nvidia/h200"])[0]).tables[0]
    schedule = plan.schedule(dict(zip(plan.axes, (int(n) for n in tiles[0]), strict=True)))
    return generate(schedule, "kernel", Lowering(4, 2))


@pytest.fixture(scope="module")
def compilers():
    with Compilers(2) as made:
        made.warm()
        yield made


def test_each_source_gets_its_answer(compilers) -> None:
    right = source()
    broken = replace(right, text=right.text.replace("tl.dot", "tl.no_such_thing", 1))
    crash = replace(
        right, text=right.text.replace("@triton.jit", "import os; os.abort()\n@triton.jit", 1)
    )
    found = dict(compilers.compile([right, broken, crash, right], "sm_90"))
    assert isinstance(found[0], Binary) and isinstance(found[3], Binary)
    assert "does not compile" in str(found[1]) and "crashed" in str(found[2])


def test_after_a_crash_the_processes_are_new(compilers) -> None:
    ((_, found),) = compilers.compile([source()], "sm_90")
    assert isinstance(found, Binary)


def test_a_straggler_is_given_up(compilers) -> None:
    right = source()
    slow = replace(
        right,
        text=right.text.replace("@triton.jit", "import time; time.sleep(20)\n@triton.jit", 1),
    )
    found = dict(compilers.compile([right, right, right, slow], "sm_90", patience=0.5))
    assert isinstance(found[0], Binary)
    assert isinstance(found[3], Illegal) and "longer than its peers" in str(found[3])


def held(right: Source, gate: Path, then: str = "pass") -> Source:
    """A source that compiles only once the gate is there."""
    words = f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.05)\n{then}"
    return replace(right, text=right.text.replace("@triton.jit", f"{words}\n@triton.jit", 1))


def test_a_straggler_may_go_on(compilers, tmp_path: Path) -> None:
    right, gate = source(), tmp_path / "gate"
    late: list[tuple[int, Pending]] = []
    made = compilers.compile([right, held(right, gate), right, right], "sm_90", 0.0, late)
    found = dict(made)
    gate.touch()
    assert {*found} == {0, 2, 3} and [i for i, _ in late] == [1]
    came = outcome(late[0][1])
    assert isinstance(came, Binary) and came.cubin == found[0].cubin


def test_a_straggler_whose_process_ends_is_one_reason(tmp_path: Path) -> None:
    right, gate = source(), tmp_path / "gate"
    late: list[tuple[int, Pending]] = []
    with Compilers(2) as others:
        crash = held(right, gate, "os.abort()")
        assert {*dict(others.compile([right, crash, right, right], "sm_90", 0.0, late))} == {
            0,
            2,
            3,
        }
        gate.touch()
        assert "the compiler crashed" in str(outcome(late[0][1]))
        ((_, after),) = others.compile([right], "sm_90")
    assert isinstance(after, Binary)
