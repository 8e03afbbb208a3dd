"""Any map, reduction, norm or product becomes operators that compute what the model does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from mcfuser.expr import Call, text, walk
from mcfuser.graph.dataflow import dataflow
from mcfuser.graph.lift import Lifted, lift
from mcfuser.graph.load import Loaded, load
from mcfuser.graph.partition import partition
from mcfuser.graph.selection import ChainMatch
from mcfuser.graph.views import Unliftable
from mcfuser.space.program import program
from tests.support.computed_naively import both
from tests.support.nets import Net

Build = Callable[[Net], str]


def lifted(build: Build) -> tuple[onnx.ModelProto, Loaded, Lifted, ChainMatch]:
    """A model, and one chain of all that it computes."""
    net = Net()
    model = net.model(build(net))
    loaded = load(model.SerializeToString(), {})
    flow = dataflow(loaded.module["main"])
    members = tuple(v for v in flow.order if flow.kinds[v] != "other")
    done = lift(flow, members, frozenset(), "whole")
    match = ChainMatch(
        done.chain,
        done.arguments,
        done.constants,
        done.outputs,
        done.shapes,
        members,
        0,
        starts=done.starts,
    )
    return model, loaded, done, match


def x(n: Net, *shape: int, name: str = "x") -> str:
    return n.input(name, *(shape or (2, 6, 8)))


def rms(n: Net) -> str:
    value = x(n)
    mean = n.op("ReduceMean", n.op("Mul", value, value), axes=[-1])
    root = n.op("Sqrt", n.op("Add", mean, n.const(1e-5)))
    return n.op("Mul", n.op("Div", value, root), n.weight(8))


def heads_summed(n: Net) -> str:
    product = n.op("MatMul", x(n), n.weight(8, 12))
    apart = n.op("Transpose", n.op("Reshape", product, n.ints(2, 6, 3, 4)), perm=[0, 2, 1, 3])
    return n.op("ReduceSum", apart, n.ints(2), keepdims=0)


def both_computed(n: Net) -> str:
    left = n.op("MatMul", x(n), n.weight(8, 4))
    right = n.op("MatMul", x(n, 2, 5, 8, name="y"), n.weight(8, 4))
    return n.op("MatMul", left, n.op("Transpose", right, perm=[0, 2, 1]))


def joined(n: Net) -> str:
    """Values whose dimensions are cut in different places meet."""
    one = n.op("Reshape", n.op("Tanh", x(n)), n.ints(2, 48))
    two = n.op("Reshape", n.op("Neg", x(n, 2, 3, 16, name="y")), n.ints(2, 48))
    return n.op("Add", one, two)


def rotary(n: Net) -> str:
    value = x(n, 2, 3, 6, 8)
    low, high = (n.op("Slice", value, n.ints(i), n.ints(i + 4), n.ints(-1)) for i in (0, 4))
    turned = n.op("Concat", n.op("Neg", high), low, axis=-1)
    cosine, sine = n.weight(6, 8), n.weight(6, 8)
    return n.op("Add", n.op("Mul", value, cosine), n.op("Mul", turned, sine))


def three_side_by_side(n: Net) -> str:
    parts = [n.op("Tanh", x(n)), x(n, name="y"), n.op("Exp", "x")]
    return n.op("Neg", n.op("Concat", *parts, axis=1))


def norm_product(n: Net) -> str:
    normal = n.op("LayerNormalization", x(n), n.weight(8), n.weight(8), axis=-1)
    return n.op("Relu", n.op("MatMul", normal, n.weight(8, 10)))


def one_row(n: Net) -> str:
    """A decoder's step: norm, two products side by side, and a third, all of a single row."""
    row = n.op("LayerNormalization", x(n, 1, 1, 8), n.weight(8), n.weight(8), axis=-1)
    gate = n.op("Sigmoid", n.op("MatMul", row, n.weight(8, 12)))
    wide = n.op("Mul", gate, n.op("MatMul", row, n.weight(8, 12)))
    return n.op("Add", "x", n.op("MatMul", wide, n.weight(12, 8)))


def heads_of_one_row(n: Net) -> str:
    """A query that looks at the keys of each of two heads, which are transposed in memory."""
    keys = n.op("Transpose", x(n, 1, 6, 2, 4, name="keys"), perm=[0, 2, 3, 1])
    scores = n.op("MatMul", x(n, 1, 2, 1, 4, name="query"), keys)
    values = n.op("Transpose", x(n, 1, 6, 2, 4, name="values"), perm=[0, 2, 1, 3])
    return n.op("MatMul", n.op("Softmax", scores, axis=-1), values)


def far_columns(n: Net) -> str:
    """A product of columns of two larger values, which begin hundreds of bytes into them."""
    one = n.op("Slice", x(n, 6, 96), n.ints(40), n.ints(48), n.ints(1))
    other = n.op("Slice", x(n, 8, 200, name="y"), n.ints(130), n.ints(141), n.ints(1))
    return n.op("Relu", n.op("MatMul", one, other))


MODELS: dict[str, Build] = {
    "columns far from the first": far_columns,
    "a row, norms and products": one_row,
    "a row, heads": heads_of_one_row,
    "softmax of the first dimension": lambda n: n.op("Softmax", n.op("Exp", x(n)), axis=0),
    "softmax of a middle dimension": lambda n: n.op("Softmax", x(n), axis=1),
    "logarithm of a softmax": lambda n: n.op("LogSoftmax", n.op("Mul", x(n), x(n, 8, name="y"))),
    "mean of two dimensions": lambda n: n.op("ReduceMean", x(n), axes=[0, 2], keepdims=0),
    "maximum": lambda n: n.op("ReduceMax", n.op("Neg", x(n)), axes=[1], keepdims=0),
    "minimum, kept": lambda n: n.op("Sub", x(n), n.op("ReduceMin", "x", axes=[1], keepdims=1)),
    "sum of squares": lambda n: n.op("ReduceSumSquare", x(n), axes=[2], keepdims=0),
    "layer norm of two dimensions": lambda n: n.op(
        "LayerNormalization", x(n), n.weight(6, 8), n.weight(6, 8), axis=1
    ),
    "root-mean-square norm": rms,
    "norm of a single row": lambda n: n.op(
        "LayerNormalization", x(n, 1, 1, 8), n.weight(8), n.weight(8), axis=-1
    ),
    "broadcast both ways": lambda n: n.op("Add", x(n, 6, 1), x(n, 2, 1, 8, name="y")),
    "a product's heads summed": heads_summed,
    "both operands computed": both_computed,
    "dimensions cut apart": joined,
    "norm and product": norm_product,
    "rotary embedding": rotary,
    "three parts side by side": three_side_by_side,
    "a norm after a product": lambda n: n.op(
        "Softmax", n.op("Add", n.op("MatMul", x(n), n.weight(8, 5)), x(n, 2, 6, 5, name="y"))
    ),
}


def check(build: Build, folder: Path) -> None:
    """Compares the chain, computed by its own operators, with onnxruntime."""
    model, loaded, _, match = lifted(build)
    ((ours, theirs),) = both(model, loaded, [match], folder)
    assert ours.shape == np.shape(theirs)
    known = ~np.isnan(theirs)  # of a row that sees nothing
    assert np.linalg.norm((ours - theirs)[known]) <= 2e-6 * np.linalg.norm(theirs[known])


@pytest.mark.parametrize("name", MODELS)
def test_what_is_lifted_means_the_same(name: str, tmp_path: Path) -> None:
    check(MODELS[name], tmp_path)


@pytest.mark.parametrize(("build", "extents"), [(one_row, [1, 12, 8, 8]),
                                                (heads_of_one_row, [2, 1, 6, 4, 4])])  # fmt: skip
def test_a_product_of_a_vector_is_one_of_a_row(build: Build, extents: list[int]) -> None:
    model, _, done, _ = lifted(build)
    assert [a.extent for a in done.chain.axes] == extents
    roles = [r for o in done.chain.operators if (r := o.product) is not None]
    assert len(roles) == sum(node.op_type == "MatMul" for node in model.graph.node)
    assert all(r.rows == ("m",) and r.columns and r.depth for r in roles)


def test_axes_of_values_that_meet_become_the_same() -> None:
    *_, done, _ = lifted(joined)
    assert [a.extent for a in done.chain.axes] == [96]  # both are dense


def test_one_operand_read_by_two_sums_is_one_input() -> None:
    def build(n: Net) -> str:
        value = x(n)
        highest = n.op("ReduceMax", value, axes=[2])
        return n.op("Sub", highest, n.op("ReduceMean", value, axes=[2]))

    *_, done, _ = lifted(build)
    assert len(done.chain.inputs) == 1
    assert len({o.over for o in done.chain.operators if o.over}) == 1


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (
            lambda n: n.op("Add", x(n, 8, 8), n.op("Transpose", n.op("Neg", "x"), perm=[1, 0])),
            "",
        ),
        (lambda n: n.op("ReduceSum", n.op("Neg", x(n)), keepdims=0), "a single number"),
        (lambda n: n.op("Reshape", x(n), n.ints(96)), "view of what is read"),
    ],
)
def test_what_cannot_be_lifted_says_why(build: Build, reason: str) -> None:
    if not reason:
        lifted(build)  # a transpose that is read stays an input of its own
        return
    with pytest.raises(Unliftable, match=reason):
        lifted(build)


def test_a_value_and_its_transpose_do_not_share_axes() -> None:
    def build(n: Net) -> str:
        product = n.op("MatMul", x(n, 8, 8), n.weight(8, 8))
        return n.op("Add", product, n.op("Transpose", product, perm=[1, 0]))

    with pytest.raises(Unliftable, match="its own transpose"):
        lifted(build)


def scores_with(mask: Callable[[Net, str], str]) -> Build:
    def build(n: Net) -> str:
        q, k = x(n, 2, 8, 4, name="q"), x(n, 2, 4, 8, name="k")
        weights = n.op("Softmax", mask(n, n.op("MatMul", q, k)), axis=-1)
        return n.op("MatMul", weights, x(n, 2, 8, 4, name="v"))

    return build


ROWS, COLUMNS = np.indices((8, 8))
CAUSAL = COLUMNS <= ROWS
WINDOW = CAUSAL & (ROWS < COLUMNS + 3)


def added(shown: np.ndarray, hidden: float) -> Callable[[Net, str], str]:
    return lambda n, scores: n.op("Add", n.const(np.where(shown, 0.0, hidden)), scores)


def chosen(shown: np.ndarray) -> Callable[[Net, str], str]:
    return lambda n, scores: n.op("Where", n.const(shown, bool), scores, n.const(-np.inf))


@pytest.mark.parametrize(
    ("mask", "domain"),
    [
        (added(CAUSAL, -np.inf), "n <= m"),
        (added(CAUSAL, -65504.0), "n <= m"),
        (added(CAUSAL[None, None], -1e4), "n <= m"),
        (chosen(CAUSAL), "n <= m"),
        (chosen(WINDOW), "n <= m and m < n + 3"),
        (added(COLUMNS <= ROWS + 2, -np.inf), "n <= m + 2"),
        (added(COLUMNS >= ROWS, -np.inf), "m < n + 1"),
        (added(CAUSAL | (COLUMNS == 7), -np.inf), None),
        (added(CAUSAL, -3.0), None),
        (chosen(CAUSAL & (ROWS != 4)), None),  # a row that sees nothing
    ],
)
def test_a_constant_mask_is_a_condition_where_it_is_one(
    mask: Callable[[Net, str], str], domain: str | None, tmp_path: Path
) -> None:
    build = scores_with(mask)
    *_, done, _ = lifted(build)
    operators = done.chain.operators
    found = {text(o.domain) if o.domain is not None else None for o in operators if o.over}
    assert found == ({None, domain} if domain else {None})
    masked = [o for o in operators if o.domain is not None]
    assert [o.reduce for o in masked] == (["max", "sum", "sum"] if domain else [])
    check(build, tmp_path)


def test_a_masked_value_that_no_softmax_reads_is_masked_where_it_is_computed(
    tmp_path: Path,
) -> None:
    def build(n: Net) -> str:
        scores = n.op("MatMul", x(n, 8, 4, name="q"), x(n, 4, 8, name="k"))
        return n.op("Exp", added(CAUSAL, -1e30)(n, scores))

    *_, done, _ = lifted(build)
    assert "n <= m" in text(done.chain.operators[-1].body)
    check(build, tmp_path)


def test_weights_that_leave_the_chain_are_zero_outside_the_mask(tmp_path: Path) -> None:
    def build(n: Net) -> str:
        scores = n.op("MatMul", x(n, 8, 4, name="q"), x(n, 4, 8, name="k"))
        return n.op("Softmax", added(CAUSAL, -np.inf)(n, scores), axis=-1)

    check(build, tmp_path)


@pytest.mark.parametrize("hidden", [0.0, -np.inf], ids=["all shown", "causal"])
@pytest.mark.parametrize("sink", [False, True])
def test_the_softmax_of_a_model_is_to_base_two(hidden: float, sink: bool) -> None:
    """Its weights are divided before they are multiplied, and their quotients guarded."""
    mask = added(CAUSAL, hidden)

    def build(n: Net) -> str:
        def scaled(n: Net, scores: str) -> str:
            return mask(n, n.op("Mul", scores, n.const(0.5)))

        return (with_a_sink(scaled, its_maximum) if sink else scores_with(scaled))(n)

    *_, done, _ = lifted(build)
    ready = program(done.chain).chain
    found = {e.op for o in ready.operators for e in walk(o.body) if isinstance(e, Call)}
    assert "exp2" in found
    assert ("exp" in found) == sink  # of the sink itself


def with_a_sink(mask: Callable[[Net, str], str], top: Callable[[Net, str], str]) -> Build:
    def build(n: Net) -> str:
        q, k = x(n, 2, 8, 4, name="q"), x(n, 2, 4, 8, name="k")
        scores = mask(n, n.op("MatMul", q, k))
        highest = top(n, scores)
        above = n.op("Exp", n.op("Sub", scores, highest))
        sink = n.op("Exp", n.op("Sub", n.weight(2, 1, 1), highest))
        whole = n.op("Add", n.op("ReduceSum", above, n.ints(-1)), sink)
        return n.op("MatMul", n.op("Div", above, whole), x(n, 2, 8, 4, name="v"))

    return build


def its_maximum(n: Net, scores: str) -> str:
    return n.op("ReduceMax", scores, axes=[-1])


@pytest.mark.parametrize(
    ("mask", "masked"),
    [
        (added(CAUSAL, -np.inf), ["max", "sum", "sum"]),
        (chosen(WINDOW), ["max", "sum", "sum"]),
        (added(CAUSAL, -3.0), []),
    ],
)
def test_a_softmax_with_a_sink_takes_what_its_mask_shows(
    mask: Callable[[Net, str], str], masked: list[str], tmp_path: Path
) -> None:
    build = with_a_sink(mask, its_maximum)
    *_, done, _ = lifted(build)
    assert [o.reduce for o in done.chain.operators if o.domain is not None] == masked
    check(build, tmp_path)


def test_the_exponential_above_another_number_is_masked_where_it_is_computed(
    tmp_path: Path,
) -> None:
    """Something other than the maximum of the masked scores may be the lowest number, too."""

    def other(n: Net, scores: str) -> str:
        return n.op("ReduceMax", n.op("Neg", scores), axes=[-1])

    build = with_a_sink(added(CAUSAL, -1e4), other)
    *_, done, _ = lifted(build)
    assert not any(o.domain is not None for o in done.chain.operators)


def test_attention_with_a_sink_is_one_region(tmp_path: Path) -> None:
    net = Net()
    model = net.model(with_a_sink(added(CAUSAL, -np.inf), its_maximum)(net))
    found = partition(load(model.SerializeToString(), {}).module, 1e12, 1e10)
    assert [p.chain for p in found.products] == [0, 0]
