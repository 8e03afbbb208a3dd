"""Chains: what they check, what makes two of them equal, and how they are written."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcfuser.chain import (
    Axis,
    Bounds,
    Chain,
    Digit,
    Operator,
    Padding,
    Stride,
    Tensor,
    attention,
    batch_axes,
    flops,
    from_json,
    from_text,
    gemm,
    inline,
    nbytes,
    over_window,
    parse_operator,
    parts,
    products,
    reduces,
    shared_axes,
    subchain,
    to_json,
)
from mcfuser.errors import ChainError, InputError
from mcfuser.expr import Read, parse, read
from mcfuser.space.program import program
from mcfuser.space.reference import evaluate
from mcfuser.space.tiles import tile_sizes
from tests.support.chains import LINES, chain, depthwise, extents, inputs, named, renamed
from tests.support.paths import CHAINS

EXAMPLES = sorted((CHAINS).glob("*.json"))
chains = st.builds(named, st.sampled_from(sorted(LINES)), extents())

# --- written and read -----------------------------------------------------------------------


@st.composite
def decorated(draw: st.DrawFn) -> Chain:
    """A chain with any dtypes, strides, offsets and run-time extents that it may have."""
    c = draw(chains)
    dtypes = st.sampled_from(["float16", "bfloat16", "float32", "float64"])
    tensors = []
    for t in c.tensors:
        strides = tuple(draw(st.integers(0, 99)) for _ in t.shape) if draw(st.booleans()) else None
        if strides is not None and t.name not in c.inputs:  # no two elements of an output meet
            sizes = c.shape(t.name)
            strides = tuple(2 * math.prod(sizes[i + 1 :]) for i in range(len(sizes)))
        tensors.append(
            replace(t, dtype=draw(dtypes), constant=draw(st.booleans()), strides=strides,
                    offset=draw(st.integers(0, 50)))
        )  # fmt: skip
    axes = [
        replace(a, extent=Bounds(draw(st.integers(1, c.size(a.name))), c.size(a.name)))
        if draw(st.booleans())
        else a
        for a in c.axes
    ]
    outputs = draw(st.sets(st.sampled_from([o.out for o in c.operators]), min_size=1))
    return Chain("any", tuple(axes), tuple(tensors), c.operators, tuple(sorted(outputs)))


@settings(max_examples=100, deadline=None)
@given(decorated())
def test_a_chain_survives_its_json(c: Chain) -> None:
    again = from_json(json.loads(json.dumps(to_json(c))))
    assert again == c
    assert again.key == c.key


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 4), st.integers(1, 9), st.integers(0, 3), st.booleans())
def test_runs_of_rows_that_lie_apart_survive_it(
    many: int, rows: int, apart: int, written: bool
) -> None:
    runs: Stride = (Digit(many, (rows + apart) * 5), Digit(rows, 5))
    axes = (Axis("m", many * rows), Axis("n", 5))
    laid = [Tensor(t, ("m", "n"), strides=(runs, 1) if (t == "Y") == written else None)
            for t in "XY"]  # fmt: skip
    c = Chain("c", axes, tuple(laid), (Operator("Y", ("m", "n"), read("X", "m", "n")),), ("Y",))
    assert from_json(json.loads(json.dumps(to_json(c)))) == c


def test_windows_of_several_digits_along_padding_survive_it() -> None:
    windows: Stride = (Digit(2, 8, 0), Digit(3, 2, 0))
    padded = Tensor("X", ("m",), strides=(windows,), offset=1, padding=(Padding(9, 2, 1, 0.5),))
    c = Chain("c", (Axis("m", 6),), (padded, Tensor("Y", ("m",))),
              (Operator("Y", ("m",), read("X", "m")),), ("Y",))  # fmt: skip
    assert from_json(json.loads(json.dumps(to_json(c)))) == c


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_the_examples_load_and_mean_something(path: Path) -> None:
    document = json.loads(path.read_text())
    c = from_json(document)
    assert c.name == path.stem
    assert from_json(to_json(c)) == c
    small = {a: min(e, 16) for a, e in document["axes"].items()}
    tiny = from_json(document | {"axes": small})
    result = evaluate(tiny, {n: np.abs(a) for n, a in inputs(tiny).items()})
    assert all(np.isfinite(result[o]).all() for o in tiny.outputs)


def test_a_line_tells_whether_it_reduces() -> None:
    one = from_json(json.loads(next(CHAINS.glob("*.json")).read_text()))
    for line, o in zip(to_json(one)["operators"], one.operators, strict=True):
        assert reduces(line) == (o.reduce != "none")
    assert reduces("M[m] = max[n] A[m, n] where n <= m") and not reduces("M[m] = max(A[m], B[m])")
    assert not reduces("sum[n] A[m, n]")


def test_there_are_the_examples_that_the_documentation_names() -> None:
    assert [p.stem for p in EXAMPLES] == [
        "alibi_attention", "attention", "cached_decode_attention", "causal_attention",
        "cross_entropy", "decode_attention", "decode_grouped_query_attention", "entropy",
        "expected_score", "gated_ffn", "grouped_query_attention", "layer_norm",
        "layer_norm_projection", "log_sum_exp", "masked_attention", "rms_norm_projection",
        "rms_norm_swiglu", "sink_attention", "sliding_window_attention", "soft_cap_attention",
    ]  # fmt: skip


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_the_examples_can_be_placed(path: Path) -> None:
    from mcfuser.space.expression import bind, tilings
    from mcfuser.space.plan import Plan

    ready = program(from_json(json.loads(path.read_text())))
    expression = bind(ready.chain, tilings(ready.chain)[0])
    plan = Plan(ready, expression, frozenset())
    tiles = {a: tile_sizes(ready.chain.size(a))[0] for a in plan.axes}
    assert plan.schedule(tiles).grid


def test_what_operators_write_need_not_be_declared() -> None:
    c = from_json({"axes": {"m": 4}, "tensors": {"X": {"shape": ["m"]}},
                   "operators": ["Y[m] = X[m] + 1.0", "W[m] = Y[m] * 2.0"]})  # fmt: skip
    assert c.tensor("Y") == Tensor("Y", ("m",), "float32")
    assert c.outputs == ("W",)
    assert c.inputs == ("X",)
    assert c.name == "chain"


def test_an_operator_prints_as_it_is_written() -> None:
    lines = [
        "out[m, h] = sum[n] P[m, n] * V[n, h] where n <= m",
        "R[m] = max[n, k] A[m, n, k + 1]",
        "Y[m] = exp(X[m])",
        "T[] = sum[m] X[m]",
    ]
    assert [str(parse_operator(line)) for line in lines] == lines


# --- equal chains ---------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(chains, st.randoms(use_true_random=False))
def test_names_are_not_part_of_the_key(c: Chain, random) -> None:
    letters = [a.name for a in c.axes]
    fresh = random.sample([x + d for x in "abcdefgz" for d in ("", "1", "22")], len(letters))
    words = [f"t_{i}" for i in range(len(c.tensors))]
    random.shuffle(words)
    tensors = dict(zip((t.name for t in c.tensors), words, strict=True))
    other = replace(renamed(c, dict(zip(letters, fresh, strict=True)), tensors), name="other")
    assert other.key == c.key
    assert other != c


def _mutants() -> dict[str, Chain]:
    c = named("mlp", {"m": 6, "n": 7, "k": 8, "h": 9})
    x, *rest = c.tensors
    a, *axes = c.axes
    first, *after = c.operators
    return {
        "itself": c,
        "extent": replace(c, axes=(*c.axes[:-1], Axis("h", 10))),
        "run-time extent": replace(c, axes=(Axis(a.name, Bounds(1, 6)), *axes)),
        "other bounds": replace(c, axes=(Axis(a.name, Bounds(2, 6)), *axes)),
        "dtype": replace(c, tensors=(replace(x, dtype="float16"), *rest)),
        "constant": replace(c, tensors=(replace(x, constant=True), *rest)),
        "strides": replace(c, tensors=(replace(x, strides=(1, 6)), *rest)),
        "offset": replace(c, tensors=(replace(x, offset=3), *rest)),
        "outputs": replace(c, outputs=("C", "Y")),
        "order of outputs": replace(c, outputs=("Y", "C")),
        "reducer": replace(c, operators=(replace(first, reduce="max"), *after)),
        "domain": replace(c, operators=(replace(first, domain=parse("k <= n")), *after)),
        "other domain": replace(c, operators=(replace(first, domain=parse("k < n")), *after)),
        "body": replace(
            c, operators=(replace(first, body=parse("A[m, k] * B[k, n] * 2.0")), *after)
        ),
        "constant of a body": replace(
            c, operators=(replace(first, body=parse("A[m, k] * B[k, n] * 2.5")), *after)
        ),
        "type of a constant": replace(
            c, operators=(replace(first, body=parse("A[m, k] * B[k, n] * 2")), *after)
        ),
        "order of operands": replace(
            c, operators=(replace(first, body=parse("B[k, n] * A[m, k]")), *after)
        ),
    }


def test_everything_else_is_part_of_the_key() -> None:
    mutants = _mutants()
    keys = {c.key: name for name, c in mutants.items()}
    assert len(keys) == len(mutants), set(mutants) - set(keys.values())


# --- what does not fit ----------------------------------------------------------------------

GOOD: dict[str, object] = {
    "name": "two",
    "axes": {"m": 4, "n": 5, "k": 6},
    "tensors": {"A": {"shape": ["m", "k"]}, "B": {"shape": ["k", "n"]}},
    "operators": ["C[m, n] = sum[k] A[m, k] * B[k, n]", "Y[m, n] = exp(C[m, n])"],
}


def lines(*operators: str) -> dict[str, object]:
    return {"operators": list(operators)}


def around(*dimensions: int, **changes: object) -> dict[str, object]:
    """Padding before and after two positions of a dimension."""
    plain = {"dimensions": [*dimensions], "extent": 2, "stride": 6, "before": 1}
    return plain | changes


def tensors(**shapes: object) -> dict[str, object]:
    return {"tensors": {**GOOD["tensors"], **shapes}}  # type: ignore[dict-item]


BAD = {
    "no operator": (lines(), "chain 'two' has no operator"),
    "name of an axis": (
        {"axes": {"m": 4, "n": 5, "k": 6, "Row": 3}},
        "axis 'Row' must be a small letter, then digits if need be",
    ),
    "no extent": (
        {"axes": {"m": 0, "n": 5, "k": 6}},
        "axis 'm' has extent 0; it must be at least 1",
    ),
    "bounds the wrong way": (
        {"axes": {"m": [9, 4], "n": 5, "k": 6}},
        "axis 'm' has extent Bounds(low=9, high=4); it must be at least 1",
    ),
    "unknown axis of an operator": (
        {"axes": {"m": 4, "k": 6}, "tensors": {"A": {"shape": ["m", "k"]}, "B": {"shape": [6, 5]}}},
        "tensor 'C' has a dimension of unknown axis 'n'",
    ),
    "axis with no extent": (
        lines("C[m, n] = sum[k] A[m, k] * B[k, n] * j"),
        "operator 'C' uses axis 'j', which has no extent",
    ),
    "unknown axis of a tensor": (
        tensors(D={"shape": ["q"]}),
        "tensor 'D' has a dimension of unknown axis 'q'",
    ),
    "name of a tensor": (
        tensors(**{"a b": {"shape": ["m"]}}),
        "tensor 'a b' must be named by letters, digits and '_'",
    ),
    "dtype": (
        tensors(A={"shape": ["m", "k"], "dtype": "float8"}),
        "tensor 'A' has dtype 'float8'; use float16, bfloat16, float32",
    ),
    "strides": (
        tensors(A={"shape": ["m", "k"], "strides": [1]}),
        "tensor 'A' has 2 dimensions, 1 strides",
    ),
    "unknown tensor": (
        lines("C[m, n] = sum[k] A[m, k] * W[k, n]"),
        "operator 'C' reads tensor 'W', which is not declared",
    ),
    "cycle of one": (
        lines("C[m, n] = C[m, n] + B[k, n]"),
        "operator 'C' reads along axis 'k', which it neither keeps nor reduces",
    ),
    "itself": (
        lines("C[m, n] = C[m, n] * 2.0"),
        "operator 'C' reads tensor 'C', which is computed only later: a cycle",
    ),
    "cycle": (
        lines("C[m, k] = A[m, k] + D[m, k]", "D[m, k] = C[m, k] * 2.0"),
        "operator 'C' reads tensor 'D', which is computed only later: a cycle",
    ),
    "cycle through a domain": (
        lines("C[m] = sum[k] A[m, k] where D[m] < 1.0", "D[m] = C[m] * 2.0"),
        "operator 'C' reads tensor 'D', which is computed only later: a cycle",
    ),
    "reduced axis that its inputs lack": (
        lines("C[m] = sum[k, n] A[m, k]"),
        "operator 'C' reduces over axis 'n', which its inputs lack",
    ),
    "axis that is neither kept nor reduced": (
        lines("C[m] = sum[k] A[m, k] * B[k, n]"),
        "operator 'C' reads along axis 'n', which it neither keeps nor reduces",
    ),
    "domain over an axis that is gone": (
        lines("C[m] = sum[k] A[m, k] where n < m"),
        "operator 'C' reads along axis 'n', which it neither keeps nor reduces",
    ),
    "axis kept and reduced": (
        lines("C[m, k] = sum[k] A[m, k]"),
        "operator 'C' names an axis twice among m, k, k",
    ),
    "reduction over nothing": (
        lines("C[m] = sum[] A[m, 0]"),
        "operator 'C': a reduction needs axes to reduce over, a map none",
    ),
    "wrong dimensions": (
        lines("C[m, n] = sum[k] A[m, k] * B[n]"),
        "operator 'C' reads 'B' with 1 indices, but it has 2 dimensions",
    ),
    "two extents along one index": (
        lines("C[m, n] = sum[k] A[m, k] * B[n, k]"),
        "operator 'C' reads 'B' along axis k at 0..5, but that dimension has extent 5",
    ),
    "out of bounds above": (
        lines("C[m] = sum[k] A[m, k + 1]"),
        "operator 'C' reads 'A' along axis k at 1..6, but that dimension has extent 6",
    ),
    "out of bounds below": (
        lines("C[m] = sum[k] A[m, 4 - k]"),
        "operator 'C' reads 'A' along axis k at -1..4, but that dimension has extent 6",
    ),
    "constant out of bounds": (
        lines("C[m] = A[m, 6]"),
        "operator 'C' reads 'A' along axis a constant at 6..6, but that dimension has extent 6",
    ),
    "shape of the result": (
        tensors(C={"shape": ["n", "m"]}),
        "operator 'C' keeps axes ('m', 'n'), but its tensor has dimensions ('n', 'm')",
    ),
    "written twice": (
        lines("C[m] = A[m, 0]", "C[m] = A[m, 1]"),
        "'C' of chain 'two' is defined twice",
    ),
    "output of no operator": ({"outputs": ["A"]}, "output 'A' is written by no operator"),
    "not a line": (lines("C = A"), "'C = A' is not an operator: write out[m, n] = sum[k] "),
    "unknown reducer": (lines("C[m] = all[k] A[m, k]"), "'all[k] A[m, k]' is not an expression"),
    "an output named twice": (
        {"outputs": ["C", "C"]},
        "output 'C' of chain 'two' is defined twice",
    ),
    "a name of two lines": ({"name": "a\nimport os"}, "must be one line of at most 500 printable"),
    "a long axis": ({"axes": {"m": 10**12, "n": 5, "k": 6}}, "it must be at most 2147483647"),
    "padding of a result": (
        tensors(C={"shape": ["m", "n"], "strides": [5, 1], "padding": [around(0)]}),
        "tensor 'C' has padding, and an operator writes it; pad an input",
    ),
    "padding without strides": (
        tensors(A={"shape": ["m", "k"], "padding": [around(0)]}),
        "the padding of tensor 'A' needs strides, and dimensions that it has",
    ),
    "padding along no dimension": (
        tensors(A={"shape": ["m", "k"], "strides": [6, 1], "padding": [around()]}),
        "tensor 'A' has 1 paddings, and dimensions along those with the numbers []",
    ),
    "padding of nothing": (
        tensors(A={"shape": ["m", "k"], "strides": [6, 1], "padding": [around(0, extent=0)]}),
        "padding around an extent of 0 with stride 6, 1 positions before it; use at least 1, 1",
    ),
    "padding with steps between": (
        tensors(A={"shape": ["m", "k"], "strides": [9, 1], "padding": [around(0)]}),
        "tensor 'A' moves along padding with stride 6 by parts of that",
    ),
    "padding with two numbers": (
        tensors(
            A={
                "shape": ["m", "k"],
                "strides": [6, 1],
                "padding": [around(0), around(1, stride=1, value=2.0)],
            }
        ),
        "has padding with the values 0.0, 2.0; it must be one finite number",
    ),
    "padding with no number": (
        tensors(A={"shape": ["m", "k"], "strides": [6, 1], "padding": [around(0, value="x")]}),
        "the value of padding is a number, not 'x'",
    ),
    "padding of what is known at run time": (
        {"axes": {"m": [1, 4], "n": 5, "k": 6}}
        | tensors(A={"shape": ["m", "k"], "strides": [6, 1], "padding": [around(0)]}),
        "tensor 'A' has padding along axis 'm', whose extent is known at run time only",
    ),
    "negative strides": (
        tensors(A={"shape": ["m", "k"], "strides": [-5, 1]}),
        "none may be negative: an index may run backwards, as in A[3 - m]",
    ),
    "an output that overlaps itself": (
        tensors(C={"shape": ["m", "n"], "strides": [0, 1]}) | {"outputs": ["C"]},
        "two of its elements share a place",
    ),
    "a sum of two thousand terms": (
        lines("C[m] = sum[k] " + " + ".join(["A[m, k]"] * 2000)),
        "too many operations inside",
    ),
    "a deep expression": (
        lines("C[m] = sum[k] " + "abs(" * 160 + "A[m, k]" + ")" * 160),
        "inside one another, with the maps that it reads; at most",
    ),
    "maps that double": (
        {
            "operators": [
                "F0[m] = A[m, 0]",
                *(f"F{i + 1}[m] = F{i}[m] + F{i}[m]" for i in range(30)),
            ]
        },
        "operations, ",
    ),
    "a sum of conditions": (
        lines("C[m] = sum[k] A[m, k]") | tensors(C={"shape": ["m"], "dtype": "bool"}),
        "reduces into a bool; give 'C' the dtype int32",
    ),
    "a number beyond 64 bits": (
        lines("C[m] = sum[k] A[m, k] * 99999999999999999999"),
        "64 bits hold",
    ),
    "a minimum": (lines("C[m] = min[k] A[m, k]"), "reduces by min; write the maximum of what is"),
    "runs of other rows": (
        tensors(A={"shape": ["m", "k"], "strides": [[[2, 60], [3, 6]], 1]}),
        "tensor 'A' has strides for 2 x 3 positions along one of 4",
    ),
    "runs of no rows": (
        tensors(A={"shape": ["m", "k"], "strides": [[[-2, 60], [-2, 6]], 1]}),
        "tensor 'A' has strides for -2 x -2 positions along one of 4",
    ),
    "runs along a padding that is none": (
        tensors(A={"shape": ["m", "k"], "strides": [[[2, 60, 1], [2, 6, 1]], 1]}),
        "tensor 'A' has 0 paddings, and dimensions along those with the numbers [1]",
    ),
    "a run without a stride": (
        tensors(A={"shape": ["m", "k"], "strides": [[[2], [2, 6]], 1]}),
        "a stride of tensor 'A' is a number, or a list of an extent and a stride each, not [2]",
    ),
    "runs of runs of runs": (
        tensors(A={"shape": ["m", "k"], "strides": [[[1, 0]] * 9, 1]}),
        "a stride of tensor 'A' has 9 digits; use at most 8",
    ),
    "rows in no runs": (
        tensors(A={"shape": ["m", "k"], "strides": [[], 1]}),
        "tensor 'A' has strides for no positions along one of 4",
    ),
    "no axes": ({"axes": None}, "the chain document is not of the documented form: an object was"),
    "extent in words": (
        {"axes": {"m": "4"}},
        "an extent is a whole number or [low, high], not '4'",
    ),
    "operators not a list": ({"operators": "C"}, "a list was expected where 'C' stands"),
    "tensor not an object": (
        tensors(A=["m", "k"]),
        "an object was expected where ['m', 'k'] stands",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_fit_is_named(name: str) -> None:
    change, message = BAD[name]
    with pytest.raises(ChainError) as caught:
        from_json({**GOOD, **change})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_good_chain_of_these_fits() -> None:
    assert from_json(GOOD).outputs == ("Y",)


@pytest.mark.parametrize("missing", ["axes", "operators"])
def test_a_document_says_what_it_lacks(missing: str) -> None:
    with pytest.raises(ChainError, match=f"the chain document has no '{missing}'"):
        from_json({k: v for k, v in GOOD.items() if k != missing})


def test_an_axis_with_two_extents_is_refused() -> None:
    axes = (Axis("m", 4), Axis("m", 8))
    with pytest.raises(ChainError, match="axis 'm' of chain 'c' is defined twice"):
        Chain("c", axes, (Tensor("X", ("m",)), Tensor("Y", ("m",))),
              (Operator("Y", ("m",), read("X", "m")),))  # fmt: skip


def test_an_undeclared_result_is_refused() -> None:
    with pytest.raises(ChainError, match="operator 'Y' writes a tensor that is not declared"):
        Chain("c", (Axis("m", 4),), (Tensor("X", ("m",)),),
              (Operator("Y", ("m",), read("X", "m")),))  # fmt: skip


def test_a_tensor_may_be_larger_than_what_is_read() -> None:
    c = from_json({**GOOD, **tensors(A={"shape": [4, 9]})})
    assert c.shape("A") == (4, 9)


@pytest.mark.parametrize(
    "change",
    [
        {"axes": {"m": ["a", 4], "n": 5, "k": 6}},
        tensors(A={"shape": ["m", "k"], "offset": "far"}),
        tensors(A={"shape": ["m", "k"], "strides": ["a", 1]}),
        tensors(A={"shape": ["m", "k"], "strides": [[[2, "a"], [2, 6]], 1]}),
    ],
)
def test_numbers_that_are_none_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(InputError, match=r"'a'|'far'"):
        from_json({**GOOD, **change})


@pytest.mark.parametrize("word", ["in", "is", "lambda", "None"])
def test_a_tensor_whose_name_no_expression_can_read_is_refused(word: str) -> None:
    with pytest.raises(ChainError, match=word):
        Chain("c", (Axis("m", 4),), (Tensor(word, ("m",)), Tensor("Y", ("m",))),
              (Operator("Y", ("m",), Read(word, read("X", "m").indices)),))  # fmt: skip


# --- the short forms ------------------------------------------------------------------------


def test_the_short_forms_are_the_papers_chains() -> None:
    g = from_text("gemm:2,3,4,5,6")
    assert g == gemm(2, 3, 4, 5, 6)
    assert {a.name: a.extent for a in g.axes} == {"b": 2, "m": 3, "n": 4, "k": 5, "h": 6}
    x = inputs(g)
    np.testing.assert_allclose(evaluate(g, x)["E"], x["A"] @ x["B"] @ x["D"])
    a = from_text("attention: 2, 3, 4, 5, 6", "float16")
    assert a == attention(2, 3, 4, 5, 6, "float16")
    x = inputs(a)
    s = x["Q"] @ x["K"].transpose(0, 2, 1) / 5**0.5
    p = np.exp(s - s.max(-1, keepdims=True))
    np.testing.assert_allclose(evaluate(a, x)["O"], p / p.sum(-1, keepdims=True) @ x["V"])


def test_a_short_form_stores_its_inputs_and_outputs_in_the_dtype() -> None:
    c = attention(1, 8, 8, 8, 8, "float16")
    assert {c.tensor(t).dtype for t in (*c.inputs, *c.outputs)} == {"float16"}
    assert {c.tensor(t).dtype for t in "SXRPZU"} == {"float32"}


@pytest.mark.parametrize(
    "words", ["gemm", "gemm:1,2,3,4", "gemm:1,2,3,4,5,6", "gemm:1,2,3,4,-5", "gemm:1,2,3,4,x",
              "conv:1,2,3,4,5", ""],
)  # fmt: skip
def test_other_words_are_refused_with_the_forms(words: str) -> None:
    with pytest.raises(ChainError) as caught:
        from_text(words)
    assert f"chain '{words}' is neither gemm:batch,M,N,K,H nor attention:" in str(caught.value)


def test_an_extent_of_nothing_is_refused() -> None:
    with pytest.raises(ChainError, match="axis 'n' has extent 0; it must be at least 1"):
        from_text("gemm:1,8,0,8,8")


def test_digits_that_are_no_number_are_refused() -> None:
    with pytest.raises(ChainError, match="is neither gemm:batch,M,N,K,H nor attention:"):
        from_text("gemm:1,²,3,4,5")


# --- what is known of a chain ---------------------------------------------------------------


def test_the_roles_of_a_products_axes() -> None:
    c = named("gemm", {"b": 2, "m": 3, "n": 4, "k": 5, "h": 6})
    roles = c.operator("C").product
    assert roles is not None
    assert (roles.batch, roles.rows, roles.columns, roles.depth) == (("b",), ("m",), ("n",), ("k",))
    assert roles.left.tensor == "A"
    swapped = parse_operator("C[m, n] = sum[k] float16(B[k, n]) * A[m, k]").product
    assert swapped is not None
    assert (swapped.left.tensor, swapped.right.tensor) == ("A", "B")


@pytest.mark.parametrize(
    "line",
    [
        "C[m] = sum[k] A[m, k]",
        "C[m] = sum[k] A[m, k] * A[m, k]",
        "C[m, n] = max[k] A[m, k] * B[k, n]",
        "C[m, n] = sum[k] A[m, k] + B[k, n]",
        "C[m, n] = sum[k] exp(A[m, k]) * B[k, n]",
        "C[m, n] = sum[k] A[m, k] * B[0, n]",
        "C[m, n] = A[m, 0] * B[0, n]",
    ],
)
def test_what_is_no_product(line: str) -> None:
    assert parse_operator(line).product is None


def test_a_matrix_times_a_vector_has_no_columns() -> None:
    roles = parse_operator("y[m] = sum[k] A[m, k] * x[k]").product
    assert roles is not None
    assert (roles.rows, roles.columns) == (("m",), ())


def test_a_depthwise_convolution_is_over_windows() -> None:
    for c in (depthwise(), depthwise(3, stride=2), depthwise(8)):
        assert over_window(c, c.operator("C"))
    lines = ["C[b, m] = sum[k] X[b, m + k] * W[b, k]"]
    c = chain({"b": 3, "m": 20, "k": 31}, {"X": ["b", 50], "W": "bk"}, lines)
    assert over_window(c, c.operator("C"))


@pytest.mark.parametrize(
    "c",
    [
        depthwise(9),  # 81 positions
        depthwise(3, stride=3),  # windows side by side
        chain({"m": 20, "k": 31}, {"X": "mk", "W": "k"}, ["C[m] = sum[k] X[m, k] * W[k]"]),
        chain({"m": 20, "k": 5, "h": 4}, {"X": [24], "W": "kh"},
              ["C[m, h] = sum[k] X[m + k] * W[k, h]"]),
        chain({"m": 20, "k": 5}, {"X": [24]}, ["C[m] = sum[k] X[m + k]"]),
        chain({"b": 3, "m": 20, "k": [1, 5]}, {"X": ["b", 24], "W": "bk"},
              ["C[b, m] = sum[k] X[b, m + k] * W[b, k]"]),
    ],
    ids=["long", "apart", "vector", "columns", "no product", "run time"],
)  # fmt: skip
def test_what_is_not_over_windows(c: Chain) -> None:
    assert not over_window(c, c.operator("C"))


def test_rows_that_are_repeated_are_no_windows() -> None:
    c = chain({"b": 8, "m": 20, "k": 5}, {"X": "bmk", "W": "bk"},
              ["C[b, m] = sum[k] X[b, m, k] * W[b, k]"])  # fmt: skip
    repeated = [replace(t, strides=(0, 5, 1)) if t.name == "X" else t for t in c.tensors]
    assert not over_window(replace(c, tensors=tuple(repeated)), c.operator("C"))


def test_shared_axes_are_those_of_every_result() -> None:
    assert shared_axes(gemm(2, 3, 4, 5, 6)) == ("b", "m")
    assert shared_axes(named("log_sum_exp", {"m": 4, "n": 4})) == ("m",)


def test_batch_axes_are_kept_by_all_and_told_apart_by_no_product() -> None:
    assert batch_axes(gemm(2, 3, 4, 5, 6)) == ("b",)
    assert batch_axes(named("three_products", dict.fromkeys("mknhp", 4))) == ()
    assert batch_axes(named("log_sum_exp", {"m": 4, "n": 4})) == ()
    grouped = from_json(
        json.loads((EXAMPLES[0].parent / "grouped_query_attention.json").read_text())
    )
    assert batch_axes(grouped) == ("b",)


def test_channels_that_are_contiguous_are_no_batch_axis_of_a_depthwise_convolution() -> None:
    lines = [("bmi", "bmiks", "bks", ("b",)), ("mib", "mibks", "ksb", ())]
    for out, data, weights, batch in lines:
        at, over = ", ".join(out), f"A[{', '.join(data)}] * B[{', '.join(weights)}]"
        c = chain({"b": 32, "m": 7, "i": 7, "k": 3, "s": 3}, {"A": data, "B": weights},
                  [f"C[{at}] = sum[k, s] {over}", f"E[{at}] = max(C[{at}], 0.0)"])  # fmt: skip
        assert batch_axes(c) == batch
    both = gemm(4, 3, 5, 6, 7)
    assert batch_axes(both) == ("b",), "a product with columns keeps its batch axis"


def test_flops_and_bytes() -> None:
    c = gemm(2, 3, 4, 5, 6, "float16")
    assert flops(c) == 2 * 2 * (3 * 4 * 5 + 3 * 4 * 6)
    assert nbytes(c, "A") == 2 * 3 * 5 * 2
    assert nbytes(c, "C") == 2 * 3 * 4 * 4
    assert [o.out for o in products(c)] == ["C", "E"]


def test_elements_that_positions_share_count_once() -> None:
    """Windows of three of ten elements, a bias for every row, and rows with gaps between them."""
    c = from_json({
        "axes": {"m": 8, "s": 3, "n": 4},
        "tensors": {
            "X": {"shape": ["m", "s"], "strides": [1, 1], "offset": 6},
            "B": {"shape": ["m", "n"], "strides": [0, 1]},
            "G": {"shape": ["m", "n"], "strides": [100, 1]},
        },
        "operators": ["R[m] = sum[s] X[m, s]", "Y[m, n] = R[m] + B[m, n] + G[m, n]"],
    })  # fmt: skip
    assert [nbytes(c, t) for t in "XBG"] == [4 * 10, 4 * 4, 4 * 8 * 4]


def test_run_time_extents_count_at_their_upper_bound() -> None:
    c = from_json({**GOOD, "axes": {"m": [1, 32], "n": 5, "k": 6}})
    assert c.extent("m") == Bounds(1, 32)
    assert (c.size("m"), c.shape("C")) == (32, (32, 5))


# --- parts ----------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(chains, st.integers(0, 99))
def test_the_parts_in_a_row_compute_the_chain(c: Chain, seed: int) -> None:
    expected = evaluate(c, inputs(c, seed))
    known = dict(inputs(c, seed))
    for part in parts(c):
        found = evaluate(part, {n: known[n] for n in part.inputs})
        known |= {o: found[o] for o in part.outputs}
        assert len(products(part)) <= 1
    for o in c.outputs:
        np.testing.assert_allclose(known[o], expected[o], rtol=1e-9, atol=1e-12)


def test_parts_keep_products_with_their_epilogues() -> None:
    def outs(name: str) -> list[list[str]]:
        c = named(name, dict.fromkeys("bmnkhpc", 4))
        return [[o.out for o in part.operators] for part in parts(c)]

    assert outs("mlp") == [["C", "T"], ["E", "Y"]]
    assert outs("softmax_in_place") == [["S"], ["R", "P", "Z", "W"], ["O"]]
    assert outs("linear") == [["C", "Y"]]


def test_a_subchain_takes_what_it_reads_and_gives_what_others_read() -> None:
    c = gemm(1, 3, 4, 5, 6)
    first, second = subchain(c, ["C"], "one"), subchain(c, ["E"], "two")
    assert (first.inputs, first.outputs) == (("A", "B"), ("C",))
    assert (second.inputs, second.outputs) == (("D", "C"), ("E",))
    assert [a.name for a in second.axes] == ["b", "m", "n", "h"]


@settings(max_examples=30, deadline=None)
@given(extents(8), st.sampled_from([("mlp", "T"), ("attention", "P"), ("attention", "X"),
                                    ("layer_norm", "D"), ("gated", "Y")]))  # fmt: skip
def test_an_inlined_map_changes_no_result(sizes, which) -> None:
    name, out = which
    c = named(name, sizes)
    shorter = inline(c, out)
    assert len(shorter.operators) == len(c.operators) - 1
    x = inputs(c)
    for o in c.outputs:
        np.testing.assert_allclose(evaluate(shorter, x)[o], evaluate(c, x)[o], rtol=1e-9)


@pytest.mark.parametrize("out", ["R", "O"])
def test_only_maps_between_operators_can_be_inlined(out: str) -> None:
    c = named("attention", dict.fromkeys("bmnkh", 4))
    with pytest.raises(ChainError, match=f"operator '{out}' is not a map between operators"):
        inline(c, out)


def test_a_map_that_a_domain_reads_can_be_inlined() -> None:
    c = from_json({**GOOD, **lines("T[m, k] = A[m, k] * 2.0",
                                   "Z[m] = sum[k] T[m, k] where T[m, k] < 1.0")})  # fmt: skip
    x = inputs(c)
    np.testing.assert_allclose(evaluate(inline(c, "T"), x)["Z"], evaluate(c, x)["Z"])


def test_narrow_integers_are_read_alone() -> None:
    """What is computed from them is an int32."""
    narrow = {"shape": ["n"], "dtype": "uint8"}
    document = {"axes": {"n": 4}, "tensors": {"Q": narrow}, "operators": ["Y[n] = Q[n] * 0.5"]}
    assert from_json(document).tensor("Q").dtype == "uint8"
    cast = {**document, "operators": ["Y[n] = int8(Q[n] * 0.5)"]}
    with pytest.raises(ChainError, match="operator 'Y' casts to int8, which only inputs"):
        from_json(cast)


def test_narrow_results_are_maps_that_nothing_reads() -> None:
    narrow = {"shape": ["n"], "dtype": "uint8"}
    document = {"axes": {"n": 4}, "tensors": {"Q": narrow, "Y": narrow}}
    assert from_json({**document, "operators": ["Y[n] = Q[n] * 0.5"]}).tensor("Y").dtype == "uint8"
    number = {"axes": {"n": 4}, "tensors": {"Q": narrow, "Y": {"shape": [], "dtype": "int8"}}}
    with pytest.raises(ChainError, match="writes 'Y' as int8, which only inputs can be, and"):
        from_json({**number, "operators": ["Y[] = sum[n] Q[n]"]})
    read = ["Y[n] = Q[n] * 0.5", "Z[n] = Y[n] + 1"]
    with pytest.raises(ChainError, match=r"writes 'Y' as uint8.*use int32"):
        from_json({**document, "operators": read, "outputs": ["Y", "Z"]})
