"""Products under other names are found, and still compute the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from mcfuser.codegen.llvm.module import build_library
from mcfuser.devices.catalogue import device_named
from mcfuser.graph.assemble import install
from mcfuser.graph.contraction import einsums
from mcfuser.graph.load import load
from mcfuser.graph.partition import partition
from tests.support.agreement import disagreement
from tests.support.lifted import computed

CPU = device_named("cpu")
SIZES = dict(zip("bhqkdce", (2, 3, 5, 7, 4, 6, 8), strict=True))


def model(
    node: onnx.NodeProto, shapes: Sequence[Sequence[int]], weights: list | None = None
) -> bytes:
    names = [n for n in node.input if n not in {w.name for w in weights or ()}]
    inputs = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
        for n, s in zip(names, shapes, strict=True)
    ]
    output = helper.make_tensor_value_info("out", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "one", inputs, [output], weights or [])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(made).SerializeToString()


def products(data: bytes, folder: Path) -> int:
    """How many products the model has, once it was compiled and agreed with onnxruntime."""
    loaded = load(data, {})
    library = build_library(install(loaded.module, []), CPU)
    assert disagreement(library, data, folder) < 1e-5
    return len(partition(loaded.module, 1e12, 1e11).products)


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ("bhqd,bhkd->bhqk", 1),
        ("bhqk,bhkd->bqhd", 1),
        ("bqhd, bkhd -> bhqk", 1),
        ("qd,dce->qce", 1),
        ("qce,ced->qd", 1),
        ("qd,kd->kq", 1),
        ("bqd,bkc->bq", 0),
        ("qd,qd->qd", 0),
    ],
)
def test_an_einsum_of_two_is_a_product(words: str, count: int, tmp_path: Path) -> None:
    a, b = words.replace(" ", "").partition("->")[0].split(",")
    node = helper.make_node("Einsum", ["x", "y"], ["out"], equation=words)
    shapes = [[SIZES[letter] for letter in a], [SIZES[letter] for letter in b]]
    found = products(model(node, shapes), tmp_path)
    assert found == count if count else found <= 1


def computed_words(
    words: str, version: int, folder: Path, shapes: Sequence[Sequence[int]] | None = None
) -> tuple[list[str], float]:
    """The operators that replace an einsum, and how far its module is from NumPy's float64."""
    operands = words.partition("->")[0].split(",")
    names, rng = [f"x{i}" for i in range(len(operands))], np.random.default_rng(0)
    shapes = shapes or [[SIZES[x] for x in word] for word in operands]
    given = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    node = helper.make_node("Einsum", names, ["out"], equation=words)
    proto = onnx.load_from_string(model(node, [list(x.shape) for x in given]))
    proto.opset_import[0].version = version
    (found,) = computed(install(load(proto.SerializeToString(), {}).module, []), given, folder)
    wanted = np.einsum(words, *(x.astype(np.float64) for x in given))
    assert found.shape == wanted.shape
    off = float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))
    return [n.op_type for n in einsums(proto).graph.node], off


@pytest.mark.parametrize("version", [12, 17])
@pytest.mark.parametrize(
    "words",
    [
        "qk,kce,q->qe", "bhq,hqd,bq->bd", "q,k,d->qkd", "q,k,d->", "bq,qk,kd,dc->bc", "qdc,dc->q",
        "qd->dq", "qdc->c", "qdc->", "qd,->qd", "bqd,bkc->bq", "qd,qd->qd", "qd,qd->", "q,qd->d",
    ],
)  # fmt: skip
def test_an_einsum_is_products_of_two_and_sums(words: str, version: int, tmp_path: Path) -> None:
    kinds, off = computed_words(words, version, tmp_path)
    assert "Einsum" not in kinds and off < 1e-5


@pytest.mark.parametrize(
    ("words", "shapes"),
    [
        ("...id,...jd->...ij", [[2, 3, 4, 8], [2, 3, 5, 8]]),
        ("...id,jd->...ij", [[2, 3, 4, 8], [5, 8]]),
        ("...de,...nd,...n->...ne", [[2, 3, 5, 8], [2, 3, 4, 5], [2, 3, 4]]),
        ("i...d,d...->...i", [[4, 3, 8], [8, 3]]),
        ("...d,...d->...", [[2, 1, 8], [1, 3, 8]]),
        ("...ab,...bc->...ac", [[3, 4, 8], [1, 8, 5]]),
        ("...->...", [[2, 3]]),
        ("ij,jk", [[4, 8], [8, 5]]),
        ("ba,cb", [[4, 8], [5, 4]]),
        ("...ij,...jk", [[2, 4, 8], [2, 8, 5]]),
        ("qd,kd->qk", [[4, 8], [5, 1]]),
        ("bqd,bd->qd", [[2, 1, 8], [1, 8]]),
    ],
)
def test_dots_are_dimensions_and_ones_are_stretched(
    words: str, shapes: Sequence[Sequence[int]], tmp_path: Path
) -> None:
    kinds, off = computed_words(words, 17, tmp_path, shapes)
    assert "Einsum" not in kinds and off < 1e-5


@pytest.mark.parametrize("words", ["...ij,...jk->ik", "ijk,jk->i", "i,j,k->ijk"])
def test_words_that_do_not_fit_stay_an_einsum(words: str) -> None:
    node = helper.make_node("Einsum", ["x0", "x1"], ["out"], equation=words)
    proto = helper.make_model(helper.make_graph(
        [node], "g", [helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, [2, 3 + i, 4 + i])
                      for i in range(2)],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
    ), opset_imports=[helper.make_opsetid("", 17)])  # fmt: skip
    assert [n.op_type for n in einsums(proto).graph.node] == ["Einsum"]


def test_the_cheapest_pair_is_multiplied_first(tmp_path: Path) -> None:
    """Of experts' outputs, of which each takes its share: shares times hidden values, then one
    product over experts and hidden values."""
    kinds, off = computed_words("qkc,kcd,qk->qd", 17, tmp_path)
    assert (kinds.count("Mul"), kinds.count("MatMul")) == (1, 1) and off < 1e-6


@pytest.mark.parametrize("words", ["qq->q", "qkq,k->q"])
def test_a_diagonal_stays_an_einsum(words: str) -> None:
    operands = words.partition("->")[0].split(",")
    names = [f"x{i}" for i in range(len(operands))]
    node = helper.make_node("Einsum", names, ["out"], equation=words)
    proto = onnx.load_from_string(model(node, [[SIZES[x] for x in w] for w in operands]))
    assert [n.op_type for n in einsums(proto).graph.node] == ["Einsum"]


@pytest.mark.parametrize("words", ["qd->d", "qd,kc->", "qd,qd->qd"])
def test_an_einsum_of_narrow_floats_that_is_no_product_is_summed_in_float32(
    words: str, tmp_path: Path
) -> None:
    """Of 5,000 ones, half precision counts 2,048."""
    sizes = {"q": 5000, "d": 3, "k": 1, "c": 1}
    operands = words.partition("->")[0].split(",")
    shapes = [[sizes[letter] for letter in word] for word in operands]
    names = ["x", "y"][: len(shapes)]
    node = helper.make_node("Einsum", names, ["out"], equation=words)
    kind = TensorProto.FLOAT16
    graph = helper.make_graph(
        [node], "one",
        [helper.make_tensor_value_info(n, kind, s) for n, s in zip(names, shapes, strict=True)],
        [helper.make_tensor_value_info("out", kind, None)],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    loaded = load(onnx.shape_inference.infer_shapes(proto).SerializeToString(), {})
    given = [np.ones(s, np.float16) for s in shapes]
    (found,) = computed(install(loaded.module, []), given, tmp_path)
    wanted = np.einsum(words, *(x.astype(np.float32) for x in given)).astype(np.float16)
    np.testing.assert_array_equal(found, wanted)
