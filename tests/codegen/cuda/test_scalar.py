"""CUDA C of an expression computes what the expression means."""

from __future__ import annotations

import ctypes
import math
import subprocess
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from mcfuser.codegen.cuda.scalar import FUNCTIONS, expression, literal
from mcfuser.expr import ARITY, Call, Expr, Read, parse
from mcfuser.space.reference import value
from tests.support.cuda_on_host import needs_compiler

EXPRESSIONS = (
    "1.0 / (exp(-(x[j] + y[j])) + 1.0)", "tanh(x[j]) - 0.25 * tanh(y[j] * 0.001)",
    "select(x[j] < 0.0, (exp(x[j]) - 1.0) * -0.5, max(x[j], y[j]))",
    "min(max(x[j] * 0.2 + 0.5, 0.0), 1.0) / (abs(y[j]) + 1.0)",
    "log(exp(-abs(x[j])) + 1.0) + sqrt(abs(y[j])) + erf(x[j])",
    "floor(x[j]) + round(y[j]) + pow(abs(x[j]), 1.5) + exp2(y[j])",
    "select((x[j] <= y[j]) and (x[j] != 0.0) or not (y[j] == 1.0), x[j] - 3.0, -y[j])",
)  # fmt: skip
WITHOUT = {"shift_right", "bit_and"}
"""Functions of whole numbers, which no value of a unit is."""


def named(known: dict[str, np.float32], r: Read) -> np.float32:
    return known[r.tensor]


def ops(e: Expr) -> set[str]:
    return {e.op}.union(*map(ops, e.args)) if isinstance(e, Call) else set()


def test_every_function_is_tried() -> None:
    assert set(ARITY) - WITHOUT == set().union(*(ops(parse(e)) for e in EXPRESSIONS))


@needs_compiler
@pytest.mark.parametrize("fast", [False, True])
def test_expressions_mean_what_they_say(fast: bool, tmp_path: Path) -> None:
    parsed = [parse(e) for e in EXPRESSIONS]
    lines = [f"out[{i}] = {expression(e, lambda r: r.tensor, fast)};" for i, e in enumerate(parsed)]
    head = "#include <cmath>\n#define __device__\n#define __forceinline__ inline\n"
    head += "#define __expf expf\n#define __fdividef(x, y) ((x) / (y))\n"
    body = f'extern "C" void computed(float x, float y, float* out) {{ {" ".join(lines)} }}'
    (tmp_path / "e.cpp").write_text(head + FUNCTIONS + body)
    made = tmp_path / "e.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-o", made, tmp_path / "e.cpp"], check=True)
    computed = ctypes.CDLL(str(made)).computed
    for x, y in ((0.7, -1.3), (-2.5, 0.4), (0.0, 1.0), (3.2, 3.2), (-80.0, 50.0), (1.0, -4.5)):
        out = np.zeros(len(parsed), np.float32)
        computed(ctypes.c_float(x), ctypes.c_float(y), out.ctypes.data_as(ctypes.c_void_p))
        known = {"x": np.float32(x), "y": np.float32(y)}
        wanted = [value(e, partial(named, known), str) for e in parsed]
        np.testing.assert_allclose(out, np.array(wanted, np.float64), rtol=3e-6, atol=3e-6)


def test_of_two_numbers_the_one_that_is_none_stays() -> None:
    e = parse("max(min(x[j], 1.0), -1.0)")
    assert expression(e, lambda r: r.tensor, False) == "max_or_nan(min_or_nan(x, 1.0f), (-1.0f))"


def test_constants_have_their_values() -> None:
    assert [literal(v) for v in (True, 2, 0.1, -3.0)] == ["true", "2.0f", "0.1f", "(-3.0f)"]
    assert literal(math.inf) != literal(-math.inf) != literal(math.nan)
    assert "inf" not in literal(math.inf) and "nan" not in literal(math.nan)


def test_a_position_is_no_value_of_a_unit() -> None:
    with pytest.raises(ValueError, match="along axis 'j'"):
        expression(parse("x[j] * j"), lambda r: r.tensor, False)
