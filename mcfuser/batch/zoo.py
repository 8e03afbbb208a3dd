"""A zoo: a TOML file that names models, and how each of them is compiled and checked."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import islice, product
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from mcfuser.arguments.duration import seconds
from mcfuser.arguments.in_place import check_in_place
from mcfuser.arguments.precision import PRECISIONS
from mcfuser.batch.address import JOB, public
from mcfuser.devices.catalogue import HOST, device_named
from mcfuser.errors import InputError
from mcfuser.extents import RANGE

LARGEST = 1 << 20
"""The largest size of a zoo file, in bytes."""
MOST = 10_000
"""The largest number of entries of a zoo, and of files that one pattern matches."""
OWN = "own"
"""The precision of a model that keeps its own types."""
LIMIT = 1800.0
"""The default of an entry's `limit`, in seconds, to which twice its `timeout` is added."""


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """How an entry is compiled and checked.

    `seed`, `trials`, `timeout` (seconds), `precision` and `in_place` (`past_key=present_key`) are
    those of `mcfuser compile`. `limit` is the longest that compiling may take, and checking after
    it, in seconds. `tolerance` is the largest norm-wise relative error against onnxruntime; None
    leaves it to the types of inputs and outputs.
    """

    seed: int
    trials: int | None
    timeout: float | None
    limit: float
    tolerance: float | None
    precision: str | None = None
    in_place: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """One model, for one device, with one set of input shapes and one precision.

    `name` is the path of the model below the zoo's folder, as the zoo's author wrote it or as a
    pattern matched it. `shapes` are written as for the command: `input_ids=1x128`. Where `job` is
    the address of a server's job, the entry is that job's module: `name` is the address without a
    password, `device` is the server's host, and there is no `model`.
    """

    name: str
    model: Path
    device: str
    shapes: tuple[str, ...]
    options: BatchOptions
    job: str | None = None

    @property
    def title(self) -> str:
        """The entry in one line: `bert.onnx cpu input_ids=1x128`."""
        return " ".join((self.name, self.device, *self.variant))

    @property
    def variant(self) -> tuple[str, ...]:
        """The shapes, and the precision where one was asked for."""
        asked = self.options.precision
        return self.shapes if asked is None else (*self.shapes, asked)

    @property
    def locked_as(self) -> str:
        """The entry's name below its device in mcfuser.lock; no path of this machine is in it."""
        name = os.path.basename(self.name) if os.path.isabs(self.name) else self.name
        return printable(" ".join((name, *self.variant)))

    @property
    def folder(self) -> str:
        """The name of the folder for the entry's results; different entries have different ones."""
        identity = "\0".join((self.name, self.device, *self.variant)).encode(
            errors="surrogateescape"
        )
        told = re.sub(r"[^A-Za-z0-9.]+", "-", self.title).strip("-.")[:60]
        return f"{told}-{hashlib.sha256(identity).hexdigest()[:8]}"

    def to_json(self) -> dict[str, Any]:
        """The entry as JSON, without the path of the model on this machine."""
        return {
            "name": printable(self.name),
            "device": self.device,
            "shapes": list(self.shapes),
            "options": asdict(self.options),
        }


def printable(words: str) -> str:
    """A text with replacement characters for bytes that are no UTF-8, as file names may have."""
    return words.encode(errors="surrogateescape").decode(errors="replace")


def read_zoo(path: Path) -> tuple[Entry, ...]:
    """The entries of a zoo, in the order in which the file names them.

    Raises InputError where the file cannot be read, is not of the form that
    docs/batch.md describes, or names a model that is not there.
    """
    document = _document(path)
    zoo = _validated(_Zoo, document, f"zoo '{path}'")
    entries: dict[str, Entry] = {}
    for number, table in enumerate(zoo.models, 1):
        where = f"zoo '{path}', models number {number}"
        model = _validated(_Model, {**document.get("defaults", {}), **table}, where)
        for entry in _entries(model, path.absolute().parent, where):
            if entries.setdefault(entry.folder, entry) != entry:
                raise InputError(
                    f"{where}: '{printable(entry.title)}' stands in an earlier table with other "
                    "options; name it once"
                )
            if len(entries) > MOST:
                raise InputError(f"zoo '{path}' has more than {MOST} entries; divide it")
    return tuple(entries.values())


# --- the form of the file -------------------------------------------------------------------


def _listed(value: object) -> object:
    return value if isinstance(value, list) else [value]


def _duration(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return seconds(f"{value:f}" if isinstance(value, float) else str(value), "the time")
    return seconds(value, "the time") if isinstance(value, str) else value


def _device(name: str) -> str:
    # Asking for the CPU would measure it.
    return name if name == HOST else device_named(name).name


def _precision(name: str) -> str:
    if name != OWN and name not in PRECISIONS:
        known = ", ".join((OWN, *PRECISIONS))
        raise ValueError(f"use one of {known}, or a list of them")
    return name


def _plain(name: str) -> str:
    if not name or not name.isprintable():
        raise ValueError("a name of printable characters is expected")
    return name


def _pairs(pairs: dict[str, str]) -> dict[str, str]:
    check_in_place([f"{name}={output}" for name, output in pairs.items()])
    return pairs


_Duration = Annotated[float, BeforeValidator(_duration), Field(le=7 * 86400.0)]


def _extent(value: object) -> int | str:
    """A number, or a range such as `1..8`."""
    if isinstance(value, str) and RANGE.fullmatch(value):
        return value
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise ValueError("an extent of 0 or more, or a range as '1..8', is expected")
    return value


_Extent = Annotated[int | str, BeforeValidator(_extent)]
_Name = Annotated[str, AfterValidator(_plain)]
_Shapes = dict[_Name, Annotated[list[_Extent], Field(min_length=1, max_length=64)]]


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


F = TypeVar("F", bound=_Form)


class _Defaults(_Form):
    """The defaults of every model."""

    devices: Annotated[
        list[Annotated[str, AfterValidator(_device)]],
        BeforeValidator(_listed),
        Field(min_length=1, max_length=64),
    ] = [HOST]
    seed: Annotated[int, Field(ge=0, lt=1 << 32)] = 0
    trials: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    timeout: _Duration | None = None
    limit: _Duration | None = None
    tolerance: Annotated[float, Field(gt=0, lt=1)] | None = None
    precision: Annotated[
        list[Annotated[str, AfterValidator(_precision)]],
        BeforeValidator(_listed),
        Field(min_length=1, max_length=64),
    ] = [OWN]
    in_place: Annotated[dict[str, str], AfterValidator(_pairs), Field(max_length=1024)] = {}


class _Model(_Defaults):
    files: Annotated[list[_Name], BeforeValidator(_listed), Field(min_length=1, max_length=MOST)]
    shapes: Annotated[list[_Shapes], BeforeValidator(_listed), Field(min_length=1)] = [{}]


class _Zoo(_Form):
    defaults: _Defaults = _Defaults()
    models: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MOST)]


def _document(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise InputError(f"zoo '{path}' cannot be read: {error.strerror}") from None
    if len(data) > LARGEST:
        raise InputError(f"zoo '{path}' is larger than {LARGEST} bytes; divide it")
    try:
        return tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        raise InputError(
            f"zoo '{path}' is not UTF-8 at byte {error.start}; write a TOML file that names models "
            "(docs/batch.md)"
        ) from None
    except RecursionError:
        raise InputError(f"zoo '{path}' is nested too deep to be read") from None
    except ValueError as error:  # the text is not TOML, or a number has too many digits
        raise InputError(f"zoo '{path}' is not TOML: {_line(str(error))}") from None


def _validated(form: type[F], document: Mapping[str, Any], where: str) -> F:
    try:
        return form.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "missing":
        raise InputError(f"{where} has no '{key}'; docs/batch.md describes it")
    if first["type"] == "extra_forbidden":
        known = ", ".join(sorted(form.model_fields))
        raise InputError(f"{where}: key {_line(repr(key))} is not known; use {known}")
    message = first["msg"].removeprefix("Value error, ")
    raise InputError(f"{where}: '{_line(key)}' is {_line(repr(first['input']))}: {_line(message)}")


def _line(words: str) -> str:
    """A text on one line, shortened to fit a message."""
    flat = " ".join(words.split())
    return flat if len(flat) <= 120 else flat[:117] + ".."


# --- models x devices x shapes x precisions --------------------------------------------------


def _entries(model: _Model, folder: Path, where: str) -> Iterator[Entry]:
    limit = model.limit if model.limit is not None else LIMIT + 2 * (model.timeout or 0.0)
    in_place = tuple(sorted(f"{name}={output}" for name, output in model.in_place.items()))
    options = BatchOptions(
        model.seed, model.trials, model.timeout, limit, model.tolerance, in_place=in_place
    )
    jobs = [words for words in model.files if "://" in words]
    yield from (_job(words, model, folder, options, where) for words in jobs)
    paths = [words for words in model.files if words not in jobs]
    files = [name for words in paths for name in _files(words, folder, where)]
    for name, device, shapes, precision in product(
        files, model.devices, model.shapes, model.precision
    ):
        told = tuple(sorted(f"{n}={'x'.join(map(str, e))}" for n, e in shapes.items()))
        asked = replace(options, precision=None if precision == OWN else precision)
        yield Entry(name, folder / name, device, told, asked)


def _job(words: str, model: _Model, folder: Path, options: BatchOptions, where: str) -> Entry:
    """The entry of a server's job."""
    match = JOB.fullmatch(words)
    if match is None:
        raise InputError(
            f"{where}: {_line(repr(words))} is no job's address; write "
            "https://host:8642/v1/jobs/ and the job's id"
        )
    if model.shapes != [{}] or model.precision != [OWN] or model.in_place:
        raise InputError(
            f"{where}: the job {_line(repr(words))} was posted with its own shapes, precision and "
            "in_place; leave them out here"
        )
    host = urlsplit(words).hostname or "server"
    return Entry(public(words), folder, host, (), options, words)


def _below(folder: Path, name: str) -> list[str]:
    """Every .onnx file below a folder, relative to the zoo's."""
    found = []
    for path, folders, names in os.walk(folder / name):
        folders.sort()
        at = os.path.join(name, os.path.relpath(path, folder / name))
        found += [os.path.normpath(os.path.join(at, n)) for n in names if n.endswith(".onnx")]
        if len(found) > MOST:
            break
    return found


def _files(words: str, folder: Path, where: str) -> list[str]:
    """The files that a path or a pattern names, relative to the zoo's folder and sorted. A folder
    is every .onnx file below it."""
    try:
        if os.path.isfile(folder / words):
            return [words]
        if os.path.isdir(folder / words):
            matched = _below(folder, words)
        else:
            matched = list(islice(glob.iglob(words, root_dir=folder, recursive=True), MOST + 1))
    except (OSError, ValueError, re.error, RecursionError) as error:
        raise InputError(f"{where}: {_line(repr(words))} is no path: {_line(str(error))}") from None
    files = sorted(name for name in matched if os.path.isfile(folder / name))
    if not files:
        what = "no file" if not os.path.isdir(folder / words) else "no .onnx file below"
        raise InputError(
            f"{where}: {what} {_line(repr(words))} lies in '{folder}'; correct 'files'"
        )
    if len(matched) > MOST:
        raise InputError(f"{where}: {_line(repr(words))} matches more than {MOST} files; divide it")
    return files
