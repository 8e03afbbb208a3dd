"""What is posted for a model: the file alone, or a zip with its weights."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mcfuser.batch.posted import body_of, external
from mcfuser.errors import InputError
from tests.support.models import model


def with_weights(folder: Path, location: str, nested: bool = False) -> Path:
    """A model whose weights, at the top or in a nested graph, are in a file at a location."""
    weights = numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    weights.ClearField("raw_data")
    weights.data_location = TensorProto.EXTERNAL
    weights.external_data.add(key="location", value=location)
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 4])
    inner = helper.make_graph([helper.make_node("Identity", ["w"], ["y"])], "g", [], [out])
    inner.initializer.append(weights)
    if nested:
        condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
        node = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
        inner = helper.make_graph([node], "outer", [condition], [out])
    path = folder / "m.onnx"
    path.write_bytes(helper.make_model(inner).SerializeToString())
    return path


def test_a_model_that_is_one_file_is_posted_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model())
    with body_of(path) as body:
        assert body == path


@pytest.mark.parametrize("words", [b"", b"no model", b"\xff" * 100])
def test_what_is_no_model_is_left_to_the_server(words: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(words)
    with body_of(path) as body:
        assert body == path


@pytest.mark.parametrize("nested", [False, True])
def test_weights_beside_a_model_are_packed_with_it(nested: bool, tmp_path: Path) -> None:
    path = with_weights(tmp_path, "parts/w.bin", nested)
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "w.bin").write_bytes(bytes(64))
    assert external(path) == ("parts/w.bin",)
    with body_of(path) as body, zipfile.ZipFile(body) as packed:
        assert sorted(packed.namelist()) == ["m.onnx", "parts/w.bin"]
        assert packed.read("parts/w.bin") == bytes(64)
        assert onnx.load_model_from_string(packed.read("m.onnx")) == onnx.load_model(
            path, load_external_data=False
        )
        assert all(m.compress_type == zipfile.ZIP_STORED for m in packed.infolist())
    assert not body.exists()


@pytest.mark.parametrize("location", ["/etc/passwd", "../out", "link", "not there"])
def test_no_other_file_of_this_machine_is_posted(location: str, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("secret")
    inside = tmp_path / "models"
    inside.mkdir()
    (inside / "link").symlink_to(tmp_path / "out")
    with (
        pytest.raises(InputError, match="names weights in"),
        body_of(with_weights(inside, location)),
    ):
        pass
