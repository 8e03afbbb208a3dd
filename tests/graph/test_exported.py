"""Small models that no fixture holds, each compiled whole and compared with onnxruntime."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from mcfuser.compile import compile_model
from mcfuser.devices.catalogue import device_named
from mcfuser.tune.tuned import MemoryCache, TuneOptions
from tests.support.agreement import disagreement

HEADER = '<ir_version: 8, opset_import: ["" : {opset}]>'

# Each query sees the keys strictly before it, so the first sees none: zeros here, there no number.
HIDDEN_ROW = """
block (float[2, 13, 8] q, float[2, 13, 8] k, float[2, 13, 8] v) => (float[a, b, c] out)
<float[13, 1] row = {NUMBERS},
 float[1, 13] column = {NUMBERS},
 float minus = {-1.0}, float zero = {0.0}>
{
    seen = Less(column, row)
    low = Div(minus, zero)
    turned = Transpose<perm = [0, 2, 1]>(k)
    scores = MatMul(q, turned)
    masked = Where(seen, scores, low)
    shares = Softmax<axis = -1>(masked)
    out = MatMul(shares, v)
}
""".replace("NUMBERS", ", ".join(f"{i}.0" for i in range(13)))

# One query, its keys and values appended to what earlier steps left.
DECODE = """
block (float[1, 2, 1, 8] q, float[1, 2, 1, 8] k, float[1, 2, 1, 12] v,
       float[1, 2, 10, 8] old_k, float[1, 2, 10, 12] old_v)
    => (float[a, b, c, d] out, float[a, b, e, d] new_k, float[a, b, e, d] new_v)
{
    new_k = Concat<axis = 2>(old_k, k)
    new_v = Concat<axis = 2>(old_v, v)
    turned = Transpose<perm = [0, 1, 3, 2]>(new_k)
    scores = MatMul(q, turned)
    shares = Softmax<axis = -1>(scores)
    out = MatMul(shares, new_v)
}
"""

# Four query heads for each head of keys, more keys than queries, scores held within 20.
GROUPED = """
block (float[1, 8, 5, 16] q, float[1, 2, 11, 16] k, float[1, 2, 11, 16] v, float[5, 11] mask)
    => (float[a, b, c, d] out)
{
    out = Attention<softcap = 20.0, scale = 0.2>(q, k, v, mask)
}
"""

# Scores of thousands: an exponential of any of them alone would overflow.
LARGE = """
block (float[3, 17, 20] q, float[3, 17, 20] k, float[3, 17, 33] v) => (float[a, b, c] out)
<float scale = {10000.0}>
{
    large = Mul(q, scale)
    turned = Transpose<perm = [0, 2, 1]>(k)
    scores = MatMul(large, turned)
    shares = Softmax<axis = -1>(scores)
    out = MatMul(shares, v)
}
"""


@pytest.mark.parametrize(
    ("text", "opset"),
    [(HIDDEN_ROW, 17), (DECODE, 13), (GROUPED, 23), (LARGE, 17)],
    ids=["hidden_row", "decode", "grouped", "large"],
)
def test_attention_agrees_with_onnxruntime(text: str, opset: int, tmp_path: Path) -> None:
    parsed = onnx.parser.parse_model(HEADER.replace("{opset}", str(opset)) + text)
    model = parsed.SerializeToString()
    artifact = compile_model(model, device_named("cpu"), MemoryCache(), TuneOptions(trials=1), {})
    assert disagreement(artifact.module, model, tmp_path) <= 1e-5
    chains, products = artifact.report["chains"], artifact.report["products"]
    assert len(products) == 2
    assert {p["chain"] for p in products} == {0}
    assert len(chains) == 1 and len(chains[0]["operators"]) > 2
    for p in products:
        assert (p["reason"] is None) == chains[0]["fused"]
