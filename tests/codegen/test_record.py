"""Kernels kept as documents: launched for equal chains as if they were generated for them."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import pytest

from mcfuser.chain import BYTES, Chain, attention, flat_size, gemm
from mcfuser.codegen import tensorir, triton
from mcfuser.lowering.tensorir.knobs import TensorirKnobs
from mcfuser.lowering.triton.knobs import TritonKnobs
from mcfuser.space.schedule import Schedule
from mcfuser.space.statement import Illegal
from tests.support.chains import other
from tests.support.triton_cases import drawn, run_time, scheduled

TILES = {"m": 32, "n": 32, "k": 32, "h": 32}
HALF = attention(2, 64, 64, 32, 32, "float16")


def respelt(schedule: Schedule, chain: Chain) -> tuple[Schedule, dict[str, str], dict[str, str]]:
    made, tensors, axes = other(chain)
    tiles = {axes[a]: n for a, n in schedule.tiles}
    split = axes[schedule.split.axis] if schedule.split is not None else None
    expression = str(schedule.expression)
    for a in axes:
        expression = expression.replace(a, f"<{a}>")
    for a, b in axes.items():
        expression = expression.replace(f"<{a}>", b)
    return scheduled(made, expression, tiles, split, schedule.parts), tensors, axes


def launch_facts(source: triton.TritonSource) -> triton.TritonSource:
    """All but the text, in which names stay those that were compiled; workspaces by number."""
    names = {w.name: f"workspace {i}" for i, w in enumerate(source.workspace)}
    launches = (
        replace(one, arguments=tuple(names.get(n, n) for n in one.arguments))
        for one in source.launches
    )
    beside = (replace(w, name=names[w.name]) for w in source.workspace)
    return replace(source, text="", launches=tuple(launches), workspace=tuple(beside))


CASES = {
    "plain": (HALF, TritonKnobs(), None, 1),
    "maps": (HALF, TritonKnobs(tma=True), None, 1),
    "groups": (gemm(1, 256, 128, 64, 64, "float16"), TritonKnobs(4, 2, "kernel", True, True),
               None, 1),
    "split": (HALF, TritonKnobs(), "n", 2),
    "last": (HALF, TritonKnobs(combine="last"), "n", 2),
    "run-time extents": (run_time(HALF, "mn"), TritonKnobs(), None, 1),
}  # fmt: skip


@pytest.mark.parametrize("dependent", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_a_kept_kernel_is_launched_as_one_generated_for_the_chain(
    name: str, dependent: bool
) -> None:
    chain, lowering, split, parts = CASES[name]
    tiles = TILES if name != "groups" else {"m": 128, "n": 32, "k": 64, "h": 64}
    schedule = scheduled(chain, "mh.nk", tiles, split, parts)
    source = triton.generate(schedule, "kernel", lowering, dependent)
    record = json.loads(json.dumps(triton.to_record(source)))
    same = {t.name: t.name for t in chain.tensors}, {a.name: a.name for a in chain.axes}
    assert triton.from_record(record, source.text, *same) == source
    there, tensors, axes = respelt(schedule, chain)
    made = triton.from_record(record, source.text, tensors, axes)
    made_there = triton.generate(there, "kernel", lowering, dependent)
    assert launch_facts(made) == launch_facts(made_there)
    assert made.text == source.text
    names = [*tensors.values(), *(w.name for w in made.workspace)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    "damage",
    [{"launches": []}, {"launches": None}, {"parameters": ["nothing"]}, {"workspace": 3},
     {"threads": "many"}, None],
)  # fmt: skip
def test_a_record_of_another_form_is_told(damage) -> None:
    source = triton.generate(scheduled(HALF, "mh.nk", TILES), "kernel")
    record = triton.to_record(source) | damage if damage is not None else {}
    same = {t.name: t.name for t in HALF.tensors}, {a.name: a.name for a in HALF.axes}
    with pytest.raises((KeyError, TypeError, ValueError)):
        triton.from_record(record, source.text, *same)


LOWERING = TensorirKnobs(4, 2, 8)


def cpu_schedules() -> list[tuple[Chain, Schedule, tensorir.TensorirSource]]:
    rng, found = Random(3), []
    while len(found) < 60:
        if (case := drawn(rng)) is None:
            continue
        plain, schedule = case.plain, case.schedule
        try:
            found.append((plain, schedule, tensorir.generate(schedule, "kernel", LOWERING)))
        except Illegal:
            continue
    return found


def test_the_statements_of_a_kept_function_stay_under_other_shapes_and_names() -> None:
    for plain, schedule, source in cpu_schedules():
        record = json.loads(json.dumps(tensorir.to_record(source)))
        _, tensors, axes = other(plain)
        made = tensorir.from_record(record, source.text, tensors, axes)
        assert made.text == source.text and made.scalars == tuple(axes[a] for a in source.scalars)
        assert [tensors[n] for n, _ in source.packed] == [n for n, _ in made.packed]
        shapes = {n: (1, *plain.shape(n)) for n in (*plain.inputs, *plain.outputs)}
        wanted = tensorir.generate(schedule, "chain_1", LOWERING, shapes)
        assert tensorir.with_shapes(source, plain, "chain_1", shapes) == wanted


def test_a_kept_function_reads_arrays_that_begin_later() -> None:
    for plain, _, source in cpu_schedules():
        one, *_ = [n for n in plain.inputs if n not in dict(source.packed)] or [""]
        if not one or source.scalars:
            continue
        size, dtype = flat_size(plain, one), plain.tensor(one).dtype
        moved = tensorir.with_shapes(source, plain, "chain_1", {one: (size + 32,)}, {one: 32})
        place = f"T.handle_add_byte_offset({one}_arg.data, {32 * BYTES[dtype]})"
        assert f'{one}_flat = T.decl_buffer(({size},), "{dtype}", data={place})' in moved.text
        assert moved.text.count("handle_add_byte_offset") == 1


def test_a_text_that_declares_its_parameters_otherwise_is_told() -> None:
    plain, _, source = cpu_schedules()[0]
    tensorir.check_parameters(source, plain)
    for text in ("", source.text.replace("_arg", "_argument"), source.text.replace("noalias", "")):
        with pytest.raises(ValueError, match="declares its parameters in another way"):
            tensorir.check_parameters(replace(source, text=text), plain)
