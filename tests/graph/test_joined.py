"""Chains write into the concatenations that their results are parts of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcfuser.graph.assemble import Installed, Replacement, install
from mcfuser.graph.intermediate import returning
from mcfuser.graph.load import Loaded, load
from mcfuser.graph.partition import Partition, partition
from mcfuser.graph.selection import ChainMatch
from tests.support.computed_naively import agreed, both
from tests.support.lifted import computed
from tests.support.naive import primfunc
from tests.support.nets import Net

BATCH, ROWS, WIDTH, HEADS = 2, 24, 32, 4


def parallel(columns: int, other: str = "product", outputs: int = 1) -> onnx.ModelProto:
    """A block whose attention and feed-forward part are read side by side."""
    n = Net(opset=20)
    x = n.input("x", BATCH, ROWS, WIDTH)
    heads = []
    for order in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)):
        split = n.op("Reshape", n.op("MatMul", x, n.weight(WIDTH, WIDTH)), n.ints(0, 0, HEADS, -1))
        heads.append(n.op("Transpose", split, perm=order))
    shares = n.op("Softmax", n.op("MatMul", *heads[:2]), axis=-1)
    attended = n.op("Transpose", n.op("MatMul", shares, heads[2]), perm=(0, 2, 1, 3))
    attended = n.op("Reshape", attended, n.ints(0, 0, WIDTH))
    match other:
        case "product":
            more = n.op("Gelu", n.op("MatMul", x, n.weight(WIDTH, columns)))
        case "input":
            more = n.input("more", BATCH, ROWS, columns)
        case "itself":
            more = attended
        case _:
            more = n.op("MatMul", x, n.weight(WIDTH, columns))
    joined = n.op("Concat", attended, more, axis=2)
    out = n.op("MatMul", joined, n.weight(WIDTH + (WIDTH if other == "itself" else columns), WIDTH))
    return n.model(*(out, n.op("Neg", more), joined)[:outputs])


def into(parted: Partition) -> list[ChainMatch]:
    """The chains that write into concatenations."""
    return [m for m in parted.matches if m.joined is not None]


def test_attention_and_the_feed_forward_part_beside_it_are_written_into_one_array(
    tmp_path: Path,
) -> None:
    parted = agreed(parallel(48), tmp_path)
    written = into(parted)
    assert len(written) == 2
    assert all((m.priced == m.chain.key) == (m.joined is None) for m in parted.matches)
    assert {m.chain.tensor(t).offset for m in written for t in m.outputs} == {0, WIDTH}
    for m in written:
        ((name, shape),) = ((t, m.shapes[t]) for t in m.outputs)
        assert shape == (BATCH, ROWS, WIDTH + 48)
        assert m.joined is not None and m.joined.key != m.chain.key
        assert m.chain.tensor(name).strides is not None


@pytest.mark.parametrize(
    ("columns", "other", "outputs"),
    [(46, "product", 1), (48, "input", 1), (48, "itself", 1), (48, "product", 2),
     (48, "product", 3)],
    ids=["no vectors", "an input", "one part twice", "read by another", "returned"],
)  # fmt: skip
def test_other_concatenations_are_copied(
    columns: int, other: str, outputs: int, tmp_path: Path
) -> None:
    assert not into(agreed(parallel(columns, other, outputs), tmp_path))


@st.composite
def side_by_side(draw: st.DrawFn) -> tuple[onnx.ModelProto, set[int]]:
    """Results of products behind each other along some dimension, before or after their columns are
    divided; and how many may be written in place: a map may read equal parts as they are."""
    batch, rows, heads = draw(st.integers(1, 3)), 4 * draw(st.integers(1, 4)), 2
    divided, count = draw(st.booleans()), draw(st.integers(2, 3))
    axis = draw(st.integers(0, 3 if divided else 2))
    extents = [draw(st.integers(1, 5)) for _ in range(count)]
    n, parts = Net(), []
    for i, extent in enumerate(extents):
        shape = [batch, rows, heads, 8] if divided else [batch, rows, 16]
        shape[axis] = extent * (4 if axis > 1 else 1)
        columns = shape[2] * shape[3] if divided else shape[2]
        x = n.input(f"x{i}", shape[0], shape[1], 12)
        made = n.op("MatMul", x, n.weight(12, columns))
        made = n.op("Relu", made) if draw(st.booleans()) else made
        parts.append(n.op("Reshape", made, n.ints(0, 0, *shape[2:])) if divided else made)
    whole = n.op("Concat", *parts, axis=axis)
    several = axis > 0 and (axis > 1 or batch > 1)
    return n.model(n.op("Exp", whole)), {count if several else 0, *[0] * (len({*extents}) == 1)}


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(side_by_side())
def test_any_parts_that_have_several_rows_are_written_in_place(
    tmp_path: Path, drawn: tuple[onnx.ModelProto, set[int]]
) -> None:
    model, counts = drawn
    assert len(into(agreed(model, tmp_path))) in counts


def two_sequences(parts: int = 2, extents: tuple[int, int] = (24, 10)) -> onnx.ModelProto:
    """Attention of two sequences to both: queries, keys and values of each by one product, those of
    the second one behind those of the first one."""
    n = Net()
    found = []
    for i, rows in enumerate(extents):
        x = n.input(f"x{i}", BATCH, rows, WIDTH)
        made = [n.op("MatMul", x, n.weight(WIDTH, WIDTH)) for _ in range(3)]
        found.append([n.op("Reshape", v, n.ints(0, 0, HEADS, -1)) for v in made])
    q, k, v = (
        n.op("Transpose", n.op("Concat", *pair[:parts], axis=1), perm=(0, 2, 1, 3))
        for pair in zip(*found, strict=True)
    )
    k = n.op("Transpose", k, perm=(0, 1, 3, 2))
    out = n.op("MatMul", n.op("Softmax", n.op("MatMul", q, k), axis=-1), v)
    return n.model(n.op("Transpose", out, perm=(0, 2, 1, 3)))


def test_rows_of_several_sequences_are_written_behind_each_other(tmp_path: Path) -> None:
    written = into(agreed(two_sequences(), tmp_path))
    assert len(written) == 2, "queries, keys and values of each sequence"
    strides = {m.chain.tensor(t).strides for m in written for t in m.outputs}
    assert all(isinstance(s, tuple) and isinstance(s[0], tuple) for s in strides)


def loaded_and_parted(model: onnx.ModelProto) -> tuple[Loaded, Partition]:
    loaded = load(model.SerializeToString(), {})
    return loaded, partition(loaded.module, 1e12, 1e11)


@pytest.mark.parametrize("left", [0, 1])
def test_what_a_kernel_writes_is_copied_where_tvm_computes_another_part(
    left: int, tmp_path: Path
) -> None:
    model = parallel(48)
    loaded, parted = loaded_and_parted(model)
    gone = into(parted)[left]
    chosen = [m for m in parted.matches if m is not gone]
    for ours, theirs in both(model, loaded, chosen, tmp_path):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_a_part_that_is_also_returned_is_copied(tmp_path: Path) -> None:
    """As the search for the first operator that differs asks for it."""
    loaded, parted = loaded_and_parted(parallel(48))
    made = [
        Installed(f"chain_{i}", m.chain, primfunc(m.chain, m.shapes, m.starts))
        for i, m in enumerate(parted.matches)
    ]
    kernels = [Replacement(m, (k,)) for m, k in zip(parted.matches, made, strict=True)]
    (result,) = into(parted)[0].outputs.values()
    x = np.random.default_rng(0).standard_normal((BATCH, ROWS, WIDTH)).astype(np.float32)
    (alone,) = computed(install(loaded.module, kernels), [x], tmp_path)
    (same, part) = computed(install(returning(loaded.module, [result]), kernels), [x], tmp_path)
    (plain, expected) = computed(returning(loaded.module, [result]), [x], tmp_path)
    for ours, theirs in ((alone, plain), (same, plain), (part, expected)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
