"""What is posted for a model: its file, or a zip of it and the files with its weights."""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

import onnx
from google.protobuf.message import DecodeError, Message

from mcfuser.errors import InputError


@contextmanager
def body_of(model: Path) -> Iterator[Path]:
    """A file to post for a model, until the block ends. Raises InputError where a file with
    weights is not in the model's folder."""
    beside = external(model)
    if not beside:
        yield model
        return
    with TemporaryDirectory(prefix="mcfuser-post-") as scratch:
        archive = Path(scratch) / "model.zip"
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as packed:
            _add(packed, model, model.name if model.suffix == ".onnx" else "model.onnx")
            for name in beside:
                _add(packed, _inside(model, name), name)
        yield archive


def external(model: Path) -> tuple[str, ...]:
    """The files with weights that a model names, relative to its folder."""
    try:
        proto = onnx.load_model(model, load_external_data=False)
    except (OSError, DecodeError, ValueError):
        return ()  # the server says what is wrong with it
    found = {
        entry.value
        for tensor in _tensors(proto)
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return tuple(sorted(found))


def _tensors(message: Message) -> Iterator[onnx.TensorProto]:
    """Every tensor in a message, at any depth."""
    if isinstance(message, onnx.TensorProto):
        yield message
        return
    for described, value in message.ListFields():
        if described.message_type is None:
            continue
        for inner in value if not isinstance(value, Message) else (value,):
            yield from _tensors(inner)


def _inside(model: Path, name: str) -> Path:
    """The file of this name in the model's folder."""
    root = Path(os.path.realpath(model.parent))
    path = Path(os.path.realpath(root / name))
    plain = PurePosixPath(name)
    if plain.is_absolute() or ".." in plain.parts or not path.is_relative_to(root):
        raise InputError(f"'{model}' names weights in '{name}', which is not in its folder")
    if not path.is_file():
        raise InputError(f"'{model}' names weights in '{name}', which is no file of its folder")
    return path


def _add(packed: zipfile.ZipFile, path: Path, name: str) -> None:
    try:
        with path.open("rb") as file, packed.open(name, "w", force_zip64=True) as member:
            shutil.copyfileobj(file, member, 1 << 20)
    except OSError as error:
        raise InputError(f"'{path}' cannot be packed: {error.strerror}") from None
