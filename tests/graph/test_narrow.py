"""A narrowed module computes what the float32 model does, within a few roundings of its type."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcfuser.chain import TF32
from mcfuser.chain.recurrence import RecurrenceLimits
from mcfuser.errors import ModelError
from mcfuser.graph.assemble import Installed, Replacement, install
from mcfuser.graph.check import answer, reference_session
from mcfuser.graph.dataflow import RECURRENCE, array, dataflow, dtype, operator_name
from mcfuser.graph.draw import Feeds, inputs
from mcfuser.graph.intermediate import computed_by_onnxruntime
from mcfuser.graph.load import Loaded, bound, load
from mcfuser.graph.partition import Partition, partition
from mcfuser.graph.precision import NARROW, is_wide
from mcfuser.graph.summing import summed_in_float32
from mcfuser.measure.tolerance import difference
from tests.support.blocks import MASKED, bert, halved, llama
from tests.support.lifted import computed
from tests.support.naive import primfunc
from tests.support.nets import Net
from tests.support.one_node import expected
from tests.support.paths import FIXTURES
from tests.support.recurrent_nodes import arrays, recurrent_model

PASSES = {"float16": 2e-3, "bfloat16": 2e-2}
"""Norm-wise relative errors: a few roundings of the type."""
both_types = pytest.mark.parametrize("narrow", NARROW)


def errors(
    model: onnx.ModelProto, narrow: str, loaded: Loaded | None = None, feeds: Feeds | None = None
) -> list[float]:
    """The error of every output against onnxruntime, where all is left to TVM. onnxruntime does
    not optimize: its optimizer breaks some models with two approximations of a GELU (1.31)."""
    data = model.SerializeToString()
    fixed = bound(data, {})
    feeds = feeds or inputs(fixed, np.random.default_rng(0))
    known = computed_by_onnxruntime(fixed, feeds, [o.name for o in fixed.proto.graph.output])
    expected = [*known.values()]
    made = loaded or load(data, {}, narrow=narrow)
    module = summed_in_float32(install(made.module, []))
    with tempfile.TemporaryDirectory() as folder:
        found = computed(module, [*feeds.values()], Path(folder))
    assert [a.dtype for a in found] == [a.dtype for a in expected]
    return list(map(difference, found, expected))


def agrees(model: onnx.ModelProto, narrow: str) -> None:
    assert max(errors(model, narrow)) <= PASSES[narrow]


def parted(model: onnx.ModelProto, narrow: str | None = None) -> Partition:
    return partition(load(model.SerializeToString(), {}, narrow=narrow).module, 1e12, 1e11)


@pytest.mark.parametrize("block", [bert, llama])
@both_types
def test_blocks_of_transformers_agree(block: object, narrow: str) -> None:
    assert callable(block)
    agrees(block(), narrow)


@pytest.mark.parametrize("block", [bert, llama])
@both_types
def test_chains_of_blocks_agree(block: object, narrow: str, tmp_path: Path) -> None:
    """Each chain is computed by plain loops, with the casts that are in it."""
    assert callable(block)
    model = block()
    loaded = load(model.SerializeToString(), {}, narrow=narrow)
    matches = partition(loaded.module, 1e12, 1e11).matches
    fixed = bound(model.SerializeToString(), {})
    feeds = inputs(fixed, np.random.default_rng(0))
    replacements = [
        Replacement(m, (Installed(f"chain_{i}", m.chain, primfunc(m.chain, m.shapes, m.starts)),))
        for i, m in enumerate(matches)
    ]
    found = computed(install(loaded.module, replacements), [*feeds.values()], tmp_path)
    expected = answer(reference_session(fixed), feeds)
    assert max(map(difference, found, expected)) <= PASSES[narrow]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "narrow"),
    [("attention_decode", "float16"), ("attention_grouped", "bfloat16"),
     ("attention_microsoft", "float16"), ("attention_nan_guard", "bfloat16"),
     ("attention_spelled_out", "float16"), ("recurrent_lstm", "bfloat16")],
)  # fmt: skip
def test_models_of_many_kinds_agree(name: str, narrow: str) -> None:
    agrees(onnx.load(FIXTURES / f"{name}.onnx"), narrow)


@both_types
def test_squares_of_large_residuals_do_not_overflow(narrow: str) -> None:
    agrees(llama(16, scale=1e4), narrow)


@pytest.mark.parametrize("block", [bert, llama])
def test_a_narrowed_block_has_the_chains_of_one_exported_in_float16(block: object) -> None:
    assert callable(block)
    model = block()
    exported, made = parted(halved(model)), parted(model, "float16")
    forms = [
        sorted(str((m.chain.axes, len(m.chain.operators))) for m in found.matches)
        for found in (exported, made)  # maps that read nothing of each other have no order
    ]
    assert forms[0] == forms[1]
    assert [p.dtype for p in made.products] == [p.dtype for p in exported.products]
    assert [p.chain for p in made.products] == [p.chain for p in exported.products]


@both_types
def test_kernels_pass_narrow_values_to_each_other(narrow: str) -> None:
    found = parted(bert(), narrow)
    outputs = {v: m for m in found.matches for v in m.outputs.values()}
    read = [a for m in found.matches for a in m.arguments.values()]
    passed = [v for v in read if v in outputs]
    assert len(passed) >= 5
    assert {dtype(v) for v in passed} == {narrow}
    for match in found.matches:
        body = " ".join(map(str, match.chain.operators))
        assert {t.dtype for t in match.chain.tensors if t.name in match.chain.inputs} & {narrow}
        assert "exp" not in body or f"{narrow}(exp" not in body


@both_types
def test_a_causal_mask_stays_a_condition(narrow: str) -> None:
    operators = [str(o) for m in parted(llama(), narrow).matches for o in m.chain.operators]
    assert sum(" where " in o for o in operators) == 3, "the maximum, the sum, the second product"


@both_types
def test_weights_are_stored_narrow_and_values_keep_their_names(narrow: str) -> None:
    model = llama().SerializeToString()
    plain, made = load(model, {}), load(model, {}, narrow=narrow)
    assert made.inputs == plain.inputs and made.outputs == plain.outputs
    assert made.names == plain.names and made.narrowing is not None
    before, after = (dataflow(m.module["main"]) for m in (plain, made))
    assert [v.name for v in before.order] == [
        v.name for v in after.order if v.name in {x.name for x in before.order}
    ]
    weights = [after.values[v].args[1] for v in after.products]
    constants = [w for w in weights if array(w) is not None]
    assert constants and {dtype(w) for w in constants} == {narrow}


@st.composite
def nets(draw: st.DrawFn) -> onnx.ModelProto:
    """A product, then some operators of all classes, each of one or two values before it."""
    n = Net()
    n.random = np.random.default_rng(draw(st.integers(0, 99)))
    values = [n.input("x", 6, 8), n.op("MatMul", "x", n.weight(8, 8))]
    for _ in range(draw(st.integers(3, 9))):
        x, y = (draw(st.sampled_from(values[-4:])) for _ in range(2))
        values.append(_operator(n, draw(st.sampled_from(_KINDS)), x, y))
    last = n.op("MatMul", values[-1], n.weight(8, 4))
    return n.model(last, *draw(st.lists(st.sampled_from(values[1:]), max_size=2, unique=True)))


_KINDS = (
    "product", "add", "multiply", "norm", "root mean square", "softmax", "gelu", "gelu tanh",
    "silu", "halves", "mean", "masked", "relu", "quotient", "transposed",
)  # fmt: skip


def _operator(n: Net, kind: str, x: str, y: str) -> str:
    """The result of an operator, or of what exporters write for one; its scale is about that of
    its operands'."""
    match kind:
        case "product":
            return n.op("MatMul", x, n.weight(8, 8))
        case "add":
            return n.op("Add", x, y)
        case "multiply":
            return n.op("Tanh", n.op("Mul", x, y))
        case "norm":
            centred = n.op("Sub", x, n.op("ReduceMean", x, axes=[-1], keepdims=1))
            square = n.op("ReduceMean", n.op("Mul", centred, centred), axes=[-1], keepdims=1)
            root = n.op("Sqrt", n.op("Add", square, n.const(1e-2)))
            return n.op("Mul", n.op("Div", centred, root), n.weight(8))
        case "root mean square":
            square = n.op("ReduceMean", n.op("Pow", x, n.const(2)), axes=[-1], keepdims=1)
            return n.op("Mul", x, n.op("Reciprocal", n.op("Sqrt", n.op("Add", square, n.const(1)))))
        case "softmax":
            return n.op("Softmax", n.op("Mul", x, n.const(0.5)), axis=-1)
        case "gelu":
            erf = n.op("Erf", n.op("Div", x, n.const(math.sqrt(2))))
            return n.op("Mul", n.op("Mul", x, n.op("Add", erf, n.const(1))), n.const(0.5))
        case "gelu tanh":
            cube = n.op("Mul", n.op("Pow", x, n.const(3)), n.const(0.044715))
            tanh = n.op("Tanh", n.op("Mul", n.op("Add", x, cube), n.const(0.7978845608)))
            return n.op("Mul", n.op("Mul", x, n.const(0.5)), n.op("Add", tanh, n.const(1)))
        case "silu":
            return n.op("Mul", n.op("Mul", x, n.op("Sigmoid", x)), n.const(0.5))
        case "halves":
            parts = [
                n.op("Slice", one, n.ints(a), n.ints(a + 4), n.ints(1))
                for one, a in ((x, 4), (y, 0))
            ]
            return n.op("Concat", *parts, axis=1)
        case "mean":
            return n.op("Sub", x, n.op("ReduceMean", y, axes=[0], keepdims=1))
        case "masked":
            mask = n.const(np.where(np.tri(6, 8, dtype=bool), 0, MASKED))
            return n.op("Softmax", n.op("Add", x, mask), axis=-1)
        case "relu":
            return n.op("Relu", x)
        case "quotient":
            return n.op("Div", x, n.op("Add", n.op("Abs", y), n.const(1)))
        case _:
            turned = n.op("Transpose", n.op("Transpose", x, perm=[1, 0]), perm=[1, 0])
            return n.op("Reshape", turned, n.ints(6, 8))


@settings(max_examples=8)
@given(nets(), st.sampled_from(NARROW))
def test_random_graphs_agree(model: onnx.ModelProto, narrow: str) -> None:
    assert max(errors(model, narrow)) <= 4 * PASSES[narrow]


@pytest.mark.parametrize("mask", [MASKED, -1e9, -1e4])
@both_types
def test_masks_of_huge_numbers_hide_what_they_hide(mask: float, narrow: str) -> None:
    """The mask is made of an input, as exporters do, and hides whole rows of the last sequence."""
    n = Net()
    x, shown = n.input("x", 2, 8, 16), n.input("shown", 2, 1, 8)
    hidden = n.op("Mul", n.op("Sub", n.const(1), shown), n.const(mask))
    keys = n.op("Transpose", n.op("MatMul", x, n.weight(16, 16)), perm=[0, 2, 1])
    scores = n.op("Add", n.op("MatMul", x, keys), hidden)
    model = n.model(n.op("MatMul", n.op("Softmax", scores, axis=-1), x))
    values = np.random.default_rng(0).standard_normal((2, 8, 16)).astype(np.float32)
    keep = np.ones((2, 1, 8), np.float32)
    keep[0, 0, 3:] = 0
    keep[1] = 0
    assert max(errors(model, narrow, feeds={"x": values, "shown": keep})) <= PASSES[narrow]


def test_a_weight_that_overflows_leaves_its_product_float32() -> None:
    n = Net()
    big = n.const(np.where(np.eye(8, dtype=bool), 7e4, 0))
    x = n.op("MatMul", n.input("x", 4, 8), n.weight(8, 8))
    model = n.model(n.op("MatMul", n.op("Mul", n.op("MatMul", x, big), n.const(1e-4)), big))
    assert errors(model, "float16")[0] <= PASSES["float16"]
    alone = Net()
    data = alone.model(
        alone.op("MatMul", alone.input("x", 4, 8), alone.const(np.full((8, 8), 1e6)))
    )
    with pytest.raises(ModelError, match="the weights of all 1 are beyond its numbers; compile"):
        load(data.SerializeToString(), {}, narrow="float16")
    agrees(data, "bfloat16")


def test_a_model_that_kernels_round_keeps_its_types() -> None:
    loaded = load(bert().SerializeToString(), {}, narrow=TF32)
    plain = load(bert().SerializeToString(), {})
    assert loaded.module.script() == plain.module.script()
    narrowing, narrow = loaded.narrowing, load(bert().SerializeToString(), {}, narrow="bfloat16")
    assert narrowing is not None and narrowing.dtype == "tf32" and narrow.narrowing is not None
    assert narrowing.narrow_products == narrow.narrowing.narrow_products > 0
    assert narrowing.float32_products == 0


@pytest.mark.parametrize("narrow", [*NARROW, TF32])
def test_a_model_without_float32_products_is_refused(narrow: str) -> None:
    n = Net()
    model = n.model(n.op("Relu", n.input("x", 4, 8)))
    sentence = f"no product of the model can have {narrow} operands: it multiplies no float32"
    for one in (model, halved(bert())):
        with pytest.raises(ModelError, match=sentence):
            load(one.SerializeToString(), {}, narrow=narrow)


@both_types
def test_results_inside_and_beside_products_keep_their_types(narrow: str) -> None:
    """Values that are both results and operands, an input that is a result, parts of a split, and
    one constant that two products read."""
    n = Net()
    x, w = n.input("x", 4, 8), n.weight(8, 8)
    y = n.op("MatMul", x, w)
    first = n.op("Split", y, axis=1, outputs=2)
    node = n.nodes[-1]
    second = node.output[1]
    z = n.op("MatMul", n.op("Concat", second, first, axis=1), w)
    agrees(n.model(y, second, z, n.op("Identity", x), n.op("Exp", z)), narrow)


@both_types
def test_a_choice_that_is_made_at_run_time_stays_float32_inside(narrow: str) -> None:
    text = """<ir_version: 9, opset_import: ["": 17]>
    g (float[4,8] x, bool c) => (float[4,8] z)
    <float[8,8] w = {""" + ",".join(["0.25"] * 64) + """}> {
      y = MatMul (x, w)
      h = If (c) <then_branch = t () => (float[4,8] a) { a = Exp (y) },
                  else_branch = e () => (float[4,8] b) { b = Add (y, x) }>
      z = MatMul (h, w)
    }"""  # fmt: skip
    model = onnx.parser.parse_model(text)
    x = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    for chosen in (True, False):
        feeds: Feeds = {"x": x, "c": np.array(chosen)}
        assert errors(model, narrow, feeds=feeds)[0] <= PASSES[narrow]


@both_types
def test_convolutions_and_what_is_between_them_agree(narrow: str) -> None:
    n = Net()

    def convolved(x: str, columns: int, rows: int, extent: int, **more: object) -> str:
        weight = n.random.standard_normal((columns, rows, extent, extent)) / (rows**0.5 * extent)
        return n.op("Conv", x, n.const(weight), n.weight(columns), **more)

    x = n.op("Relu", convolved(n.input("x", 1, 3, 16, 16), 8, 3, 3, pads=[1, 1, 1, 1]))
    x = n.op("MaxPool", n.op("Neg", x), kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])
    deep = convolved(convolved(x, 8, 1, 3, pads=[1, 1, 1, 1], group=8), 8, 8, 1)
    x = n.op("Add", x, deep)
    gate = n.op("Sigmoid", convolved(n.op("GlobalAveragePool", x), 8, 8, 1))
    x = n.op("HardSwish", n.op("Mul", x, gate))
    flat = n.op("Flatten", n.op("GlobalAveragePool", x))
    agrees(n.model(n.op("Gemm", flat, n.weight(8, 10), n.weight(10)), x), narrow)


@both_types
@pytest.mark.parametrize("kind", ["MatMul", "Conv"])
def test_products_that_are_left_to_tvm_sum_in_float32(kind: str, narrow: str) -> None:
    """Eight thousand ones: added one by one, float16 ends at 2048 and bfloat16 at 256."""
    n, depth = Net(), 8192
    if kind == "MatMul":
        y = n.op("MatMul", n.input("x", 2, depth), n.const(np.ones((depth, 4))))
    else:
        y = n.op("Conv", n.input("x", 1, 2, 4096), n.const(np.ones((4, 2, 4096))), group=1)
    model = n.model(n.op("Mul", y, n.const(1 / 4)))
    loaded = load(model.SerializeToString(), {}, narrow=narrow)
    shape = loaded.inputs[0].shape
    feeds: Feeds = {"x": np.ones(shape, np.float32)}
    assert errors(model, narrow, loaded, feeds) == [0.0]


def test_only_float32_values_are_narrowed() -> None:
    n = Net()
    y = n.op("Cast", n.op("MatMul", n.input("x", 4, 8), n.weight(8, 8)), to=11)
    back = n.op("Cast", n.op("Mul", y, n.const(2, np.float64)), to=1)
    loaded = load(n.model(back).SerializeToString(), {}, narrow="float16")
    flow = dataflow(loaded.module["main"])
    doubles = [v for v in flow.order if dtype(v) == "float64"]
    assert len(doubles) == 2 and not any(map(is_wide, doubles))
    agrees(n.model(back), "float16")


@pytest.mark.thorough
@both_types
def test_matrices_of_recurrences_are_narrow_and_states_are_not(narrow: str, tmp_path: Path) -> None:
    given, weights = arrays("LSTM", 2, batch=3, hidden=9)
    model, feeds = recurrent_model("LSTM", "X W R B", given, weights, direction="bidirectional")
    limits = RecurrenceLimits(("float32",))
    found = load(model.SerializeToString(), {}, narrow=narrow, recurrences=limits).module
    (call,) = (v for v in dataflow(found["main"]).values.values() if operator_name(v) == RECURRENCE)
    _, square, *others = call.args[1].fields
    assert dtype(square) == narrow
    assert {dtype(a) for a in others} == {"float32"} == {str(f.dtype) for f in call.ty.fields}
    for made, wanted in zip(
        computed(found, [*feeds.values()], tmp_path), expected(model, feeds), strict=True
    ):
        assert 0 < difference(made, wanted) < PASSES[narrow]


def test_matrices_that_do_not_fit_stay_float32() -> None:
    given, weights = arrays("RNN")
    weights["R"][0, 0, 0] = 1e30
    model, _ = recurrent_model("RNN", "X W R", given, weights)
    limits = RecurrenceLimits(("float32",))
    found = load(model.SerializeToString(), {}, narrow="float16", recurrences=limits).module
    (call,) = (v for v in dataflow(found["main"]).values.values() if operator_name(v) == RECURRENCE)
    assert dtype(call.args[1].fields[1]) == "float32"
