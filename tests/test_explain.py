"""A model explained: each operator is in a region or says why not; what is predicted."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from mcfuser.compile import compile_model
from mcfuser.devices.catalogue import device_named
from mcfuser.explain import ModelExplanation, explain
from mcfuser.graph import segment
from mcfuser.tune.tuned import MemoryCache, TuneOptions
from tests.support.blocks import bert, decoding
from tests.support.paths import FIXTURES

GPU, CPU = device_named("h200"), device_named("cpu")


def explained(name: str, device=GPU) -> ModelExplanation:
    return explain((FIXTURES / f"{name}.onnx").read_bytes(), device, {})


@pytest.mark.parametrize("name", ["attention_nan_guard", "recurrent_gru", "three_products"])
def test_every_operator_is_in_a_region_or_says_why_not(name: str) -> None:
    found = explained(name)
    for o in found.operators:
        assert (o.region is None) == bool(o.reason), o
        assert o.region is None or o.region < len(found.regions)
        assert o.name and o.operator and o.result
    for number, region in enumerate(found.regions):
        inside = [o.operator for o in found.operators if o.region == number]
        assert len(inside) == region.places * len(region.operators)


@pytest.mark.parametrize("narrow", ["float16", "bfloat16"])
def test_a_narrow_model_saves_half_the_bytes(narrow: str) -> None:
    model = (FIXTURES / "attention_where.onnx").read_bytes()
    (_, wide), found = explained("attention_where").regions, explain(model, GPU, {}, narrow=narrow)
    (_, attention) = found.regions
    assert attention.saved_bytes * 2 == wide.saved_bytes and attention.pieces == wide.pieces
    assert {o.result.split()[0] for o in found.operators if o.operator == "matmul"} == {narrow}


def test_a_fused_attention_saves_its_scores_and_is_predicted_faster() -> None:
    """Scores and probabilities are written and read once each: 2 x 2 x 2 x 3 x 16 x 16 floats."""
    for device in (GPU, CPU):
        _, attention = explained("attention_where", device).regions
        assert attention.operators[:4] == ("matmul", "multiply", "where", "nn.softmax")
        assert attention.saved_bytes == 2 * 2 * (2 * 3 * 16 * 16) * 4 and attention.pieces == 3
        assert attention.fused_seconds is not None and attention.pieces_seconds is not None
        assert 0 < attention.fused_seconds < attention.pieces_seconds < 1


def test_overlapping_regions_are_told_with_what_each_would_cost() -> None:
    model = decoding(64, 4, 2, 96, 16, dtype=np.float16).SerializeToString()
    found = explain(model, GPU, {})
    inside = {region.operators for region in found.regions}
    assert any({"matmul", "mean"} < set(operators) for operators in inside)
    for c in found.considered:
        assert c.places == 1 and c.least_seconds is not None and c.cover_seconds is not None
        assert c.verdict == "inside" or c.cover_seconds >= c.least_seconds
        taken = any(set(c.operators) <= set(operators) for operators in inside)
        assert taken or c.verdict not in ("chosen", "measured")
    assert {"chosen", "dearer"} <= {c.verdict for c in found.considered}
    assert explain(model, GPU, {}) == found


def test_equal_layers_are_considered_as_one() -> None:
    one, two = (explain(bert(n).SerializeToString(), GPU, {}).considered for n in (1, 2))
    assert [c.places for c in one] == [1] * len(one)
    assert sum(c.places for c in two) == 2 * len(one) and len(two) <= len(one) + 2


def test_the_regions_are_those_that_compiling_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no other cover is close, so that none is measured."""
    monkeypatch.setattr(segment, "CLOSE_COVERS", 0.0)
    model = (FIXTURES / "three_products.onnx").read_bytes()
    report = compile_model(model, CPU, MemoryCache(), TuneOptions(trials=1), {}).report
    chains = [(c["name"], len(c["places"]), c["saved_bytes"]) for c in report["chains"]]
    found = explain(model, CPU, {}).regions
    assert chains == [(r.name, r.places, r.saved_bytes) for r in found]


def test_the_reasons_name_what_stands_in_the_way() -> None:
    table = ", ".join(["0"] * 32)
    model = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": 17]>
        g (int64[4] ids, float[4, 8] x) => (float[4, 8] y, int64[4] z, float[4, 8] w)
        <float[4, 8] table = {{{table}}}>
        {{ t = Gather (table, ids) y = Add (t, x) z = Mul (ids, ids)
           axis = Constant <value = int64 {{0}}> () s = Softmax (x) w = CumSum (s, axis) }}""")
    found = explain(model.SerializeToString(), GPU, {})
    reasons = {o.operator: o.reason for o in found.operators}
    assert reasons["take"] == "take is no operator of a chain"
    assert reasons["multiply"] == "its result is int64; a chain's is float32, float16 or bfloat16"
    assert reasons["cumsum"] == "cumsum is no operator of a chain"
    assert reasons["add"] == "too small to pay: 32 elements, fewer than 32768"
    assert reasons["nn.softmax"] == "too small to pay: 32 elements, fewer than 256"
