"""How a chain is made ready for fusion, as a value."""

from __future__ import annotations

import json

from mcfuser.backends.cuda.backend import CUDA
from mcfuser.chain import Chain, from_json, from_text
from mcfuser.derivation import Derivation, derive
from mcfuser.devices.catalogue import CATALOGUE

A100 = CATALOGUE["nvidia/a100"]


def of(chain: Chain) -> Derivation:
    return derive(chain, CUDA.tiled(chain, A100), A100)


def test_attention_is_rolled_and_two_products_need_nothing() -> None:
    attention = of(from_text("attention:8,512,512,64,64", "float16"))
    assert attention.ready != attention.chain
    ways = {way["way"] for d in attention.to_json()["dependences"] for way in d["resolved"]}
    assert "roll" in ways and "twice" not in ways
    products = of(from_text("gemm:1,64,64,32,32", "float16"))
    assert products.dependences == () and products.loop_nests


def test_its_document_is_json_and_names_every_operator() -> None:
    chain = from_text("attention:8,512,512,64,64", "float16")
    document = json.loads(json.dumps(of(chain).to_json()))
    assert len(document["operators"]) == len(chain.operators)
    assert document["chain"] == chain.name and document["device"] == "nvidia/a100"


def test_loops_are_those_of_the_axes_that_the_back_end_tiles() -> None:
    rows = from_json({
        "axes": {"m": 3, "i": 5, "n": 16, "k": 16},
        "tensors": {"A": {"shape": list("imk")}, "B": {"shape": list("kn")}},
        "operators": ["C[m, i, n] = sum[k] A[i, m, k] * B[k, n]"],
    })  # fmt: skip
    found = of(rows)
    assert str(found.chain) == "C[m, i, n] = sum[k] A[i, m, k] * B[k, n]"
    assert str(found.ready) == "C[m, n] = sum[k] A[m, k] * B[k, n]"
    assert all("i" not in nest.partition("(")[0] for nest in found.loop_nests)
