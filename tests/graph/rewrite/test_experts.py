"""com.microsoft's MoE and QMoE beside onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest

from mcfuser.errors import ModelError
from mcfuser.graph.load import load
from mcfuser.graph.rewrite.apply import rewrite
from tests.support.one_node import agree, one_node, replaced, run

ORT = "com.microsoft"
RANDOM = np.random.default_rng(0)
EXPERTS, DEPTH, INNER = 8, 32, 64
FLOAT = ("x", "router", "w1", "b1", "w2", "b2", "w3", "b3")
WHOLE = ("x", "router", "w1", "s1", "b1", "w2", "s2", "b2", "w3", "s3", "b3", "z1", "z2", "z3",
         "mixing")  # fmt: skip


def drawn(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32) / np.sqrt(shape[-1], dtype=np.float32)


def rows(count: int, *lead: int) -> dict[str, np.ndarray]:
    x = RANDOM.standard_normal((*lead, count, DEPTH)).astype(np.float32)
    router = RANDOM.standard_normal((count * int(np.prod(lead)), EXPERTS)).astype(np.float32)
    return {"x": x, "router": router}


def weights(fused: int, third: bool, biases: bool) -> dict[str, np.ndarray]:
    made = {"w1": drawn(EXPERTS, fused * INNER, DEPTH), "w2": drawn(EXPERTS, DEPTH, INNER)}
    if third:
        made["w3"] = drawn(EXPERTS, INNER, DEPTH)
    if biases:
        made |= {f"b{n[1]}": drawn(*w.shape[:2]) for n, w in made.items()}
    return made


def node(
    kind: str, given: Mapping[str, np.ndarray], held: Mapping[str, np.ndarray], **more: object
) -> onnx.ModelProto:
    names = [n if n in given or n in held else "" for n in (FLOAT if kind == "MoE" else WHOLE)]
    while not names[-1]:
        names.pop()
    return one_node(kind, names, 1, given, held, ORT, **more)


@pytest.mark.parametrize("chosen", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 7])
@pytest.mark.parametrize("normalized", [0, 1])
def test_rows_choose_experts(chosen: int, count: int, normalized: int) -> None:
    given = rows(count)
    agree(node("MoE", given, weights(1, False, True), k=chosen, activation_type="silu",
               normalize_routing_weights=normalized), given, 2e-5)  # fmt: skip


@pytest.mark.parametrize("kind", ["relu", "gelu", "silu", "identity"])
@pytest.mark.parametrize("biases", [False, True])
def test_activations(kind: str, biases: bool) -> None:
    given = rows(3, 2)
    agree(node("MoE", given, weights(1, False, biases), k=2, activation_type=kind), given, 2e-5)


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("more", [{}, {"swiglu_limit": 0.5},
                                  {"activation_alpha": 1.702, "activation_beta": 1.0}])  # fmt: skip
def test_a_gate_whose_columns_take_turns(count: int, more: dict[str, object]) -> None:
    given = rows(count)
    model = node("MoE", given, weights(2, False, True), k=2, activation_type="swiglu",
                 swiglu_fusion=1, normalize_routing_weights=1, **more)  # fmt: skip
    agree(model, given, 2e-5)
    load(model.SerializeToString(), {})


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("block", [0, 16, 32])
@pytest.mark.parametrize("bits", [4, 8])
def test_weights_of_few_bits(bits: int, block: int, zeros: bool, count: int) -> None:
    given, parts = rows(count), 8 // bits
    held = {}
    for n, w in weights(2, False, False).items():
        experts, columns, depth = w.shape
        blocks = depth // block if block else 1
        held[n] = RANDOM.integers(0, 256, (experts, columns, depth // parts)).astype(np.uint8)
        shape = (experts, columns, blocks) if block else (experts, columns)
        held[f"s{n[1]}"] = RANDOM.uniform(0.001, 0.01, shape).astype(np.float32)
        if zeros:
            packed = (*shape[:-1], -(-shape[-1] // parts))
            held[f"z{n[1]}"] = RANDOM.integers(0, 256, packed).astype(np.uint8)
    held |= {"b1": drawn(EXPERTS, 2 * INNER), "b2": drawn(EXPERTS, DEPTH)}
    model = node("QMoE", given, held, k=2, activation_type="swiglu", swiglu_fusion=1,
                 expert_weight_bits=bits, normalize_routing_weights=1,
                 **({"block_size": block} if block else {}))  # fmt: skip
    (ours,), (theirs,) = run(replaced(model), given), run(model, given)
    passes = 2e-5 if bits == 4 else 3e-2  # onnxruntime rounds rows to bytes for 8 bits
    assert np.linalg.norm(ours - theirs) < passes * np.linalg.norm(theirs)
    load(model.SerializeToString(), {})


def test_few_rows_gather_the_weights_that_they_chose() -> None:
    kinds = {}
    for count in (1, 7):
        given = rows(count)
        made = replaced(node("MoE", given, weights(1, False, False), k=2))
        kinds[count] = [n.op_type for n in made.graph.node].count("Gather")
    assert kinds == {1: 2, 7: 0}


@pytest.mark.parametrize(
    ("kind", "more", "words"),
    [
        ("MoE", {"use_sparse_mixer": 1}, "use_sparse_mixer"),
        ("MoE", {"activation_type": "swish"}, "its activation 'swish' is not known"),
        ("MoE", {"activation_type": "swiglu"}, "its gate has no other product"),
        ("QMoE", {"quant_type": "fp4"}, "its weights are 'fp4'"),
        ("QMoE", {"weights_prepacked": 1}, "weights_prepacked"),
        ("QMoE", {"expert_weight_bits": 3}, "have 3 bits"),
    ],
)
def test_what_is_refused(kind: str, more: dict[str, object], words: str) -> None:
    given, held = rows(3), weights(1, False, False)
    if kind == "QMoE":
        held = {n: np.zeros(w.shape, np.uint8) for n, w in held.items()}
        held |= {"s1": np.ones((EXPERTS, INNER)), "s2": np.ones((EXPERTS, DEPTH))}
    with pytest.raises(ModelError, match=rf"'{kind}' of domain 'com.microsoft'.*{words}"):
        rewrite(node(kind, given, held, k=2, **more))
