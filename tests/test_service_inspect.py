"""What is refused at the door, without TVM."""

import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mcfuser.errors import InputError
from mcfuser.graph.inspection import inspect


def model(operator: str = "MatMul", domain: str = "", rows: int | str = 4) -> bytes:
    """y = x w, or another operator of two inputs."""
    node = helper.make_node(operator, ["x", "w"], ["y"], name="the_node", domain=domain)
    graph = helper.make_graph(
        [node], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, 4])],
        [numpy_helper.from_array(np.ones((4, 4), np.float32), "w")],
    )  # fmt: skip
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=9).SerializeToString()


def external() -> bytes:
    proto = onnx.load_model_from_string(model())
    weight = proto.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="../../etc/passwd")
    return proto.SerializeToString()


@pytest.mark.parametrize(
    ("given", "shapes"),
    [(model(), {}), (model(rows="n"), {"x": (2, 4)}), (model("FusedMatMul", "com.microsoft"), {})],
)
def test_good_models_pass(given: bytes, shapes: dict[str, tuple[int, ...]]) -> None:
    inspect(given, shapes)


@pytest.mark.parametrize(
    ("given", "shapes", "words"),
    [
        (b"", {}, "empty"),
        (b"hello, world", {}, "not ONNX"),
        (model()[:-20], {}, "truncated"),
        (model("Wish"), {}, "operator 'Wish' .*'the_node'"),
        (model("Wish", "acme"), {}, "operator 'Wish' .*'the_node'.*'acme'"),
        (model(rows="n"), {}, "'n' of input 'x'.*--shape x="),
        (model(rows=0), {}, "extent 0"),
        (model(), {"z": (1,)}, "'z'"),
        (model(), {"x": (9, 9)}, "extent 9"),
        (external(), {}, "external file '../../etc/passwd'"),
    ],
)
def test_bad_models_are_refused_in_one_sentence(
    given: bytes, shapes: dict[str, tuple[int, ...]], words: str
) -> None:
    with pytest.raises(InputError, match=words) as caught:
        inspect(given, shapes)
    assert "\n" not in str(caught.value)


def test_the_web_process_loads_no_compiler() -> None:
    code = (
        "import sys, service.serve; "
        "print([m for m in ('tvm', 'triton', 'sympy', 'onnxruntime', 'torch') if m in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"
