"""The same schedules run for real: TensorIR on this CPU against the chain's plain meaning."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm
from test_space_interpret import LINES, build, random_inputs, schedules

from mcfuser.chain import Chain, attention, from_json, gemm, to_json
from mcfuser.codegen.cpu import compile_function, pack
from mcfuser.codegen.tensorir import Lowering, flat_size, generate
from mcfuser.space.expression import bind, parse, tilings
from mcfuser.space.reference import evaluate, logical
from mcfuser.space.schedule import Illegal, Schedule

GOLDEN = Path(__file__).parent / "golden" / "tensorir"
WIDE = Lowering(8, 2, 16)
NARROW = Lowering(4, 3, 8)
EXTENTS = (1, 7, 16, 33, 48, 64, 77)


def run(schedule: Schedule, plain: Chain, lowering: Lowering, inputs: dict) -> dict:
    """The outputs of the generated function, as the chain indexes them."""
    source = generate(schedule, "kernel", lowering)
    packed = dict(source.packed)
    call = compile_function(source.text, "kernel")
    arguments = []
    for name in plain.inputs:
        array = inputs[name].astype(plain.tensor(name).dtype)
        flat = pack(logical(plain, name, array), packed[name]) if name in packed else array
        arguments.append(tvm.runtime.tensor(np.ascontiguousarray(flat.reshape(-1))))
    outputs = {}
    for name in plain.outputs:
        empty = np.full(flat_size(plain, name), np.nan, plain.tensor(name).dtype)
        outputs[name] = tvm.runtime.tensor(empty)
    call(*arguments, *outputs.values())
    return {n: logical(plain, n, t.numpy()) for n, t in outputs.items()}


def error(found: dict, expected: dict) -> float:
    return max(
        float(np.linalg.norm(a - expected[n]) / (np.linalg.norm(expected[n]) or 1.0))
        for n, a in found.items()
    )


@pytest.mark.parametrize("seed", range(8))
def test_random_schedules_agree_with_the_chain(seed: int) -> None:
    """25 a seed, 200 in all: every chain, bound or not, ragged, packed or not."""
    rng = random.Random(seed)
    legal = 0
    while legal < 25:
        name = rng.choice(sorted(LINES))
        extents = {a: rng.choice(EXTENTS) for a in "mnkh"} | {"b": rng.choice((1, 3))}
        chain = build(name, extents)
        if rng.random() < 0.4:
            weights = [replace(t, constant=t.name in tuple("BDefg")) for t in chain.tensors]
            chain = replace(chain, tensors=tuple(weights))
        expression = rng.choice(tilings(chain))
        if rng.random() < 0.8:
            expression = bind(chain, expression)
        tiles = {a: rng.choice((16, 32, 48, 64, 128)) for a in "bmnkh"}
        schedule = schedules(chain, expression, tiles)
        inputs = {n: a.astype("float32") for n, a in random_inputs(chain, seed).items()}
        try:
            found = run(schedule, chain, rng.choice((WIDE, NARROW)), inputs)
        except Illegal:
            continue
        legal += 1
        assert error(found, evaluate(chain, inputs)) < 1e-5, (name, str(expression), extents, tiles)


def test_views_are_read_and_written_where_they_lie() -> None:
    """Heads split out of rows of 3 x 8: strides, and an offset, on both sides."""
    document = {
        "axes": {"b": 3, "m": 20, "n": 20, "k": 8},
        "tensors": {
            "Q": {"shape": ["b", "m", "k"], "strides": [8, 24, 1], "offset": 48},
            "K": {"shape": ["b", "n", "k"], "strides": [8, 24, 1]},
            "S": {"shape": ["b", "m", "n"], "strides": [20, 60, 1], "offset": 5},
        },
        "operators": ["S[b, m, n] = sum[k] Q[b, m, k] * K[b, n, k]"],
    }
    chain = from_json(document)
    rng = np.random.default_rng(0)
    flat = {n: rng.standard_normal(flat_size(chain, n)).astype("float32") for n in chain.inputs}
    known = {n: logical(chain, n, a) for n, a in flat.items()}
    schedule = schedules(chain, parse("mn.k"), {"m": 16, "n": 16, "k": 8})
    found = run(schedule, chain, WIDE, flat)
    assert error(found, evaluate(chain, known)) < 1e-6


def test_half_precision_is_stored_and_accumulated_wide() -> None:
    chain = attention(2, 32, 32, 16, 16, "float16")
    inputs = {n: a.astype("float16") for n, a in random_inputs(chain, 0).items()}
    schedule = schedules(chain, parse("mh.nk"), {"m": 16, "n": 16, "k": 16, "h": 16})
    assert error(run(schedule, chain, WIDE, inputs), evaluate(chain, inputs)) < 1e-3


def test_masked_scores_of_minus_infinity_weigh_nothing() -> None:
    chain = build("softmax_in_place", {"b": 1, "m": 16, "n": 40, "k": 8, "h": 16})
    inputs = random_inputs(chain, 0)
    inputs["M"][:, 25:] = -np.inf
    schedule = schedules(chain, parse("mh.nk"), {"m": 16, "n": 16, "k": 8, "h": 16})
    assert error(run(schedule, chain, WIDE, inputs), evaluate(chain, inputs)) < 1e-6


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_functions_are_accurate(scale: float) -> None:
    """exp, erf and tanh are polynomials: within 5e-7 of the true values where these matter."""
    lines = ["E[m] = exp(X[m])", "F[m] = erf(X[m])", "G[m] = tanh(X[m])"]
    document = {
        "axes": {"m": 4096},
        "tensors": {"X": {"shape": ["m"]}},
        "operators": lines,
        "outputs": ["E", "F", "G"],
    }
    chain = from_json(document)
    inputs = {"X": np.random.default_rng(0).standard_normal(4096).astype("float32") * scale}
    found = run(schedules(chain, parse("m."), {"m": 64}), chain, WIDE, inputs)
    expected = evaluate(chain, inputs)
    kept = np.abs(inputs["X"]) < 80
    relative = np.abs(found["E"] - expected["E"]) / expected["E"]
    assert relative[kept].max() < 5e-7
    assert np.abs(found["F"] - expected["F"]).max() < 5e-7
    assert (np.abs(found["G"] - expected["G"]) <= 1e-6 * np.abs(expected["G"])).all()


def test_what_is_not_a_number_stays_so_and_what_is_too_large_is_infinite() -> None:
    document = {
        "axes": {"m": 32},
        "tensors": {"X": {"shape": ["m"]}},
        "operators": [
            "E[m] = exp(X[m])",
            "F[m] = erf(X[m])",
            "G[m] = tanh(X[m])",
            "H[m] = max(X[m], 0.0)",
            "I[m] = 1.0 / (1.0 + exp(-X[m]))",
        ],
        "outputs": ["E", "F", "G", "H", "I"],
    }
    chain = from_json(document)
    x = np.zeros(32, "float32")
    x[:4] = np.nan, np.inf, -np.inf, 100.0
    found = run(schedules(chain, parse("m."), {"m": 32}), chain, WIDE, {"X": x})
    expected = {
        "E": (np.nan, np.inf, 0.0, np.inf),
        "F": (np.nan, 1.0, -1.0, 1.0),
        "G": (np.nan, 1.0, -1.0, 1.0),
        "H": (np.nan, np.inf, 0.0, 100.0),
        "I": (np.nan, 1.0, 0.0, 1.0),
    }
    for name, values in expected.items():
        np.testing.assert_allclose(found[name][:4], values, rtol=1e-6, err_msg=name)


CASES = {
    "gemm_mhnk": (gemm(1, 64, 64, 32, 32), "mh.nk", {"m": 32, "n": 32, "k": 16, "h": 32}),
    "gemm_flat": (gemm(1, 64, 64, 32, 32), "m.n(k,h)", {"m": 32, "n": 32, "k": 16, "h": 16}),
    "gemm_ragged": (gemm(2, 40, 77, 20, 33), "mh.nk", {"m": 16, "n": 32, "k": 20, "h": 33}),
    "attention_whole": (
        attention(4, 64, 64, 32, 32), "mh.nk", {"m": 32, "n": 64, "k": 32, "h": 32},
    ),
    "attention_rolled": (
        attention(4, 64, 64, 32, 32), "mh.nk", {"m": 32, "n": 32, "k": 32, "h": 32},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_text_is_as_it_was(name: str, update_golden: bool) -> None:
    chain, expression, tiles = CASES[name]
    text = generate(schedules(chain, parse(expression), tiles), "kernel", WIDE).text
    path = GOLDEN / f"{name}.py"
    if update_golden:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert path.read_text() == text, "run pytest --update-golden if the change is meant"


def test_an_extent_known_at_run_time_only_is_refused() -> None:
    document = to_json(gemm(1, 64, 64, 32, 32))
    document["axes"]["m"] = [1, 64]  # type: ignore[index]
    schedule = schedules(from_json(document), parse("mh.nk"), dict.fromkeys("mnkh", 32))
    with pytest.raises(Illegal, match="axis 'm' is known at run time only"):
        generate(schedule, "kernel", WIDE)


def test_tiles_kept_side_by_side_must_be_whole_vectors() -> None:
    chain = gemm(1, 64, 60, 32, 32)
    schedule = schedules(chain, parse("mkhn"), {"m": 32, "n": 20, "k": 16, "h": 32})
    with pytest.raises(Illegal, match="axis 'n' are kept side by side"):
        generate(schedule, "kernel", WIDE)
