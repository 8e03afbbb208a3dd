"""A model as it is handed over: its file and the folder that this is in, or an archive of both."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mcfuser.graph.archive import HEAD, is_archive, unpacked
from mcfuser.graph.embedded import mapped
from mcfuser.graph.external import DataFolder
from mcfuser.graph.limits import ModelLimits
from mcfuser.graph.wire import ModelBytes


@contextmanager
def delivered(
    path: Path, folder: Path | None, limits: ModelLimits
) -> Iterator[tuple[ModelBytes, DataFolder | None]]:
    """The bytes of a model, and the folder that its external data may be read from.

    Where `folder` is given, it is that, and `path` is the model's file. Otherwise `path` may be an
    archive, which is unpacked into a temporary folder as long as the block lasts; a model's file
    has no folder then. Raises as `unpacked` does.
    """
    if folder is not None:
        yield mapped(path), DataFolder(folder)
        return
    with path.open("rb") as file:
        whole = not is_archive(file.read(HEAD))
    if whole:
        yield mapped(path), None
        return
    with tempfile.TemporaryDirectory() as name:
        model = unpacked(path, Path(name), limits)
        yield mapped(model), DataFolder(model.parent)
