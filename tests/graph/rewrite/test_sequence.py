"""Sequences of tensors are known before the model runs, and no operator of theirs is left."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

from mcfuser.errors import ModelError
from mcfuser.graph.load import load
from mcfuser.graph.read import name_nodes
from mcfuser.graph.rewrite.apply import rewrite
from tests.support.one_node import run

X = {"x": np.random.default_rng(4).standard_normal((5, 3)).astype(np.float32)}
ABC = """a = Neg(x)
    b = Exp(x)
    c = Abs(x)
    abc = SequenceConstruct(a, b, c)
"""
OPERATORS = {
    "ConcatFromSequence", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase",
    "SequenceInsert", "SequenceLength", "SplitToSequence",
}  # fmt: skip
AT = ("-4", "-3", "-1", "0", "2", "3")


def model(lines: str, result: str = "float[M, N] y") -> onnx.ModelProto:
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[5, 3] x) => ({result}) {{ {lines} }}'
    proto = onnx.parser.parse_model(text)
    name_nodes(proto.graph)
    return proto


def agree(proto: onnx.ModelProto) -> onnx.ModelProto:
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    assert rewrite(made)
    assert not {n.op_type for n in made.graph.node} & OPERATORS
    for found, expected in zip(run(made, X), run(proto, X), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    load(proto.SerializeToString(), {})
    return made


def refusal(proto: onnx.ModelProto) -> str:
    with pytest.raises(ModelError) as caught:
        rewrite(proto)
    return str(caught.value)


@pytest.mark.parametrize("at", AT)
def test_a_tensor_at_a_position(at: str) -> None:
    """Positions are counted from the end as well."""
    proto = model(f"{ABC} at = Constant<value = int64 {{{at}}}>() y = SequenceAt(abc, at)")
    if at in ("-4", "3"):
        words = refusal(proto)
        assert "operator 'SequenceAt'" in words
        assert "its sequence has 3 tensors, and position" in words
    else:
        agree(proto)


@pytest.mark.parametrize("at", [*AT, ""])
@pytest.mark.parametrize("kind", ["SequenceInsert", "SequenceErase"])
def test_one_tensor_more_or_less(kind: str, at: str) -> None:
    inputs = ["abc", "x"] if kind == "SequenceInsert" else ["abc"]
    place = f"at = Constant<value = int64 {{{at}}}>()" if at else ""
    given = ", ".join([*inputs, "at"] if at else inputs)
    proto = model(f"{ABC} {place} s = {kind}({given}) y = ConcatFromSequence<axis = 0>(s)")
    if at == "-4" or (at == "3" and kind == "SequenceErase"):
        assert "is outside of it" in refusal(proto)
    else:
        agree(proto)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("new", [0, 1])
def test_tensors_are_joined(axis: int, new: int) -> None:
    dims = "M, N, P" if new else "M, N"
    agree(model(f"{ABC} y = ConcatFromSequence<axis = {axis}, new_axis = {new}>(abc)",
                f"float[{dims}] y"))  # fmt: skip


def test_the_length_is_a_constant() -> None:
    agree(model(f"""{ABC} none = SequenceEmpty<dtype = 1>()
        one = SequenceInsert(none, x)
        copy = Identity(one)
        three = SequenceLength(abc)
        first = SequenceLength(copy)
        length = Add(three, first)
        shape = Reshape(length, unit)
        unit_rows = Expand(weight, shape)
        y = Add(unit_rows, unit_rows)""".replace("shape = Reshape", """
        unit = Constant<value = int64[1] {1}>()
        weight = Constant<value = float[1] {2.0}>()
        shape = Reshape"""), "float[M] y"))  # fmt: skip


@pytest.mark.parametrize(
    ("split", "rest"),
    [
        ("int64 {2}", "axis = 0"),
        ("int64 {5}", "axis = -2"),
        ("int64[3] {1, 0, 4}", "axis = 0"),
        ("int64[2] {2, 1}", "axis = 1, keepdims = 0"),
        (None, "axis = 0"),
        (None, "axis = 0, keepdims = 0"),
    ],
)
def test_a_tensor_is_divided(split: str | None, rest: str) -> None:
    """Into parts of one extent, of given ones, or rows without their axis."""
    part = f"split = Constant<value = {split}>()" if split else ""
    given = "x, split" if split else "x"
    single = split is None and "keepdims" in rest
    agree(model(f"""{part} s = SplitToSequence<{rest}>({given})
        zero = Constant<value = int64 {{0}}>()
        last = Constant<value = int64 {{-1}}>()
        y = SequenceAt(s, zero)
        z = SequenceAt(s, last)""", "float[N] y, float[P] z" if single
        else "float[M, N] y, float[P, Q] z"))  # fmt: skip


@pytest.mark.parametrize(
    ("split", "words"), [("int64 {0}", "an extent of 0"), ("int64[2] {2, 2}", "the axis has 5")]
)
def test_parts_that_are_no_parts(split: str, words: str) -> None:
    proto = model(f"""split = Constant<value = {split}>()
        s = SplitToSequence<axis = 0>(x, split)
        y = ConcatFromSequence<axis = 0>(s)""")
    assert words in refusal(proto)


def test_what_is_known_only_at_run_time_is_refused() -> None:
    late = model(f"""{ABC} most = ArgMax<axis = 0, keepdims = 0>(x)
        zero = Constant<value = int64 {{0}}>()
        at = Gather(most, zero)
        y = SequenceAt(abc, at)""")
    assert "the position in its sequence is known only at run time" in refusal(late)
    split = model("""most = ArgMax<axis = 0, keepdims = 0>(x)
        s = SplitToSequence<axis = 0>(x, most)
        y = ConcatFromSequence<axis = 0>(s)""")
    assert "the extents of its parts are known only at run time" in refusal(split)


def test_a_sequence_is_no_result_of_a_module() -> None:
    words = refusal(model(ABC, "seq(float[M, N]) abc"))
    assert words.startswith("output 'abc' is a sequence")
    empty = model("none = SequenceEmpty<dtype = 1>() y = ConcatFromSequence<axis = 0>(none)")
    assert "its sequence has no tensor" in refusal(empty)
