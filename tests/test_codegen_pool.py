"""Compiling side by side, in processes that are kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mcfuser.chain import gemm
from mcfuser.codegen.cubin import Binary
from mcfuser.codegen.pool import Compilers
from mcfuser.codegen.triton import Lowering, generate
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
