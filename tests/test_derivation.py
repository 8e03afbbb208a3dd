"""How a chain is made ready for fusion, as a value."""

from __future__ import annotations

import json

from mcfuser.chain import from_text
from mcfuser.derivation import derive
from mcfuser.devices.catalogue import CATALOGUE

A100 = CATALOGUE["nvidia/a100"]


def test_attention_is_rolled_and_two_products_need_nothing() -> None:
    attention = derive(from_text("attention:8,512,512,64,64", "float16"), A100)
    assert attention.ready != attention.chain
    ways = {way["way"] for d in attention.to_json()["dependences"] for way in d["resolved"]}
    assert "roll" in ways and "twice" not in ways
    products = derive(from_text("gemm:1,64,64,32,32", "float16"), A100)
    assert products.dependences == () and products.loop_nests


def test_its_document_is_json_and_names_every_operator() -> None:
    chain = from_text("attention:8,512,512,64,64", "float16")
    document = json.loads(json.dumps(derive(chain, A100).to_json()))
    assert len(document["operators"]) == len(chain.operators)
    assert document["chain"] == chain.name and document["device"] == "nvidia/a100"
