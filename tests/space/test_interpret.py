"""Any placed schedule computes what the chain means."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcfuser.chain import Chain, from_json, to_json
from mcfuser.errors import ChainError
from mcfuser.space.count import count
from mcfuser.space.expression import bind, parse, tilings
from mcfuser.space.interpret import interpret
from mcfuser.space.reference import evaluate
from mcfuser.space.schedule import Schedule
from mcfuser.space.statement import Load, Loop
from tests.support.schedules import LINES, build, random_inputs, schedules
from tests.support.triton_cases import chain_named, scheduled


def agree(schedule: Schedule, plain: Chain, seed: int) -> None:
    inputs = random_inputs(plain, seed)
    expected = evaluate(plain, inputs)
    found, counted = interpret(schedule, inputs)
    predicted = count(schedule)
    assert counted.loaded == predicted.loaded
    assert counted.stored == predicted.stored
    assert counted.padded == predicted.padded
    assert counted.flops == predicted.flops
    for name in plain.outputs:
        scale = np.abs(expected[name]).max() + 1e-30
        np.testing.assert_allclose(found[name] / scale, expected[name] / scale, rtol=0, atol=1e-9)


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(sorted(LINES)),
    st.fixed_dictionaries({a: st.integers(1, 20 if a != "b" else 2) for a in "bmnkh"}),
    st.fixed_dictionaries({a: st.integers(1, 12) for a in "bmnkh"}),
    st.booleans(),
    st.integers(0, 10**6),
)
def test_every_schedule_computes_the_chain(name, extents, tiles, bound, pick) -> None:
    chain = build(name, extents)
    every = tilings(chain)
    expression = every[pick % len(every)]
    if bound:
        expression = bind(chain, expression)
    agree(schedules(chain, expression, tiles), chain, pick)


@pytest.mark.parametrize("text", ["mh.nk", "m.n(k,h)", "mh.kn"])
def test_a_fully_masked_tile_adds_nothing(text: str) -> None:
    chain = build("causal", {"b": 1, "m": 8, "n": 32, "k": 4, "h": 4})
    agree(schedules(chain, parse(text), {"m": 4, "n": 4, "k": 2, "h": 2}), chain, 1)


@pytest.mark.parametrize("n", [1, 7, 16, 33])
@pytest.mark.parametrize("text", ["mh.nk", "m.n(k,h)", "mh.kn", "nmhk"])
def test_one_schedule_serves_every_run_time_extent(n: int, text: str) -> None:
    fixed_chain = build("causal", {"b": 2, "m": 9, "n": n, "k": 5, "h": 6})
    document = to_json(fixed_chain)
    document["axes"]["n"] = [1, 33]  # type: ignore[index]
    chain = from_json(document)
    schedule = schedules(chain, parse(text), {"m": 4, "n": 8, "k": 5, "h": 4})
    agree(schedule.at({"n": n}), fixed_chain, n)
    with pytest.raises(ChainError, match="axis 'n' needs an extent from 1 to 33, not 34"):
        schedule.at({"n": 34})


def test_no_tile_passes_from_one_part_to_another() -> None:
    """Parts run in blocks of their own: what was loaded before them is not there."""
    plain = chain_named("linear", {"m": 4, "n": 4, "k": 16})
    made = scheduled(plain, "mn.k", {"m": 4, "n": 4, "k": 4}, split="k", parts=2)
    inputs = random_inputs(plain, 0)
    (out,) = plain.outputs
    assert np.isfinite(interpret(made, inputs)[0][out]).all()
    (split,) = [s for s in made.body if isinstance(s, Loop) and s.kind == "split"]
    (serial,) = [s for s in split.body if isinstance(s, Loop)]
    load, *rest = serial.body
    assert isinstance(load, Load)
    inside = tuple(replace(s, body=tuple(rest)) if s is serial else s for s in split.body)
    before = tuple(x for s in made.body for x in
                   ((load, replace(split, body=inside)) if s is split else (s,)))  # fmt: skip
    assert np.isnan(interpret(replace(made, body=before), inputs)[0][out]).all()
