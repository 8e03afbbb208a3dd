"""Files of named arrays (.npz): read as the inputs of a model, and written."""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import ml_dtypes
import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from mcfuser.errors import InputError
from mcfuser.graph.load import ModelPort
from mcfuser.graph.tensors import numpy_dtype, tensor_form

_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, KeyError, NotImplementedError,
           RuntimeError, OverflowError, SyntaxError, tokenize.TokenError)  # fmt: skip
"""What zipfile and numpy raise where a file is not of the form that it should be."""
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_STORED = {"bfloat16": np.dtype("V2")}
"""How numpy stores types that are not its own."""


def read_arrays(path: Path, ports: Sequence[ModelPort]) -> dict[str, NDArray[np.generic]]:
    """The arrays of an .npz file by name, in the order of `ports`, the inputs of a model.

    Pickled objects are never read, and no array is before its type and shape were compared. Raises
    InputError where the file cannot be read, lacks an input, has an array that is none, or one of
    another type or shape.
    """
    with _opened(path) as archive:
        members = {n.removesuffix(".npy"): n for n in archive.namelist()}
        _check_names(path, members, ports)
        return {p.name: _array(archive, members[p.name], p, path) for p in ports}


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """An .npz file. Raises InputError where it cannot be read, also while it is in use."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except OSError as error:
        raise InputError(f"inputs '{path}' cannot be read: {error.strerror or error}") from None
    except InputError:
        raise
    except _BROKEN as error:
        raise InputError(
            f"inputs '{path}' cannot be read as an .npz file: {str(error) or 'it is damaged'}; "
            "write it with numpy.savez, an array for each input"
        ) from None


def _check_names(path: Path, members: Mapping[str, str], ports: Sequence[ModelPort]) -> None:
    wanted = [p.name for p in ports]
    listed = ", ".join(f"'{name}'" for name in wanted)
    for p in ports:
        if p.name not in members:
            had = ", ".join(f"'{name}'" for name in members) or "no array"
            raise InputError(
                f"inputs '{path}' have no array for input '{p.name}' "
                f"({tensor_form(p.dtype, p.shape)}); there is {had}"
            )
    for name in members:
        if name not in wanted:
            raise InputError(
                f"inputs '{path}' have an array '{name}', which is no input of the model; its "
                f"inputs are {listed or 'none'}"
            )


def _array(
    archive: zipfile.ZipFile, member: str, port: ModelPort, path: Path
) -> NDArray[np.generic]:
    """An array whose header says that it is what the input takes."""
    wanted = numpy_dtype(port.dtype)
    with archive.open(member) as file:
        shape, dtype = _header(file)
    stored = _STORED.get(port.dtype, wanted)
    if dtype != stored or not _fits(shape, port.shape):
        raise InputError(
            f"array '{port.name}' of inputs '{path}' is {tensor_form(str(dtype), shape)}; "
            f"the input takes {tensor_form(port.dtype, port.shape)}"
        )
    with archive.open(member) as file:
        array: NDArray[np.generic] = npy.read_array(file, allow_pickle=False)
    return array.view(wanted)


def _fits(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether an array has the shape of an input, where -1 is any extent."""
    return len(shape) == len(wanted) and all(
        w in (-1, n) for n, w in zip(shape, wanted, strict=True)
    )


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of the arrays of an .npz file, by name. Raises InputError as `read_arrays`."""
    with _opened(path) as archive:
        shapes = {}
        for member in archive.namelist():
            with archive.open(member) as file:
                shapes[member.removesuffix(".npy")] = _header(file)[0]
        return shapes


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = npy.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"version {version} of numpy's format is not known")
    shape, _, dtype = _HEADERS[version](file)
    return shape, dtype


def read_unnamed(path: Path) -> tuple[NDArray[np.generic], ...]:
    """All arrays of a file that a process of mcfuser's wrote, in order."""
    with np.load(path, allow_pickle=False) as stored:
        return tuple(_bfloat16(stored[name]) for name in stored.files)


def _bfloat16(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """An array with the type that it had before numpy stored it."""
    return array.view(ml_dtypes.bfloat16) if array.dtype == _STORED["bfloat16"] else array


def write_arrays(path: Path | IO[bytes], arrays: Mapping[str, NDArray[np.generic]]) -> None:
    """Writes arrays by name, in order, to a file that is named or open. Raises OSError."""
    with zipfile.ZipFile(path, "w", allowZip64=True) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                npy.write_array(file, np.asarray(array, order="C"), allow_pickle=False)
