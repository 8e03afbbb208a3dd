"""Kernels that read inputs with padding, against what the chain means."""

from __future__ import annotations

import random
import re
import subprocess
import sys

import numpy as np
import pytest

from mcfuser.chain import Bounds, Chain, fixed
from mcfuser.codegen.tensorir import generate
from mcfuser.lowering.tensorir.knobs import TensorirKnobs
from mcfuser.space.expression import bind, tilings
from mcfuser.space.reference import evaluate
from mcfuser.space.schedule import Schedule
from tests.support.drawn_boxes import drawn
from tests.support.drawn_schedules import at_run_time
from tests.support.pictures import Windows, padded
from tests.support.schedules import schedules
from tests.support.tensorir_agree import call, compiled, drawn_arrays, error, run

KNOBS = TensorirKnobs(6, 2, 8)
SEEDS, DRAWN, GUARDED = 3, 12, 60
ROWS = Windows(14, 3, before=1, after=1)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_schedules_of_padded_inputs(seed: int, request: pytest.FixtureRequest) -> None:
    rng = random.Random(seed)
    cases = [drawn(rng) for _ in range(request.config.getoption("--cases") or DRAWN)]
    sources = [generate(schedule, "kernel", knobs) for _, schedule, knobs in cases]
    assert sum("A_box[" in s.text for s in sources) > len(sources) // 2
    for (chain, schedule, _), source, function in zip(
        cases, sources, compiled([s.text for s in sources]), strict=True
    ):
        flat, known = drawn_arrays(chain)
        found = call(source, function, schedule.chain, flat, {})
        shaped = {n: a.reshape(chain.shape(n)) for n, a in found.items()}
        most = 1e-5 if chain.tensor("A").dtype == "float32" else 2e-3
        assert error(shaped, evaluate(chain, known)) < most, source.text


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_schedules_touch_nothing_but_their_arrays(seed: int) -> None:
    """Inputs and outputs end, or begin, where no memory is."""
    command = [sys.executable, "-m", "tests.support.guarded", str(seed), str(GUARDED)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout[-3000:]
    assert len(re.findall(r"^(?:before|behind) ", ended.stdout, re.MULTILINE)) == 2 * GUARDED


def scheduled(c: Chain, **tiles: int) -> Schedule:
    return schedules(c, bind(c, tilings(c)[0]), {a.name: 64 for a in c.axes} | tiles)


def test_nothing_around_the_array_is_read() -> None:
    """The array lies among NaN: an element before or after it would be one."""
    c = padded(ROWS, ROWS, columns=16)
    flat, known = drawn_arrays(c)
    found = run(scheduled(c, m=4), c, KNOBS, flat)
    assert np.isfinite(found["E"]).all()
    assert error(found, evaluate(c, known)) < 1e-6


@pytest.mark.parametrize(
    ("columns", "value", "largest"), [(16, 0.0, False), (0, -3.5, True), (0, 0.0, False)]
)
def test_a_box_of_bfloat16_has_its_bits(columns: int, value: float, largest: bool) -> None:
    """TVM allocates float32 for a scratch of bfloat16, whose bits no element has."""
    c = padded(ROWS, ROWS, columns, 3, 2, "bfloat16", value, largest)
    flat, known = drawn_arrays(c)
    schedule = scheduled(c, m=4)
    assert "A_box = T.alloc_buffer" in generate(schedule, "kernel", KNOBS).text
    assert error(run(schedule, c, KNOBS, flat), evaluate(c, known)) < 2e-2


def test_lines_of_a_whole_picture_are_copied_in_vectors() -> None:
    """One number before 14 elements, in two vectors of 8 lanes, and one after."""
    text = generate(scheduled(padded(ROWS, ROWS), k=1, m=2), "kernel", KNOBS).text
    lines = [x.strip() for x in text.splitlines() if "A_box[" in x and "A_flat[" in x]
    assert len(lines) == 2
    assert "if T.And(m_t * 2 + A_2 >= 1, m_t * 2 + A_2 < 15):" in text
    assert "A_start: T.let[T.int32] = T.int32(0) + " in text


def test_padding_that_no_window_reaches_is_no_condition() -> None:
    """Padding before the first line, none after the last one."""
    c = padded(Windows(14, 2, before=1), ROWS)
    text = generate(scheduled(c, k=1, m=2), "kernel", KNOBS).text
    assert ">= 1:" in text and "T.And(" not in text


def test_the_last_tile_reads_nothing_behind_the_array() -> None:
    """Of 14 lines it has two of its four, and the box has five: two of them are none."""
    c = padded(Windows(14, 2, before=1), ROWS, columns=16)
    schedule = scheduled(c, k=1, m=4)
    text = generate(schedule, "kernel", KNOBS).text
    assert "if T.And(m_t * 4 + A_2 >= 1, m_t * 4 + A_2 < 15):" in text
    flat, known = drawn_arrays(c)
    assert error(run(schedule, c, KNOBS, flat), evaluate(c, known)) < 1e-6


@pytest.mark.parametrize("tile", [1, 2, 64])
@pytest.mark.parametrize("pictures", [1, 2, 3])
def test_pictures_whose_number_is_known_at_run_time_only(pictures: int, tile: int) -> None:
    """No more of them are copied than there are."""
    chain = at_run_time(padded(ROWS, ROWS, columns=16, pictures=3), {"p": Bounds(1, 3)})
    schedule = scheduled(chain, p=tile, m=4)
    source = generate(schedule, "kernel", KNOBS)
    copied = [line for line in source.text.splitlines() if "for A_" in line and "p_size" in line]
    assert len(copied) == 1
    plain = fixed(chain, {"p": pictures})
    flat, known = drawn_arrays(plain)
    (function,) = compiled([source.text])
    found = call(source, function, chain, flat, {"p": pictures})
    assert error(found, evaluate(plain, known)) < 1e-6
