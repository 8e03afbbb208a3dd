"""Chains cut out of small models mean what the models mean, and are the ones to cut."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

from mcfuser.chain import products
from mcfuser.graph.assemble import Installed, Replacement, install
from mcfuser.graph.load import Loaded, bound, load
from mcfuser.graph.partition import Partition, partition
from mcfuser.graph.selection import ChainMatch
from tests.support.computed_naively import agreed
from tests.support.lifted import computed
from tests.support.naive import primfunc
from tests.support.nets import Net
from tests.support.paths import FIXTURES

SHAPES = {"bert_half": {"ids": (1, 16)}, "attention_dynamic": {"x": (2, 16, 24), "mask": (2, 16)}}
ATTENTION = sorted(p.stem for p in FIXTURES.glob("attention_*.onnx"))
FUSED = [
    *ATTENTION, "feed_forward_relu", "feed_forward_gelu", "feed_forward_gelu_tanh",
    "three_products", "product_on_the_right",
    "softmax_over_rows",
]  # fmt: skip
SINGLE = ["linear_transposed", "escaping"]


def given(name: str) -> tuple[Loaded, Partition]:
    loaded = load((FIXTURES / f"{name}.onnx").read_bytes(), SHAPES.get(name, {}))
    return loaded, partition(loaded.module, 100e9, 10e9)


def feeds(loaded: Loaded, name: str) -> dict[str, NDArray[Any]]:
    random = np.random.default_rng(1)
    out: dict[str, NDArray[Any]] = {}
    for port in loaded.inputs:
        if port.dtype in ("bool", "int32", "int64"):
            out[port.name] = (random.random(port.shape) < 0.7).astype(port.dtype)
            out[port.name][..., 0] = 1
        else:
            out[port.name] = random.standard_normal(port.shape).astype(port.dtype)
    if name == "attention_nan_guard":
        out["mask"] = np.where(random.random(out["mask"].shape) < 0.5, -np.inf, 0).astype("float32")
        out["mask"][0, :, 3, :] = -np.inf  # a row that attends to nothing
    return out


def naive(match: ChainMatch, index: int) -> Replacement:
    kernel = Installed(
        f"kernel{index}", match.chain, primfunc(match.chain, match.shapes, match.starts)
    )
    return Replacement(match, (kernel,))


def check(name: str, folder: Path) -> Partition:
    """Compares the module, every chain computed by its own operators, with onnxruntime."""
    loaded, cut = given(name)
    values = feeds(loaded, name)
    replacements = [naive(f, i) for i, f in enumerate(cut.matches)]
    results = computed(install(loaded.module, replacements), [*values.values()], folder)
    model = bound((FIXTURES / f"{name}.onnx").read_bytes(), SHAPES.get(name, {})).proto
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for ours, theirs in zip(results, session.run(None, values), strict=True):
        error = np.linalg.norm(ours.astype("f8") - theirs) / np.linalg.norm(theirs)
        assert error < (2e-3 if "half" in name else 2e-6)
    return cut


@pytest.mark.parametrize("name", FUSED)
def test_two_products_share_a_chain_that_means_the_same(name: str, tmp_path: Path) -> None:
    cut = check(name, tmp_path)
    fused = [m for m in cut.matches if len(products(m.chain)) == 2]
    assert len(fused) == 1
    assert fused[0].saved > 0
    assert all(p.reason is None for p in cut.products if p.chain == cut.matches.index(fused[0]))
    assert all(p.reason for p in cut.products if p.chain != cut.matches.index(fused[0]))


@pytest.mark.parametrize("name", SINGLE)
def test_a_product_alone_means_the_same(name: str, tmp_path: Path) -> None:
    cut = check(name, tmp_path)
    assert cut.products
    assert all(len(products(m.chain)) == 1 for m in cut.matches)


def chain_of(cut: Partition, count: int) -> ChainMatch:
    return next(m for m in cut.matches if len(products(m.chain)) == count)


def first(match: ChainMatch, tensor: str) -> int:
    """The element of an argument that is a tensor's first."""
    return match.chain.tensor(tensor).offset + match.starts.get(tensor, 0)


def test_views_around_attention_cost_nothing() -> None:
    _, cut = given("attention_divide_after")
    match = chain_of(cut, 2)
    left, outer, out = (match.chain.tensor(t) for t in ("A", "D", match.chain.outputs[0]))
    assert match.chain.shape("A") == (2, 3, 16, 8)
    assert left.strides == outer.strides == (1152, 8, 72, 1)  # of one product's 72 columns
    assert sorted(first(match, t) for t in "ABD") == [0, 24, 48]
    assert out.strides == (384, 8, 24, 1)
    assert match.shapes["A"] == (2, 16, 72) and match.shapes[match.chain.outputs[0]] == (2, 16, 24)
    assert [str(o) for o in match.chain.operators] == [
        "C[b, a, m, n] = sum[k] A[b, a, m, k] * B[b, a, n, k]",
        f"X[b, a, m, n] = C[b, a, m, n] * {1 / float(np.float32(8**0.5))!r} + F[b, n]",
        "R[b, a, m] = max[n] X[b, a, m, n]",
        "P[b, a, m, n] = exp(X[b, a, m, n] - R[b, a, m])",
        "Z[b, a, m] = sum[n] P[b, a, m, n]",
        "W[b, a, m, n] = P[b, a, m, n] / Z[b, a, m]",
        "E[b, a, m, h] = sum[n] W[b, a, m, n] * D[b, a, n, h]",
    ]


def test_axes_that_need_no_telling_apart_are_merged() -> None:
    _, cut = given("attention_three_dimensions")
    assert [a.name for a in chain_of(cut, 2).chain.axes] == ["b", "m", "n", "k", "h"]
    _, cut = given("feed_forward_relu")
    assert {a.name: a.extent for a in chain_of(cut, 2).chain.axes} == {
        "m": 32, "n": 40, "k": 24, "h": 24,
    }  # fmt: skip


def test_heads_that_share_a_key_are_rows() -> None:
    _, cut = given("attention_grouped")
    chain = chain_of(cut, 2).chain
    assert chain.shape("A") == (4, 2 * 16, 8)
    assert chain.shape("B") == (4, 16, 8)


def test_layers_that_read_other_parts_of_one_product_are_one_chain(tmp_path: Path) -> None:
    """Keys and values of all layers of a decoder are one product of what its encoder gives."""
    net, seen = Net(), list[str]()
    memory = net.input("memory", 1, 12, 64)

    def heads(weight: str) -> str:
        apart = net.op("Reshape", net.op("MatMul", memory, weight), net.ints(1, 12, 2, 32))
        return net.op("Transpose", apart, perm=[0, 2, 1, 3])

    for layer in range(3):
        query = net.input(f"query{layer}", 1, 2, 64, 32)
        k, v = (heads(net.weight(64, 64)) for _ in range(2))
        scores = net.op("MatMul", query, net.op("Transpose", k, perm=[0, 1, 3, 2]))
        seen.append(net.op("MatMul", net.op("Softmax", scores, axis=-1), v))
    cut = agreed(net.model(*seen), tmp_path)
    layers = [m for m in cut.matches if len(m.chain.operators) > 2]
    assert len(layers) == 3 and len({m.chain.key for m in layers}) == 1
    assert sorted(n for m in layers for n in m.starts.values()) == [64, 128, 192, 256, 320]


def test_parts_of_one_product_are_read_in_place() -> None:
    _, cut = given("attention_packed")
    match = chain_of(cut, 2)
    assert [first(match, t) for t in "ABD"] == [0, 24, 48]
    assert len({v.name for v in match.arguments.values()}) == 1


def test_half_precision_is_summed_in_single() -> None:
    _, cut = given("attention_half")
    chain = chain_of(cut, 2).chain
    assert chain.tensor("A").dtype == chain.tensor(chain.outputs[0]).dtype == "float16"
    assert {chain.tensor(t).dtype for t in "CXRPZW"} == {"float32"}
    assert "float16(W[b, m, n]) * D" in str(chain)


def test_a_row_without_keys_is_guarded_by_its_sum() -> None:
    _, cut = given("attention_nan_guard")
    assert "select(0.5 < Z" in str(chain_of(cut, 2).chain)


def test_equal_blocks_are_equal_chains() -> None:
    _, cut = given("bert_half")
    norms = [m.chain for m in cut.matches if not products(m.chain)][1:]  # not the embeddings' one
    assert len(norms) == 2
    assert len({c.key for c in norms}) == 1
    assert len({c.name for c in norms}) == 2


def test_the_larger_saving_wins_and_the_other_is_told_so() -> None:
    _, cut = given("three_products")
    assert [p.chain for p in cut.products] == [0, 0, 1]
    assert cut.matches[0].saved == 2 * 16 * 48 * 4


def test_a_gate_and_the_product_after_it_share_a_chain(tmp_path: Path) -> None:
    cut = check("feed_forward_gated", tmp_path)
    (match,) = cut.matches
    assert [o.out for o in products(match.chain)] == ["C", "E", "E1"]
    first, second = (match.chain.operator(t) for t in "CE")
    assert first.over == second.over == ("k",)  # both sum over one axis of one input
    assert match.chain.inputs[0] == "A" and "A" in str(first.body) and "A" in str(second.body)
    assert match.saved == 3 * 2 * 32 * 40 * 4
    assert [p.reason for p in cut.products] == [None] * 3


def test_a_norm_that_no_product_computes_is_a_chain(tmp_path: Path) -> None:
    cut = check("normalization_spelled_out", tmp_path)
    (match,) = cut.matches
    assert [(o.reduce, o.over) for o in match.chain.operators] == [
        ("sum", ("n",)), ("none", ()), ("sum", ("n",)), ("none", ()),
    ]  # fmt: skip


def test_a_value_that_escapes_forbids_the_chain_and_is_named() -> None:
    _, cut = given("escaping")
    assert "is an output of the model" in (cut.products[0].reason or "")


def test_a_softmax_over_rows_is_lifted_as_it_is() -> None:
    _, cut = given("softmax_over_rows")
    maxima = next(o for o in chain_of(cut, 2).chain.operators if o.reduce == "max")
    assert maxima.over == ("m",)


def test_other_dtypes_are_left_to_tvm() -> None:
    _, cut = given("double")
    assert cut.matches == ()
    assert "float64" in (cut.products[0].reason or "")


def test_phi_is_flops_per_byte_against_the_device() -> None:
    loaded, _ = given("escaping")
    for peak, mbci in ((1e12, True), (1e9, False)):
        first = partition(loaded.module, peak, 1e9).products[0]
        assert (first.rows, first.columns, first.depth) == (16, 48, 8)
        assert first.phi == pytest.approx(2 * 16 * 48 * 8 / (4 * (2 * 16 * 48 + 8 * (16 + 48))))
        assert first.mbci is mbci


def test_reductions_of_several_dimensions_share_a_chain(tmp_path: Path) -> None:
    cut = check("no_product", tmp_path)
    (match,) = cut.matches
    assert cut.products == ()
    assert [o.over for o in match.chain.operators if o.reduce != "none"] == [("p",), ("p",), ("n",)]


@pytest.mark.parametrize(
    ("build", "taken"),
    [
        (lambda n: n.op("ReduceMean", maps(n), axes=[2, 3]), True),
        (lambda n: n.op("ReduceMax", maps(n), axes=[-1, 2], keepdims=0), True),
        (lambda n: n.op("ReduceSum", maps(n), n.ints(0, 1, 2)), False),
        (lambda n: n.op("GlobalAveragePool", maps(n)), True),
        (lambda n: n.op("MaxPool", maps(n), kernel_shape=[64, 64]), True),
        (lambda n: n.op("Softmax", n.input("x", 1, 1, 4, 8), axis=3), False),
    ],
)
def test_few_sums_of_many_terms_are_a_chain_where_the_terms_lie_side_by_side(
    build: Callable[[Net], str], taken: bool
) -> None:
    """Sixteen results of 65,536 elements, or 64 where the first dimensions are summed: of those TVM
    computes many at a time."""
    net = Net()
    model = net.model(build(net)).SerializeToString()
    cut = partition(load(model, {}).module, 100e9, 10e9)
    assert (len(cut.matches) == 1) == taken
    reasons = [why for why in cut.left.values() if why.startswith("too small to pay")]
    assert (len(reasons) == 1) != taken


@pytest.mark.parametrize(
    ("axis", "pictures", "taken"), [(1, 1, False), (-3, 1, False), (1, 2, True), (2, 1, True)]
)
def test_tensors_that_are_put_behind_each_other_in_memory_are_no_chain(
    axis: int, pictures: int, taken: bool
) -> None:
    net = Net()
    given = [net.input(name, pictures, 8, 64, 64) for name in "xy"]
    model = net.model(net.op("Concat", *given, axis=axis)).SerializeToString()
    cut = partition(load(model, {}).module, 100e9, 10e9)
    assert (len(cut.matches) == 1) == taken
    assert ("it puts tensors behind each other in memory" in cut.left.values()) != taken


def maps(n: Net) -> str:
    return n.input("x", 2, 8, 64, 64)


def recurrence(steps: int, kind: str, width: int = 16) -> onnx.ModelProto:
    """A recurrence whose steps are written out, each with a row of what is given, cut out as a
    slice or gathered."""
    n = Net()
    rows = n.op("MatMul", n.input("x", steps, 2, 8), n.weight(8, width))
    weight, state = n.weight(width, width), n.input("h", 2, width)
    for i in range(steps):
        if kind == "Slice":
            cut = n.op("Slice", rows, n.ints(i), n.ints(i + 1), n.ints(0))
            row = n.op("Squeeze", cut, n.ints(0))
        else:
            row = n.op("Gather", rows, n.const(i, np.int64), axis=0)
        state = n.op("Tanh", n.op("Add", n.op("MatMul", state, weight), row))
    return n.model(state)


@pytest.mark.parametrize("kind", ["Slice", "Gather"])
def test_many_steps_that_an_exporter_wrote_out_share_a_kernel(kind: str, tmp_path: Path) -> None:
    """Few of them, and large ones, are read where they are, and all of them on a GPU."""

    def begins(parted: Partition) -> set[int]:
        """Where tensors of the chains begin in what is read."""
        return {first(m, t.name) for m in parted.matches for t in m.chain.tensors}

    def parted(model: onnx.ModelProto, copies: bool = True) -> Partition:
        module = load(model.SerializeToString(), {}).module
        return partition(module, 100e9, 10e9, copies=copies)

    assert begins(agreed(recurrence(12, kind), tmp_path)) == {0}
    assert begins(parted(recurrence(12, kind), copies=False)) == {32 * i for i in range(12)}
    assert begins(parted(recurrence(5, kind))) == {32 * i for i in range(5)}
    assert len(begins(parted(recurrence(9, kind, width=2560)))) == 9
