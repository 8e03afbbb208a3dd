"""`mcfuser freeze`: what it writes, what it says, and an If that becomes one of its branches."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

from mcfuser.errors import ModelError
from mcfuser.graph.load import load
from tests.support.command import mcfuser


def decoder() -> onnx.ModelProto:
    """A model whose input chooses between a branch with a cache and one without, as optimum writes
    them: with the cache, the outputs that do not change have no elements."""

    def branch(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
        outputs = [helper.make_tensor_value_info(f"{name}_{o}", 1, None) for o in ("state", "kept")]
        return helper.make_graph(nodes, name, [], outputs)

    empty = helper.make_tensor("none", TensorProto.FLOAT, [0, 3], [])
    then = branch(
        "then",
        helper.make_node("Concat", ["past", "x"], ["then_state"], axis=0),
        helper.make_node("Constant", [], ["then_kept"], value=empty),
    )
    other = branch(
        "other", helper.make_node("Relu", ["x"], ["other_state"]),
        helper.make_node("Neg", ["x"], ["other_kept"]),
    )  # fmt: skip
    node = helper.make_node(
        "If", ["use_cache"], ["state", "kept"], "choice", then_branch=then, else_branch=other
    )
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3]),
        helper.make_tensor_value_info("past", TensorProto.FLOAT, ["steps", 3]),
        helper.make_tensor_value_info("use_cache", TensorProto.BOOL, [1]),
    ]
    outputs = [helper.make_tensor_value_info(o, 1, None) for o in ("state", "kept")]
    graph = helper.make_graph([node], "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    onnx.save(decoder(), tmp_path / "m.onnx")
    return tmp_path


def test_an_if_becomes_the_branch_that_is_taken(folder: Path) -> None:
    words = ("freeze", "m.onnx", "use_cache=true", "-o", "step.onnx")
    done = mcfuser(*words, data=folder, folder=folder)
    assert (done.returncode, done.stdout) == (0, "wrote step.onnx, where use_cache is true\n")
    found = load((folder / "step.onnx").read_bytes(), {"past": (4, 3)})
    assert [p.name for p in found.inputs] == ["x", "past"]
    assert [p.shape for p in found.outputs] == [(5, 3), (0, 3)]
    told = mcfuser(
        "freeze", "m.onnx", "use_cache=false", "-o", "first.onnx", "--json",
        data=folder, folder=folder,
    )  # fmt: skip
    assert json.loads(told.stdout) == {"file": "first.onnx", "values": {"use_cache": "false"}}
    found = load((folder / "first.onnx").read_bytes(), {"past": (0, 3)})
    assert [p.shape for p in found.outputs] == [(1, 3), (1, 3)]


def test_a_model_whose_input_chooses_tells_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where TVM cannot import its branches, as those with products of optimum's decoders."""

    def refused(*_: object) -> None:
        raise TypeError("no")

    monkeypatch.setattr(ONNXGraphImporter, "_convert_subgraph", refused)
    with pytest.raises(ModelError, match=r"'use_cache' chooses.*mcfuser freeze MODEL use_cache="):
        load(decoder().SerializeToString(), {"past": (4, 3)})


def test_the_module_gives_empty_outputs(folder: Path) -> None:
    assert not mcfuser(
        "freeze", "m.onnx", "use_cache=true", "-o", "step.onnx", data=folder, folder=folder
    ).returncode
    words = ("compile", "step.onnx", "-o", "out", "--shape", "past=4x3", "--timeout", "30s")
    done = mcfuser(*words, data=folder, folder=folder)
    assert done.returncode == 0, done.stderr
    arrays = {"x": np.ones((1, 3), np.float32), "past": np.zeros((4, 3), np.float32)}
    np.savez(folder / "x.npz", **arrays)
    words = ("run", "out", "--inputs", "x.npz", "--outputs", "y.npz", "--check", "step.onnx")
    done = mcfuser(*words, data=folder, folder=folder)
    assert done.returncode == 0, done.stderr
    with np.load(folder / "y.npz") as results:
        np.testing.assert_array_equal(results["state"], np.eye(5, 1, -4, np.float32) + np.zeros(3))
        assert results["kept"].shape == (0, 3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("m.onnx", "use_cache=2", "-o", "n.onnx"), "'2', not true or false"),
        (("m.onnx", "cache", "-o", "n.onnx"), "'cache' does not give an input a value"),
        (("m.onnx", "use_cache=true", "-o", "m.onnx"), "'m.onnx' is the model itself"),
        (("n.onnx", "use_cache=true", "-o", "m.onnx"), "model 'n.onnx' cannot be read"),
        (("m.onnx", "use_cache=true", "-o", "no/n.onnx"), "'no/n.onnx' cannot be written"),
    ],
)
def test_mistakes_are_one_sentence(folder: Path, words: tuple[str, ...], said: str) -> None:
    done = mcfuser("freeze", *words, data=folder, folder=folder)
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1


def test_weights_beside_a_model_stay_beside_it(folder: Path) -> None:
    proto = decoder()
    weight = helper.make_tensor("w", TensorProto.FLOAT, [1], [0.0])
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="w.bin")
    weight.ClearField("float_data")
    proto.graph.initializer.append(weight)
    (folder / "e.onnx").write_bytes(proto.SerializeToString())
    (folder / "other").mkdir()
    words = ("freeze", "e.onnx", "use_cache=true", "-o", "other/n.onnx")
    done = mcfuser(*words, data=folder, folder=folder)
    assert done.returncode == 2 and "write the result to the same folder" in done.stderr
    words = ("freeze", "e.onnx", "use_cache=true", "-o", "n.onnx")
    assert mcfuser(*words, data=folder, folder=folder).returncode == 0
