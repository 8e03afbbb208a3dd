"""What a graph makes of its inputs: each role, through the operators that lead to it."""

from __future__ import annotations

import onnx
import onnx.parser
import pytest

from mcfuser.graph.known import known
from mcfuser.graph.role import InputRole, roles
from mcfuser.graph.weights import OnnxModel


def role(inputs: str, body: str, weights: str = "", of: str = "x") -> InputRole | None:
    """The role of input `x` in a graph with these inputs, weights and nodes."""
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 23, "com.microsoft": 1]> '
        f"g ({inputs}) => (float y) <{weights}> {{ {body} }}"
    )
    return roles(known(OnnxModel(model))).get(of)


TABLE = "float[10, 2] table = {" + ", ".join("0" * 20) + "}"


@pytest.mark.parametrize(
    ("between", "low", "high"),
    [
        ("i = Identity (x)", 0, 9),
        ("i = Cast <to = 6> (x)", 0, 9),
        ("two = Constant <value_int = 2> () i = Add (x, two)", 0, 7),
        ("two = Constant <value_int = 2> () i = Sub (x, two)", 2, 11),
        ("two = Constant <value_int = 2> () i = Mul (two, x)", 0, 4),
        ("nine = Constant <value_int = 9> () i = Sub (nine, x)", 0, 9),
        ("o = Constant <value = int64[2] {0, 5}> () i = Add (x, o)", 0, 4),
        ("a = Constant <value_int = 0> () b = Constant <value_int = 7> () c = Clip (x, a, b)"
         " one = Constant <value_int = 1> () i = Add (c, one)", 0, 8),
        ("s = Constant <value_ints = [1, 4]> () i = Reshape (x, s)", 0, 9),
        ("w = Constant <value = int64[1, 1] {1}> () i = GatherND (x, w)", 0, 9),
        ("w = Constant <value = int64[2, 2] {0, 1, 1, 0}> () i = GatherElements (x, w)", 0, 9),
        ("w = Constant <value = bool[2] {1, 0}> () i = Compress <axis = 0> (x, w)", 0, 9),
        ("p = Constant <value_ints = [0, 0, 1, 1]> () i = Pad (x, p)", 0, 9),
        ("z = Constant <value_int = 0> () b = Equal (x, z) i = Where (b, z, x)", 0, 9),
        ("w = Constant <value = int64[1, 1] {1}> () v = Constant <value = int64[1, 2] {3, 4}> ()"
         " i = ScatterND (x, w, v)", 0, 9),
    ],
)  # fmt: skip
def test_an_index_is_within_its_table(between: str, low: int, high: int) -> None:
    found = role("int64[2, 2] x", f"{between} y = Gather (table, i)", TABLE)
    assert found == InputRole("index", low, high)


def test_the_smallest_table_counts() -> None:
    small = "float[4, 2] small = {0, 0, 0, 0, 0, 0, 0, 0}"
    body = "a = Gather (table, x) b = Gather <axis = 1> (table, z) y = Gather (small, x)"
    assert role("int64[3] x, int64[1] z", body, f"{TABLE}, {small}") == InputRole("index", 0, 3)
    found = role("int64[3] x, int64[1] z", body, f"{TABLE}, {small}", of="z")
    assert found == InputRole("index", 0, 1)


@pytest.mark.parametrize(
    ("body", "high"),
    [
        ("y = GatherElements <axis = 1> (d, x)", 4),
        ("y = ScatterElements <axis = 0> (d, x, d)", 2),
        ("y = GatherND (d, x)", 2),
        ("n = Constant <value_int = 6> () v = Constant <value_floats = [0.0, 1.0]> ()"
         " y = OneHot (x, n, v)", 5),
    ],
)  # fmt: skip
def test_every_operator_that_indexes_is_known(body: str, high: int) -> None:
    assert role("float[3, 5] d, int64[3, 2] x", body) == InputRole("index", 0, high)


ZERO = "zero = Constant <value_float = 0.0> () low = Constant <value_float = -1e30> ()"
ONE = "one = Constant <value_float = 1.0> ()"


@pytest.mark.parametrize(
    ("dtype", "body", "kind"),
    [
        ("bool", f"{ZERO} y = Where (x, s, low)", "mask"),
        ("bool", f"{ZERO} y = Where (x, low, s)", "hidden"),
        ("bool", f"{ZERO} n = Not (x) y = Where (n, low, s)", "mask"),
        ("int64", f"{ZERO} b = Cast <to = 9> (x) y = Where (b, s, low)", "mask"),
        ("int64", f"{ZERO} z = Constant <value_int = 0> () e = Equal (x, z)"
                  " y = Where (e, low, s)", "mask"),
        ("int32", f"{ZERO} z = Constant <value = int32 {{0}}> () e = Greater (x, z)"
                  " y = Where (e, low, s)", "hidden"),
        ("int64", f"{ZERO} {ONE} f = Cast <to = 1> (x) r = Sub (one, f) h = Mul (r, low)"
                  " y = Add (s, h)", "mask"),
        ("int64", f"{ZERO} f = Cast <to = 1> (x) h = Mul (f, low) y = Add (s, h)", "hidden"),
        ("int64", f"{ZERO} {ONE} f = Cast <to = 1> (x) r = Sub (f, one)"
                  " k = Constant <value_float = 10000.0> () h = Mul (r, k) y = Add (s, h)", "mask"),
        ("float", f"{ZERO} {ONE} r = Sub (one, x) h = Mul (r, low) y = Add (s, h)", "mask"),
        ("float", f"{ZERO} b = Cast <to = 9> (x) y = Where (b, s, low)", "mask"),
        ("bool", "y = Attention (q, q, q, x)", "mask"),
        ("int32", "y = com.microsoft.MultiHeadAttention <num_heads = 1> (q, q, q, , x)", "mask"),
    ],
)  # fmt: skip
def test_a_mask_is_known_and_which_of_its_elements_take_part(
    dtype: str, body: str, kind: str
) -> None:
    found = role(f"{dtype}[1, 1, 4, 4] x, float[1, 1, 4, 4] s, float[1, 1, 4, 4] q", body)
    assert found is not None and found.kind == kind


@pytest.mark.parametrize(
    "body",
    [
        f"{ZERO} p = Greater (x, zero) y = Where (p, x, zero)",
        "k = Constant <value_float = 1000.0> () y = Mul (x, k)",
        "y = Attention (q, q, q, x)",
        "y = Cos (x)",
    ],
)
def test_a_float_that_is_data_has_no_role(body: str) -> None:
    assert role("float[1, 1, 4, 4] x, float[1, 1, 4, 4] q", body) is None


def test_a_token_that_is_compared_is_no_mask() -> None:
    body = f"{ZERO} pad = Constant <value_int = 5> () e = Equal (x, pad) y = Where (e, low, s)"
    assert role("int64[4] x, float[4] s", body) is None
    body += " t = Gather (table, x)"
    assert role("int64[4] x, float[4] s", body, TABLE) == InputRole("index", 0, 9)


RANGE = "r = Constant <value = int64[4] {0, 1, 2, 3}> ()"


@pytest.mark.parametrize(
    ("body", "low", "high"),
    [
        (f"{RANGE} b = Less (r, x)", 1, 4),
        (f"{RANGE} b = Greater (x, r)", 1, 4),
        (f"{RANGE} b = LessOrEqual (r, x)", 0, 3),
        (f"{RANGE} b = GreaterOrEqual (r, x)", 1, 3),
        ("a = Constant <value_int = 0> () d = Constant <value_int = 1> ()"
         " n = Constant <value_int = 4> () r = Range (a, n, d) b = Less (r, x)", 1, 4),
    ],
)  # fmt: skip
def test_a_length_divides_what_it_is_compared_with(body: str, low: int, high: int) -> None:
    found = role("int64[2, 1] x, float[2, 4] s", f"{body} {ZERO} y = Where (b, s, low)")
    assert found == InputRole("length", low, high)


def test_the_lengths_of_a_recurrence_are_within_its_sequence() -> None:
    weights = "float[1, 6, 2] w = {" + ", ".join("0" * 12) + "}"
    body = "y = GRU <hidden_size = 2> (s, w, w, , x)"
    assert role("float[7, 3, 2] s, int32[3] x", body, weights) == InputRole("length", 1, 7)


def test_a_position_that_is_rotated_is_known() -> None:
    frequencies = "float[1, 2] f = {1, 0.5}"
    body = "c = Cast <to = 1> (x) u = Unsqueeze (c, a) a = Constant <value_ints = [-1]> ()"
    body = "a = Constant <value_ints = [-1]> () c = Cast <to = 1> (x) u = Unsqueeze (c, a)"
    found = role("int64[1, 8] x", f"{body} m = Mul (u, f) y = Cos (m)", frequencies)
    assert found is not None and found.kind == "position"
    body += " v = Constant <value_ints = [0]> () y = Mul (u, s)"
    assert role("int64[1, 8] x, float[1, 8, 2] s", body) is None, "a mask of embeddings may be so"


def test_a_quantized_number_is_known() -> None:
    body = "k = Constant <value_float = 0.5> () y = DequantizeLinear (x, k)"
    assert role("uint8[4] x", body) == InputRole("number")


@pytest.mark.parametrize(("compared", "number"), [("x", 16), ("add", 14), ("masked", None)])
def test_what_an_if_compares_is_equal_to_it(compared: str, number: int | None) -> None:
    condition = {"x": "c = Equal (x, n)", "add": "two = Constant <value_int = 2> () "
                 "s = Add (x, two) c = Equal (s, n)", "masked": "e = Equal (x, n)"}  # fmt: skip
    chosen = "y = If (c) <then_branch = t () => (float a) { a = Constant <value_float = 1.0> () }, "
    chosen += "else_branch = f () => (float b) { b = Constant <value_float = 2.0> () }>"
    if number is None:
        chosen = "y = Cast <to = 1> (e)"
    body = f"n = Constant <value_int = 16> () {condition[compared]} {chosen}"
    assert role("int64 x", body) == (InputRole("choice", number, number) if number else None)


@pytest.mark.parametrize(
    ("last", "total", "past", "low", "high"),
    [("minus", "8", "5", 3, 8), ("minus", "8", "0", 8, 8), ("minus", "12", "5", 7, 12),
     ("minus", "4", "9", 4, 4)],
)  # fmt: skip
def test_a_mask_whose_ones_are_counted_is_filled(
    last: str, total: str, past: str, low: int, high: int
) -> None:
    """Past positions come before the new ones, of which there is one at least."""
    body = (
        "one = Constant <value_int = 1> () zero = Constant <value_ints = [1]> () "
        "n = ReduceSum <keepdims = 0> (x, zero) minus = Sub (n, one) "
        "rows = Shape (x) total = Gather (rows, one) "
        f"last = Cast <to = 6> ({last}) whole = Cast <to = 6> (total) "
        "y, k, v = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 1>"
        "(q, key, value, past, past, last, whole)"
    )
    inputs = f"int64[1, {total}] x, float[1, 1, {past}, 4] past, float[1, n, 8] q"
    assert role(inputs, body) == InputRole("filled", low, high)


@pytest.mark.parametrize(
    ("window", "total", "low", "high"), [(5, 9, 5, 9), (3, 9, 5, 5), (5, 4, 4, 4)]
)
def test_the_cache_of_a_window_is_full(window: int, total: int, low: int, high: int) -> None:
    """Of one that has more rows than its window, the last are used until it was full once."""
    body = (
        f"whole = Constant <value = int32 {{{total}}}> () "
        "y, k, v = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 1, "
        f"sliding_window_cache = 1, local_window_size = {window}>"
        "(q, key, value, past, past, x, whole)"
    )
    found = role("int32[1] x, float[1, 1, 5, 4] past, float[1, 1, 8] q", body)
    assert found == InputRole("length", low - 1, high - 1)
