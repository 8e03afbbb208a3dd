"""The folder that `compile` writes and `run` reads: module.so, report.json and, where it is signed,
the envelope."""

from __future__ import annotations

import os
import tempfile
from mmap import mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcfuser.arguments.files import read_json
from mcfuser.arguments.precision import PRECISIONS
from mcfuser.errors import InputError
from mcfuser.extents import RANGE

if TYPE_CHECKING:
    from mcfuser.graph.load import ModelPort
    from mcfuser.signing.key import SigningKey

_DTYPES = frozenset({
    "float16", "float32", "float64", "bfloat16", "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
})  # fmt: skip


def check_writable(path: Path) -> None:
    """Raises InputError where a folder can neither be written to nor made; called before tuning."""
    existing = next(p for p in (path, *path.absolute().parents) if p.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(f"'{existing}' is no folder that can be written to; choose another one")


def write_results(
    folder: Path, module: bytes | mmap, report: bytes, key: SigningKey | None
) -> list[Path]:
    """Writes the files of a compilation, each atomically; gives their paths. With a key they are
    signed.

    An envelope that was there goes first and a new one comes last, so that whoever is killed in
    between leaves an unsigned folder. Raises InputError.
    """
    from mcfuser.signing.dsse import sealed
    from mcfuser.signing.folder import ENVELOPE
    from mcfuser.signing.statement import MODULE, REPORT, Subject, statement

    files: dict[str, bytes | mmap] = {MODULE: module, REPORT: report}
    if key is not None:
        files[ENVELOPE] = sealed(statement(report, Subject.of(module)), key).line
    make_results(folder)
    remove(folder / ENVELOPE)
    for name, data in files.items():
        write_whole(folder / name, data)
    return [folder / name for name in files]


def remove(path: Path) -> None:
    """Removes a file if there is one. Raises InputError."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"'{path}' cannot be removed: {error.strerror}") from None


def make_results(path: Path) -> None:
    """Makes a folder if it is missing. Raises InputError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"folder '{path}' cannot be made: {error.strerror}") from None


def write_whole(path: Path, data: bytes | mmap) -> None:
    """Writes a file atomically: a process that has loaded the old one keeps it. Raises
    InputError."""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            try:
                file.write(data)
                file.flush()
                os.fchmod(file.fileno(), 0o644)
                os.replace(file.name, path)
            except OSError:
                os.unlink(file.name)
                raise
    except OSError as error:
        raise InputError(f"'{path}' cannot be written: {error.strerror}") from None


def read_report(folder: Path) -> dict[str, Any]:
    """The report in a folder that `compile` wrote; empty if there is none.

    Raises InputError where its device, shapes, precision or updates in place have another form.
    """
    path = folder / "report.json"
    if not path.is_file():
        return {}
    report: dict[str, Any] = read_json(path, f"report '{path}'")
    shapes = report.get("shapes", {})
    fits = isinstance(shapes, dict) and all(map(_is_shape, shapes.values()))
    narrowing = report.get("precision")
    narrow = narrowing is None or (
        isinstance(narrowing, dict) and narrowing.get("dtype") in PRECISIONS.values()
    )
    on_device = isinstance(report.get("device", ""), str)
    pairs = report.get("in_place", {})
    paired = isinstance(pairs, dict) and all(isinstance(v, str) for v in pairs.values())
    for field, fine in (
        ("device", on_device), ("shapes", fits), ("precision", narrow), ("in_place", paired),
    ):  # fmt: skip
        if not fine:
            raise InputError(
                f"report '{path}' is not one of mcfuser's: its {field} is of another kind; "
                "compile the model again"
            )
    return report


def read_ports(report: dict[str, Any], folder: Path, which: str) -> list[ModelPort]:
    """The `inputs` or `outputs` of the model, as its report has them.

    Raises InputError where there is no report, or where they have another form.
    """
    from mcfuser.graph.load import ModelPort

    ports = report.get(which)
    if ports is None:
        raise InputError(
            f"there is no report in '{folder}' that names the model's {which}; give a folder that "
            "compile wrote, or the model with --check"
        )
    if not isinstance(ports, list) or not all(map(_is_port, ports)):
        raise InputError(
            f"report '{folder / 'report.json'}' is not one of mcfuser's: its {which} are of "
            "another kind; compile the model again"
        )
    return [ModelPort(p["name"], tuple(p["shape"]), p["dtype"]) for p in ports]


def _is_port(value: object) -> bool:
    if not isinstance(value, dict) or value.get("dtype") not in _DTYPES:
        return False
    shape = value.get("shape")
    extents = isinstance(shape, list) and all(type(n) is int and n >= -1 for n in shape)
    return extents and isinstance(value.get("name"), str)


def _is_shape(value: object) -> bool:
    return isinstance(value, list) and all(
        (type(n) is int and n >= 0) or (isinstance(n, str) and bool(RANGE.fullmatch(n)))
        for n in value
    )
