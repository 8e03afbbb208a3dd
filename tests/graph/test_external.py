"""Weights in files beside the model: read from the model's folder, whatever the model says."""

from __future__ import annotations

import os
import resource
import warnings
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from mcfuser.codegen.llvm.module import build_library
from mcfuser.devices.cpu import probe_cpu
from mcfuser.errors import ModelError
from mcfuser.graph.assemble import install
from mcfuser.graph.check import check
from mcfuser.graph.external import DataFolder
from mcfuser.graph.inspection import inspect
from mcfuser.graph.limits import DEFAULTS, ModelLimits
from mcfuser.graph.load import load
from mcfuser.graph.read import parse, read
from mcfuser.graph.session import session
from mcfuser.graph.tensors import array_over, tensor_over
from mcfuser.graph.weights import ALIGNMENT, OnnxModel, aligned, aligned_copy, side_by_side
from tests.support.nets import Net
from tests.support.paths import FIXTURES

EXPORTED = FIXTURES / "external" / "linear.onnx"
WIDE = 160  # a weight of WIDE x WIDE is large, and mapped


def placed(name: str, array: NDArray[np.generic], **place: object) -> TensorProto:
    """A tensor of the array's type and shape with external data at a place."""
    tensor = numpy_helper.from_array(array, name)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in place.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def product(*weights: TensorProto, dtype: int = TensorProto.FLOAT) -> bytes:
    """y = x w, where `w` is the first weight."""
    width = weights[0].dims[0]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
        [helper.make_tensor_value_info("x", dtype, [4, width])],
        [helper.make_tensor_value_info("y", dtype, None)], weights,
    )  # fmt: skip
    return made(graph)


def made(graph: onnx.GraphProto, functions: list[onnx.FunctionProto] | None = None) -> bytes:
    sets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    proto = helper.make_model(graph, opset_imports=sets, ir_version=9, functions=functions)
    return bytes(proto.SerializeToString())


def weight(width: int = WIDE, dtype: object = np.float32) -> NDArray[np.generic]:
    return np.random.default_rng(0).standard_normal((width, width)).astype(dtype)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder, with the bytes of `weight()` after 64 others; a secret is beside it."""
    (tmp_path / "secret").write_bytes(bytes(1 << 20))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "w.bin").write_bytes(bytes(64) + weight().tobytes())
    return folder


class TestExported:
    """What torch's exporter of today writes."""

    def test_it_runs_as_in_onnxruntime(self, tmp_path: Path) -> None:
        model, folder = EXPORTED.read_bytes(), DataFolder(EXPORTED.parent)
        loaded = load(model, {}, folder=folder)
        assert folder.files == ("linear.onnx.data",)
        weights = EXPORTED.with_name("linear.onnx.data").read_bytes()
        assert folder.digests() == {"linear.onnx.data": sha256(weights).hexdigest()}
        (tmp_path / "module.so").write_bytes(build_library(install(loaded.module, []), probe_cpu()))
        assert check(tmp_path, model, {}, folder=folder).error < 1e-6

    def test_it_is_as_the_model_in_one_file(self) -> None:
        together = onnx.load(EXPORTED)
        found = parse(EXPORTED.read_bytes(), DEFAULTS, DataFolder(EXPORTED.parent))
        assert list(found.weights) == ["0.weight"]
        for tensor in together.graph.initializer:
            mine = next(t for t in found.proto.graph.initializer if t.name == tensor.name)
            data = found.weights.get(tensor.name)
            array = numpy_helper.to_array(mine) if data is None else data
            np.testing.assert_array_equal(array, numpy_helper.to_array(tensor))

    def test_without_its_folder_it_is_refused(self) -> None:
        for look in (load, inspect):
            with pytest.raises(ModelError, match=r"external file 'linear.onnx.data'.* zip or tar"):
                look(EXPORTED.read_bytes(), {})


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int8, bool])
def test_each_type_is_read_as_it_was_written(dtype: type, tmp_path: Path) -> None:
    array = weight(300, dtype)
    (tmp_path / "w").write_bytes(array.tobytes())
    model = product(placed("w", array, location="w"))
    found = parse(model, DEFAULTS, DataFolder(tmp_path)).weights["w"]
    assert found.dtype == array.dtype and found.tobytes() == array.tobytes()
    assert not found.flags.writeable


def test_a_large_weight_is_mapped_and_never_copied(tmp_path: Path) -> None:
    """The file has a hole of 64 GB, which no copy would survive."""
    with (tmp_path / "w").open("wb") as file:
        file.truncate(64 << 30)
    tensor = placed("w", np.zeros(1, np.float32), location="w")
    del tensor.dims[:]
    tensor.dims.extend([1 << 17, 1 << 17])
    limits = ModelLimits(elements=1 << 34, total_bytes=1 << 50)
    found = read(product(tensor), {"MatMul"}, limits, DataFolder(tmp_path))
    tensor_over(found.weights["w"])
    assert found.weights["w"].shape == (1 << 17, 1 << 17)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 8 << 20  # kB


def test_files_in_folders_below_and_links_inside_are_read(folder: Path) -> None:
    (folder / "deep").mkdir()
    (folder / "w.bin").rename(folder / "deep" / "w.bin")
    (folder / "link").symlink_to("deep")
    for location in ("deep/w.bin", "./deep/./w.bin", "link/w.bin"):
        model = product(placed("w", weight(), location=location, offset=64))
        found = parse(model, DEFAULTS, DataFolder(folder)).weights["w"]
        np.testing.assert_array_equal(found, weight())


def test_a_link_to_the_folder_is_the_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    model = product(placed("w", weight(), location="w.bin", offset=64))
    assert parse(model, DEFAULTS, DataFolder(tmp_path / "link")).weights.keys() == {"w"}


# --- what is refused ------------------------------------------------------------------------


def _link(folder: Path) -> dict[str, object]:
    (folder / "link").symlink_to(folder.parent / "secret")
    return {"location": "link"}


def _linked_folder(folder: Path) -> dict[str, object]:
    (folder / "up").symlink_to("..")
    return {"location": "up/secret"}


def _loop(folder: Path) -> dict[str, object]:
    (folder / "loop").symlink_to("loop")
    return {"location": "loop"}


def _pipe(folder: Path) -> dict[str, object]:
    os.mkfifo(folder / "pipe")
    return {"location": "pipe"}


def _device(folder: Path) -> dict[str, object]:
    (folder / "zero").symlink_to("/dev/zero")
    return {"location": "zero"}


def _absolute(folder: Path) -> dict[str, object]:
    return {"location": folder / "w.bin"}


SIZE = 4 * WIDE * WIDE
Place = dict[str, object] | Callable[[Path], dict[str, object]]
HOSTILE: dict[str, tuple[Place, str]] = {
    "absolute": (_absolute, "no path inside of the model's folder"),
    "up": ({"location": "../secret"}, "no path inside of the model's folder"),
    "down and up": ({"location": "x/../../secret"}, "no path inside of the model's folder"),
    "up and in again": ({"location": "../model/w.bin"}, "no path inside of the model's folder"),
    "nowhere": ({}, "names no external file"),
    "empty": ({"location": ""}, "no path inside of the model's folder"),
    "the folder": ({"location": "."}, "no path inside of the model's folder"),
    "NUL": ({"location": "w.bin\0.png"}, "cannot be read: embedded null byte"),
    "missing": ({"location": "w.bim"}, "not in the model's folder; put it there"),
    "below a file": ({"location": "w.bin/x"}, "cannot be read: Not a directory"),
    "a folder": ({"location": "./"}, "no path inside of the model's folder"),
    "link out": (_link, "a link that leads out of the model's folder"),
    "folder's link out": (_linked_folder, "a link that leads out of the model's folder"),
    "loop": (_loop, "which is a pipe, socket, link or device"),
    "pipe": (_pipe, "which is a pipe, socket, link or device"),
    "device": (_device, "a link that leads out of the model's folder"),
    "beyond": ({"location": "w.bin", "offset": 68}, f"has {SIZE + 64} bytes, so not the {SIZE}"),
    "far beyond": ({"location": "w.bin", "offset": 9 * 10**18}, "from offset 9000000000000000000"),
    "negative offset": ({"location": "w.bin", "offset": -4}, "offset '-4', which is no number"),
    "offset in words": ({"location": "w.bin", "offset": "0x40"}, "offset '0x40', which is no"),
    "other digits": ({"location": "w.bin", "offset": "\u0664"}, "which is no number of bytes"),
    "huge offset": ({"location": "w.bin", "offset": "9" * 5000}, "which is no number of bytes"),
    "negative length": ({"location": "w.bin", "length": -1}, "length '-1', which is no number"),
    "short": ({"location": "w.bin", "length": SIZE - 4}, f"its shape asks for {SIZE}"),
    "long": ({"location": "w.bin", "length": SIZE + 4}, f"its shape asks for {SIZE}"),
    "no length": ({"location": "w.bin", "length": ""}, "length '', which is no number"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_place_that_is_none_is_refused_in_a_sentence(name: str, folder: Path) -> None:
    place, words = HOSTILE[name]
    given = place if isinstance(place, dict) else place(folder)
    model = product(placed("w", weight(), **given))
    for look in (load, inspect):
        with pytest.raises(ModelError, match="tensor 'w' ") as told:
            look(model, {}, folder=DataFolder(folder))
        assert words in str(told.value) and "\n" not in str(told.value)


def test_what_says_two_things_is_refused(folder: Path) -> None:
    twice = placed("w", weight(), location="w.bin", offset=64)
    twice.external_data.add(key="offset", value="0")
    both = placed("w", weight(), location="w.bin", offset=64)
    both.raw_data = weight().tobytes()
    inside = numpy_helper.from_array(weight(), "w")
    inside.external_data.add(key="location", value="w.bin")
    texts = placed("w", weight(), location="w.bin", offset=64)
    texts.data_type = TensorProto.STRING
    one = placed("w", weight(), location="w.bin", offset=64)
    for model, words in (
        (product(twice), "two values of 'offset'"),
        (product(both), "in the model as well"),
        (product(inside), "in the model as well"),
        (product(texts), "texts have no external form"),
        (product(one, one), "two weights have the name 'w'"),
    ):
        with pytest.raises(ModelError, match=words):
            inspect(model, {}, folder=DataFolder(folder))


def test_data_of_many_tensors_in_one_place_are_counted(folder: Path) -> None:
    tensors = [placed(f"w{i}", weight(), location="w.bin", offset=64) for i in range(9)]
    model = product(placed("w", weight(), location="w.bin"), *tensors)
    inspect(model, {}, ModelLimits(weight_bytes=10 * SIZE), DataFolder(folder))
    with pytest.raises(ModelError, match=f"{10 * SIZE} bytes in all.*MCFUSER_MAX_WEIGHT_BYTES"):
        inspect(model, {}, ModelLimits(weight_bytes=10 * SIZE - 1), DataFolder(folder))


# --- other places in the model --------------------------------------------------------------


def test_small_tensors_are_read_wherever_the_format_has_them(tmp_path: Path) -> None:
    """In the graph, a constant, a function and a branch, and as a shape that others depend on."""
    four = np.arange(4, dtype=np.float32)
    (tmp_path / "d").write_bytes(four.tobytes() + np.array([-1, 2], np.int64).tobytes())

    def there(name: str) -> TensorProto:
        return placed(name, four, location="d", length=16)

    shape = placed("shape", np.array([-1, 2], np.int64), location="d", offset=16)
    body = [
        helper.make_node("Constant", [], ["c"], value=there("c")),
        helper.make_node("Add", ["a", "c"], ["b"]),
    ]
    function = helper.make_function("own", "F", ["a"], ["b"], body, [helper.make_opsetid("", 18)])
    out = helper.make_tensor_value_info("z", TensorProto.FLOAT, [2, 4])
    branches = [
        helper.make_graph([helper.make_node("Mul", ["m", k], ["z"])], k, [], [out], [there(k)])
        for k in ("k0", "k1")
    ]
    nodes = [
        helper.make_node("F", ["x"], ["m"], domain="own"),
        helper.make_node("If", ["yes"], ["i"], then_branch=branches[0], else_branch=branches[1]),
        helper.make_node("Add", ["i", "w"], ["s"]),
        helper.make_node("Reshape", ["s", "shape"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [there("w"), shape, numpy_helper.from_array(np.array(True), "yes")],
    )  # fmt: skip
    model = made(graph, [function])
    inspect(model, {}, folder=DataFolder(tmp_path))
    loaded = load(model, {}, folder=DataFolder(tmp_path))
    assert loaded.outputs[0].shape == (4, 2)
    (tmp_path / "module.so").write_bytes(build_library(install(loaded.module, []), probe_cpu()))
    assert check(tmp_path, model, {}, folder=DataFolder(tmp_path)).error < 1e-6


def test_large_data_of_nested_tensors_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "d").write_bytes(bytes(SIZE))
    node = helper.make_node("Constant", [], ["y"], value=placed("c", weight(), location="d"))
    graph = helper.make_graph(
        [node], "g", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    )
    found = parse(made(graph), DEFAULTS, DataFolder(tmp_path))
    assert not found.weights and len(found.proto.graph.node[0].attribute[0].t.raw_data) == SIZE
    with pytest.raises(ModelError, match="MCFUSER_MAX_MODEL_BYTES"):
        parse(made(graph), ModelLimits(model_bytes=SIZE - 1), DataFolder(tmp_path))


# --- weights that are arrays ----------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("offset", [0, 4])
def test_constants_of_weights_are_folded(dtype: type, offset: int, tmp_path: Path) -> None:
    """A weight that is transposed, at a place that is aligned for a tensor, or not."""
    array = weight(200, dtype)
    (tmp_path / "w").write_bytes(bytes(offset) + array.tobytes())
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    nodes = [
        helper.make_node("Transpose", ["w"], ["t"]),
        helper.make_node("MatMul", ["x", "t"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", kind, [4, 200])],
        [helper.make_tensor_value_info("y", kind, None)],
        [placed("w", array, location="w", offset=offset)],
    )  # fmt: skip
    loaded = load(made(graph), {}, folder=DataFolder(tmp_path))
    assert "R.permute_dims" not in loaded.module.script()


@pytest.mark.parametrize("nested", [False, True])
def test_a_weight_that_nothing_reads_is_no_obstacle(nested: bool, tmp_path: Path) -> None:
    """onnxruntime drops it, and then refuses data that it is given for it. What only a branch reads
    is read."""
    net = Net()
    y = net.op("MatMul", net.input("x", 4, 512), net.weight(512, 256))
    spare = net.weight(256, 256)
    if nested:
        branches = [
            helper.make_graph(
                [helper.make_node(kind, [y, spare], ["z"])], kind, [],
                [helper.make_tensor_value_info("z", TensorProto.FLOAT, [4, 256])],
            )
            for kind in ("MatMul", "Gemm")
        ]  # fmt: skip
        truth = net.input("c", 1, dtype=np.bool_)
        y = net.op("If", truth, then_branch=branches[0], else_branch=branches[1])
    path = tmp_path / "model.onnx"
    onnx.save(net.model(y), path, save_as_external_data=True, size_threshold=1024)
    model = parse(path.read_bytes(), DEFAULTS, DataFolder(tmp_path))
    assert set(model.weights) >= {spare}
    before = model.proto.SerializeToString()
    asked = session(model, onnxruntime.SessionOptions())
    assert [i.name for i in asked.get_inputs()] == ["x", "c"][: 1 + nested]
    assert model.proto.SerializeToString() == before
    assert load(path.read_bytes(), {}, folder=DataFolder(tmp_path)).inputs


def test_onnxruntime_reads_the_arrays(folder: Path) -> None:
    model = parse(
        product(placed("w", weight(), location="w.bin", offset=64)), DEFAULTS, DataFolder(folder)
    )
    x = np.ones((4, WIDE), np.float32)
    (y,) = session(model, onnxruntime.SessionOptions()).run(None, {"x": x})
    np.testing.assert_allclose(y, x @ weight(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int64, bool])
def test_a_tensor_has_the_array_s_bytes(dtype: type) -> None:
    array = np.frombuffer(weight(64, dtype).tobytes(), dtype).reshape(8, -1)
    for one in (array, array[:, 1:], array.T, array[:0], np.array(1, dtype)):
        tensor = tensor_over(one)
        assert tuple(tensor.shape) == one.shape and str(tensor.dtype) == str(one.dtype)
        back = array_over(tensor)
        assert back.dtype == one.dtype and not back.flags.writeable
        np.testing.assert_array_equal(back.astype(np.float64), one.astype(np.float64))


@pytest.mark.parametrize("rows", [1, 3, 4096])
def test_a_large_copy_is_rounded_as_numpy_rounds(rows: int) -> None:
    """Whichever thread writes a part of it; nobody is warned of what is too large."""
    given = np.random.default_rng(0).standard_normal((rows, 4096), np.float32) * 1e4
    given[0, :3] = 1e9, -1e9, 1e-9
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = aligned_copy(given, np.dtype(np.float16))
        turned = aligned_copy(given.T)
    with np.errstate(over="ignore", under="ignore"):
        assert (made.view(np.uint16) == given.astype(np.float16).view(np.uint16)).all()
    assert (turned == given.T).all() and turned.flags.c_contiguous
    assert made.ctypes.data % ALIGNMENT == turned.ctypes.data % ALIGNMENT == 0


@pytest.mark.parametrize("rows", [1, 5, 4096])
def test_matrices_side_by_side(rows: int) -> None:
    random = np.random.default_rng(0)
    given = [random.standard_normal((rows, n), np.float32) for n in (1024, 2048, 3)]
    given.append(np.asfortranarray(given[0]))
    made = side_by_side(given)
    assert (made == np.concatenate(given, axis=1)).all() and made.flags.c_contiguous
    assert made.ctypes.data % ALIGNMENT == 0


def test_an_aligned_array_is_shared_and_any_other_copied_once() -> None:
    octets = np.zeros(4096 + 64, np.uint8)
    start = -octets.ctypes.data % 64
    one, other = (octets[start + at : start + at + 4096].view(np.float32) for at in (0, 4))
    assert aligned(one) is one
    for array in (other, one.reshape(32, 32).T, other[:1]):
        copy = aligned(array)
        assert copy.shape == array.shape and copy.ctypes.data % 64 == 0
        assert not np.shares_memory(copy, octets)
        copy[...] = 1
        assert np.shares_memory(array_over(tensor_over(copy)), copy)


def test_a_model_with_another_message_has_the_same_weights() -> None:
    first = OnnxModel(onnx.ModelProto(), {"w": weight()})
    other = onnx.ModelProto()
    assert first.with_proto(first.proto) is first
    assert first.with_proto(other).proto is other and first.with_proto(other).weights["w"].size
