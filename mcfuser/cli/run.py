"""`mcfuser run`: runs a compiled module and compares it with onnxruntime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mcfuser.arguments.files import check_readable
from mcfuser.arguments.shapes import shapes as parse_shapes
from mcfuser.cli.console import out
from mcfuser.cli.options import JsonOption, SeedOption, ShapeOption
from mcfuser.cli.results import read_report
from mcfuser.devices.catalogue import HOST
from mcfuser.errors import InputError

if TYPE_CHECKING:
    from mcfuser.graph.check import RunMode


def run(
    folder: Annotated[Path, typer.Argument(help="the folder that compile wrote")],
    check: Annotated[Path, typer.Option("--check", help="the ONNX model to compare with")],
    shape: ShapeOption = None,
    seed: SeedOption = 1,
    graph: Annotated[
        bool, typer.Option("--graph/--no-graph", help="on a GPU, captured into a CUDA graph")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Run a compiled module in a fresh process, and onnxruntime on the same random inputs."""
    from mcfuser.graph.check import check as compare
    from mcfuser.graph.external import DataFolder
    from mcfuser_service.settings import read_settings

    report = read_report(folder)
    on_host = report.get("device", HOST) == HOST
    mode: RunMode = "host" if on_host else "graph" if graph else "kernels"
    compiled_for = {name: tuple(extents) for name, extents in report.get("shapes", {}).items()}
    shapes = parse_shapes(shape or ()) or compiled_for
    limits = read_settings().model_limits
    result = compare(folder, _read(check), shapes, seed, mode, limits, DataFolder(check.parent))
    document = {
        "error": result.error,
        "mcfuser_seconds": result.seconds,
        "onnxruntime_seconds": result.reference_seconds,
    }
    if as_json:
        print(json.dumps(document))
        return
    out.print(f"norm-wise relative error against onnxruntime: {result.error:.1e}")
    out.print(
        f"mcfuser {result.seconds * 1e3:.3f} ms, onnxruntime {result.reference_seconds * 1e3:.3f} "
        f"ms: {result.seconds / result.reference_seconds:.2f} of its time",
        highlight=False,
    )


def _read(path: Path) -> bytes:
    check_readable(path, f"model '{path}'")
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"model '{path}' cannot be read: {error.strerror}") from None
