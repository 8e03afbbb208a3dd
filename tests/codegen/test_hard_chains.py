"""Chains that kernels once got wrong, by the interpreter and by both back ends."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from mcfuser.codegen import tensorir, triton
from mcfuser.lowering.tensorir.knobs import TensorirKnobs
from mcfuser.space.interpret import interpret
from mcfuser.space.statement import Illegal
from tests.support.hard_chains import HARD, disagree, filled, some
from tests.support.numpy_triton import DTYPES, run
from tests.support.tensorir_agree import compiled
from tests.support.wide_chains import room, seen


@pytest.mark.parametrize("name", HARD)
def test_every_schedule_is_right(name: str) -> None:
    c = HARD[name]
    for i, schedule in enumerate(some(c, 12)):
        flat = filled(c, i)
        found, _ = interpret(schedule, {n: seen(c, n, a) for n, a in flat.items()})
        assert not disagree(c, flat, found), schedule


@pytest.mark.parametrize("name", HARD)
def test_kernels_for_gpus_are_right(name: str) -> None:
    c, count = HARD[name], 0
    for i, schedule in enumerate(some(c, 8)):
        flat = filled(c, i)
        try:
            source = triton.generate(schedule, "kernel")
        except Illegal:
            continue
        poison = {n: np.zeros(room(c, n), DTYPES[c.tensor(n).dtype]) for n in c.outputs}
        held = {n: a.astype(DTYPES[c.tensor(n).dtype]) for n, a in flat.items()} | poison
        run(source, held)
        found = {n: seen(c, n, held[n]) for n in c.outputs}
        assert not disagree(c, flat, found), source.text
        count += 1
    assert count > 2


@pytest.mark.thorough
@pytest.mark.parametrize("name", HARD)
def test_kernels_for_cpus_are_right(name: str) -> None:
    c = HARD[name]
    sources = []
    for i, schedule in enumerate(some(c, 3)):
        try:
            sources.append((i, tensorir.generate(schedule, "kernel", TensorirKnobs(6, 2, 8))))
        except Illegal:
            continue
    assert sources
    calls = compiled([source.text for _, source in sources])
    for (i, source), call in zip(sources, calls, strict=True):
        flat = filled(c, i)
        outs = {n: tvm.runtime.tensor(np.zeros(room(c, n), c.tensor(n).dtype)) for n in c.outputs}
        call(*(tvm.runtime.tensor(flat[n]) for n in c.inputs), *outs.values())
        found = {n: seen(c, n, t.numpy().reshape(-1)) for n, t in outs.items()}
        assert not disagree(c, flat, found), source.text
