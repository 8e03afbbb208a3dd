"""`mcfuser run`: runs a compiled module, and compares it with onnxruntime."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mcfuser.arguments.files import check_readable, read_model
from mcfuser.arguments.shapes import shapes as parse_shapes
from mcfuser.cli.console import say
from mcfuser.cli.documents import print_document
from mcfuser.cli.options import InputsOption, JsonOption, SeedOption, ShapeOption
from mcfuser.cli.results import check_writable, read_ports, read_report, write_whole
from mcfuser.devices.catalogue import HOST
from mcfuser.errors import InputError
from mcfuser.extents import from_json, highest, ranged

if TYPE_CHECKING:
    from mcfuser.graph.check import Checked
    from mcfuser.graph.running import Ran, RunMode


def run(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="the folder that compile wrote")],
    check: Annotated[
        Path | None, typer.Option("--check", help="the ONNX model to compare with")
    ] = None,
    inputs: InputsOption = None,
    outputs: Annotated[
        Path | None, typer.Option("--outputs", help="an .npz file for the results, by output")
    ] = None,
    shape: ShapeOption = None,
    seed: SeedOption = 1,
    graph: Annotated[
        bool, typer.Option("--graph/--no-graph", help="on a GPU, captured into a CUDA graph")
    ] = True,
    verify: Annotated[
        Path | None,
        typer.Option(
            "--verify", metavar="PUB", help="run it only if this Ed25519 public key's owner signed"
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a compiled module, and compare it with onnxruntime.

    It runs on given or random inputs, in a process of its own. The status is 1 where the results
    differ, or where the module is not signed as asked for.
    """
    with _trusted(folder, verify) as trusted:
        _run(trusted, check, inputs, outputs, shape, seed, graph, as_json)


@contextmanager
def _trusted(folder: Path, key: Path | None) -> Iterator[Path]:
    """A copy of the folder that was checked, where a key is given; else the folder."""
    if key is None:
        yield folder
        return
    from mcfuser.signing.folder import verified
    from mcfuser.signing.key import read_verifying_key

    with verified(folder, read_verifying_key(key)) as copy:
        yield copy


def _run(
    folder: Path,
    check: Path | None,
    inputs: Path | None,
    outputs: Path | None,
    shape: list[str] | None,
    seed: int,
    graph: bool,
    as_json: bool,
) -> None:
    report = read_report(folder)
    on_host = report.get("device", HOST) == HOST
    mode: RunMode = "host" if on_host else "graph" if graph else "kernels"
    if inputs is not None:
        check_readable(inputs, f"inputs '{inputs}'")
    if outputs is not None:
        check_writable(outputs.parent)
    compared: Checked | None = None
    if check is not None:
        compared = _compared(folder, report, check, inputs, shape, seed, mode)
        done = compared.ran
    else:
        done = _alone(folder, report, inputs, mode)
    if outputs is not None:
        _write(outputs, done)
    if as_json:
        print_document(_document(done, compared))
    else:
        for line in told(done, compared):
            say(line)
        if outputs is not None:
            say(f"wrote {outputs}")
    if compared is not None and not compared.agrees:
        raise typer.Exit(1)


def _compared(
    folder: Path,
    report: dict[str, Any],
    model: Path,
    inputs: Path | None,
    shape: list[str] | None,
    seed: int,
    mode: RunMode,
) -> Checked:
    """The module beside onnxruntime, at the shapes for which it was compiled unless others are
    given; where these are ranges, at those of the inputs' file, or at the highest extents."""
    from mcfuser.graph.check import check as compare
    from mcfuser.graph.external import DataFolder
    from mcfuser_service.settings import read_settings

    shapes = _shapes(report, inputs, shape)
    narrow = (report.get("precision") or {}).get("dtype")
    limits, data = read_settings().model_limits, DataFolder(model.parent)
    return compare(
        folder, read_model(model), shapes, seed, mode, limits, data, inputs, narrow,
        report.get("in_place", {}),
    )  # fmt: skip


def _shapes(
    report: dict[str, Any], inputs: Path | None, given: list[str] | None
) -> dict[str, tuple[int, ...]]:
    """The shapes to run at. Raises InputError where one is outside of the module's ranges."""
    compiled_for = from_json(report.get("shapes", {}))
    extents = report.get("extents", ())
    shapes = parse_shapes(given or ())
    if not shapes and extents and inputs is not None:
        from mcfuser.graph.npz import read_shapes

        fixed = {n: s for n, s in compiled_for.items() if not ranged({n: s})}
        read = {*compiled_for, *(name for e in extents for name, _ in e["places"])}
        shapes = highest(fixed) | {n: s for n, s in read_shapes(inputs).items() if n in read}
    ports = {port["name"] for port in report.get("inputs", ())}
    for extent in extents:
        low, high, sliced = extent["low"], extent["high"], extent.get("sliced")
        by_input = {f"dimension {i} of input '{n}'": (n, i) for n, i in extent["places"]}
        named = {f"dimension '{n}'": (n, 0) for n in (extent["name"],) if n not in ports}
        for what, (name, position) in (named | by_input).items():
            n = dict(enumerate(shapes.get(name, ()))).get(position, low)
            if n < low or (n > high and not sliced):
                takes = f"{low} {'or more' if sliced else f'to {high}'}"
                raise InputError(f"{what} is {n}; the module takes {takes}")
    return shapes or highest(compiled_for)


def _alone(folder: Path, report: dict[str, Any], inputs: Path | None, mode: RunMode) -> Ran:
    """The module on a file's inputs, which are those that the report names."""
    from mcfuser.graph.npz import read_arrays
    from mcfuser.graph.running import ran

    if inputs is None:
        raise InputError(
            "there is nothing to run the module on; give arrays with --inputs, or the model with "
            "--check, for which random inputs are drawn"
        )
    wanted, made = read_ports(report, folder, "inputs"), read_ports(report, folder, "outputs")
    return ran(folder, read_arrays(inputs, wanted), [p.name for p in made], mode)


def _write(path: Path, done: Ran) -> None:
    from mcfuser.graph.npz import write_arrays

    data = io.BytesIO()
    write_arrays(data, done.outputs)
    write_whole(path, data.getvalue())


def _document(done: Ran, compared: Checked | None) -> dict[str, Any]:
    shown = {n: {"dtype": str(a.dtype), "shape": list(a.shape)} for n, a in done.outputs.items()}
    document: dict[str, Any] = {"mcfuser_seconds": done.seconds, "outputs": shown}
    if compared is not None:
        document |= {
            "error": compared.error,
            "errors": dict(compared.errors),
            "tolerance": compared.tolerance,
            "numberless": [*compared.numberless],
            "onnxruntime_seconds": compared.reference_seconds,
        }
    return document


def told(done: Ran, compared: Checked | None) -> Iterator[str]:
    """What is said of a run and, where there is one, of its comparison with onnxruntime."""
    own = f"mcfuser {done.seconds * 1e3:.3f} ms"
    if compared is None:
        from mcfuser.graph.tensors import tensor_form

        for name, array in done.outputs.items():
            yield f"{name}: {tensor_form(str(array.dtype), array.shape)}"
        yield own
        return
    error = f"norm-wise relative error against onnxruntime: {compared.error:.1e}"
    yield error if compared.agrees else f"{error}, more than {compared.tolerance:.0e}: they differ"
    if len(compared.errors) > 1:
        yield from (f"  {name}: {error:.1e}" for name, error in compared.errors.items())
    if compared.numberless:
        from mcfuser.report import NUMBERLESS

        yield from (f"  {NUMBERLESS.format(name=name)}" for name in compared.numberless)
    theirs = compared.reference_seconds
    if theirs is None:
        yield (
            f"{own} on the GPU; onnxruntime computed the model on the CPU, so its time is no "
            "measure of this one"
        )
    else:
        yield f"{own}, onnxruntime {theirs * 1e3:.3f} ms: {done.seconds / theirs:.2f} of its time"
