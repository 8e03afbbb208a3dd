"""Random chains as Triton, run by Triton's own interpreter, agree with the oracle.

`pytest tests/codegen/triton/test_interpreted.py --cases 1000` runs it for longer.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from mcfuser.chain import Chain, fixed, from_json, merged
from mcfuser.codegen.triton import generate
from mcfuser.lowering.triton.knobs import TritonKnobs
from mcfuser.space.expression import bind, tilings
from mcfuser.space.reference import evaluate, logical
from mcfuser.space.schedule import Schedule
from mcfuser.space.statement import Illegal, loops
from tests.support.chains import depthwise, rms_norm_product
from tests.support.pictures import drawn_windows, padded
from tests.support.triton_agree import TOLERANCE, error, interpreted_tiles, memory_of
from tests.support.triton_agree import agree as agree_with_the_chain
from tests.support.triton_cases import Drawn, chain_named, drawn, scheduled
from tests.support.triton_interpreted import Case, interpreted

CASES, MAPPED, PADDED = 20, 14, 30
ONE_PLACE = re.compile(r"^ +A_\d+ = [^\[\n]*$", re.MULTILINE)
"""A position of a picture that is one for the whole tile, or for one of its dimensions."""


def cases(seed: int, count: int, lowering: TritonKnobs, step: int = 1) -> list[tuple[Drawn, Case]]:
    rng, found = Random(seed), []
    while len(found) < count:
        case = drawn(rng, step)
        if case is None:
            continue
        try:
            source = generate(case.schedule, "kernel", replace(lowering, combine=case.combine))
        except Illegal as illegal:
            reasons = ("register file", "single positions", "tensor map")
            assert any(words in str(illegal) for words in reasons[: 2 + lowering.tma])
            continue
        memory = memory_of(fixed(case.plain, case.extents), source, len(found))
        found.append((case, Case(source, memory, case.extents)))
    return found


def agree(drawn_cases: list[tuple[Drawn, Case]], folder: Path) -> None:
    found = interpreted([case for _, case in drawn_cases], folder)
    for (case, run), memory in zip(drawn_cases, found, strict=True):
        where = f"{case.schedule}\n{case.extents}\n{run.source.text}"
        assert not isinstance(memory, str), f"{memory}\n{where}"
        chain = fixed(case.plain, case.extents)
        expected = interpreted_tiles(case.schedule, chain, run.memory, case.extents)
        for name in chain.outputs:
            wrong = error(chain, name, memory, expected)
            assert wrong < TOLERANCE[chain.tensor(name).dtype], f"{name}: {wrong}\n{where}"
        assert not any(memory[w.name].any() for w in run.source.workspace if w.zero), where


@pytest.mark.thorough
def test_random_chains_agree_with_the_oracle(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    count = request.config.getoption("--cases") or CASES
    drawn_cases = cases(0, count, TritonKnobs())
    kinds = Counter(kind for case, _ in drawn_cases for kind in _kinds(case))
    assert all(kinds[f"split, {c}"] >= count // 10 for c in ("kernel", "last")), kinds
    assert kinds["bounded"] >= count // 10, kinds
    assert kinds["ragged"] >= count // 4, kinds
    assert kinds["run time"] >= count // 5, kinds
    agree(drawn_cases, tmp_path)


@pytest.mark.thorough
def test_tensor_maps_agree_with_the_oracle(tmp_path: Path) -> None:
    drawn_cases = cases(2, MAPPED, TritonKnobs(tma=True), step=8)
    kinds = Counter(kind for case, _ in drawn_cases for kind in _kinds(case))
    assert all(kinds[f"split, {c}"] >= MAPPED // 20 for c in ("kernel", "last")), kinds
    assert kinds["bounded"] >= MAPPED // 10, kinds
    assert kinds["ragged"] >= MAPPED // 4, kinds
    agree(drawn_cases, tmp_path)


@pytest.mark.thorough
def test_random_chains_of_parts_agree_with_the_oracle(tmp_path: Path) -> None:
    """Triton's interpreter knows one way to make parts, and multiplies float32 numbers."""
    drawn_cases = cases(3, CASES, TritonKnobs(dot="tf32x3"))
    assert any('input_precision="tf32x3"' in run.source.text for _, run in drawn_cases)
    agree(drawn_cases, tmp_path)


@pytest.mark.parametrize("name", ["linear", "gemm", "attention"])
@pytest.mark.parametrize("dot", ["tf32x3", "bf16x6", "tf32"])
def test_what_tensor_cores_multiply_of_float32(name: str, dot: str) -> None:
    """Parts are as exact as float32. TF32 is rounded: cut off instead, as tensor cores do, products
    of positive numbers would be 7e-4 too small, all of them."""
    chain = chain_named(name, {"b": 2, "m": 40, "n": 48, "k": 24, "h": 32}, "float32")
    tiles = {"b": 1, "m": 16, "n": 16, "k": 16, "h": 32}
    expression = bind(chain, tilings(chain)[0])
    sizes = {a.name: tiles[a.name] for a in chain.axes}
    lowering = TritonKnobs(dot=dot)
    source = agree_with_the_chain(scheduled(chain, expression, sizes), chain, lowering=lowering)
    products = source.text.count(f'input_precision="{dot}"')
    calls = len(re.findall(r"\btf32\(", source.text))
    assert products and calls == (2 * products + 1 if dot == "tf32" else 0)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_walk_along_windows_agrees_with_what_the_chain_means(stride: int) -> None:
    c = depthwise(3, 10, stride)
    expression = bind(c, tilings(c)[0])
    schedule = scheduled(c, expression, {"m": 4, "i": 10, "k": 1, "s": 1})
    source = agree_with_the_chain(schedule, c)
    assert source.text.count("C += A * W") == 9
    assert "for " not in source.text and "tl.sum" not in source.text


@pytest.mark.parametrize("tiles", [(1, 1, 3, 5), (1, 3, 1, 5), (2, 1, 3, 1)])
def test_rows_of_windows_agree_with_what_the_chain_means(tiles: tuple[int, ...]) -> None:
    """2 x 3 windows of 3 x 5 positions in 6 x 15."""
    c = from_json({
        "axes": {"p": 2, "q": 3, "m": 3, "i": 5, "k": 16, "n": 16},
        "tensors": {
            "A": {"shape": list("pqmik"), "dtype": "float16", "strides": [720, 80, 240, 16, 1]},
            "B": {"shape": ["k", "n"], "dtype": "float16"},
        },
        "operators": ["C[p, q, m, i, n] = sum[k] A[p, q, m, i, k] * B[k, n]"],
    })  # fmt: skip
    sizes = dict(zip("pqmi", tiles, strict=True)) | {"k": 16, "n": 16}
    agree_with_the_chain(scheduled(c, bind(c, tilings(c)[0]), sizes), c)


@pytest.mark.parametrize("channels", [48, 64, 192])
def test_the_channels_of_groups_agree_with_what_the_chain_means(channels: int) -> None:
    """Each reads the number of its group, which has 24 of them; a tile has those of several."""
    c = from_json({
        "axes": {"m": 2, "l": 9, "i": 8, "j": 24},
        "tensors": {
            "A": {"shape": list("mlij"), "dtype": "float16"}, "M": {"shape": list("mi")},
            "L": {"shape": list("ij")}, "E": {"shape": list("mlij"), "dtype": "float16"},
        },
        "operators": ["E[m, l, i, j] = max((A[m, l, i, j] - M[m, i]) * L[i, j], 0.0)"],
    })  # fmt: skip
    one = merged(c)
    assert [a.name for a in one.axes] == ["m", "l", "i"]
    schedule = scheduled(one, bind(one, tilings(one)[0]), {"m": 1, "l": 4, "i": channels})
    agree_with_the_chain(schedule, c)


@pytest.mark.parametrize(
    ("last", "tiles"),
    [(False, "m=16 n=16 k=16 s=1"), (False, "m=24 n=8 k=16 s=9"), (True, "m=16 n=16 k=32"),
     (True, "m=70 n=16 k=48"), (True, "m=16 n=16 k=32 s=1"), (True, "m=35 n=16 k=16 s=1")],
)  # fmt: skip
@pytest.mark.parametrize("parts", [1, 2])
def test_merged_axes_agree_with_what_the_chain_means(last: bool, tiles: str, parts: int) -> None:
    """A convolution of 32 channels of 9 x 12 elements, these in either order; or of 64, which stay
    apart from windows where they are last."""
    channels = 64 if last and "s=" in tiles else 32
    row = 12 * channels
    lines, turned = [108, 12, 12, 1, 1], [row, row, channels, channels, 1]
    dims, strides = ("kmsit", lines) if not last else ("msitk", turned)
    c = from_json({
        "axes": {"m": 7, "i": 10, "n": 16, "k": channels, "s": 3, "t": 3},
        "tensors": {
            "A": {"shape": list(dims), "dtype": "float16", "strides": strides},
            "B": {"shape": list("kstn"), "dtype": "float16"},
            "E": {"shape": list("nmi"), "dtype": "float16", "strides": [1, 160, 16]},
        },
        "operators": [f"C[m, i, n] = sum[k, s, t] A[{', '.join(dims)}] * B[k, s, t, n]",
                      "E[n, m, i] = max(C[m, i, n], 0.0)"],
    })  # fmt: skip
    one = merged(c)
    sizes = {a: int(n) for a, n in (w.split("=") for w in tiles.split())}
    assert [a.name for a in one.axes] == [*sizes]
    expression = bind(one, tilings(one)[0])
    source = agree_with_the_chain(
        scheduled(one, expression, sizes, "k" if parts > 1 else None, parts), c
    )
    assert "A_at_m = m // 10 * " in source.text


def padded_schedules(seed: int) -> Iterator[tuple[Schedule, Chain]]:
    """Schedules of convolutions and maxima over windows of padded pictures, with the chain that
    they compute."""
    rng = Random(seed)
    while True:
        down, across, dtype = (
            drawn_windows(rng),
            drawn_windows(rng),
            rng.choice(list(TOLERANCE)[:2]),
        )
        largest = rng.random() < 0.2
        value = rng.choice((0.0, -3.5)) if largest or rng.random() < 0.2 else 0.0
        columns = 0 if largest else rng.choice((0, 5, 16))
        last = rng.random() < 0.3
        channels = rng.choice((3, 64) if last else (3, 16))
        c = padded(down, across, columns, channels, 2, dtype, value, largest, last)
        one = merged(c)
        sizes = {a.name: rng.choice((1, 2, 3, 16, 64)) for a in one.axes}
        expression = rng.choice(tilings(one))
        expression = expression if rng.random() < 0.2 else bind(one, expression)
        try:
            yield scheduled(one, expression, sizes), c
        except Illegal:
            continue


def test_padding_is_masked_where_it_is_read() -> None:
    masked, count = 0, 0
    for schedule, c in padded_schedules(0):
        try:
            source = agree_with_the_chain(schedule, c)
        except Illegal:
            continue
        masked += "A_inside" in source.text
        if (count := count + 1) == PADDED:
            break
    assert masked > PADDED * 3 // 4


@pytest.mark.thorough
def test_padding_agrees_in_tritons_own_interpreter(tmp_path: Path) -> None:
    runs, chains = [], []
    for i, (schedule, c) in enumerate(padded_schedules(1)):
        if math.prod(schedule.trips(a) for a, _ in schedule.tiles) > 60:
            continue
        try:
            source = generate(schedule, "kernel")
        except Illegal:
            continue
        if ONE_PLACE.search(source.text):  # it makes integers of a mask that it broadcasts
            continue
        runs.append(Case(source, memory_of(c, source, i)))
        chains.append(c)
        if len(runs) == 6:
            break
    for run, c, memory in zip(runs, chains, interpreted(runs, tmp_path), strict=True):
        assert not isinstance(memory, str), f"{memory}\n{run.source.text}"
        expected = evaluate(c, {n: logical(c, n, run.memory[n]) for n in c.inputs})
        for name in c.outputs:
            wrong = error(c, name, memory, expected)
            assert wrong < TOLERANCE[c.tensor(name).dtype], f"{name}: {wrong}\n{run.source.text}"


@pytest.mark.parametrize("rows", [16, 64])
def test_a_tile_that_threads_and_a_product_read(rows: int) -> None:
    c = rms_norm_product()
    source = agree_with_the_chain(scheduled(c, "mn.k", {"m": rows, "n": 32, "k": 32}), c)
    assert source.text.count("inline_asm_elementwise") == 1


def _kinds(case: Drawn) -> set[str]:
    schedule = case.schedule
    return {
        kind
        for kind, holds in {
            f"split, {case.combine}": schedule.split is not None,
            "bounded": any(loop.lo or loop.hi for loop in loops(schedule.body)),
            "ragged": any(schedule.ragged(a.name) for a in schedule.chain.axes),
            "run time": bool(case.extents),
        }.items()
        if holds
    }
