"""`mcfuser compile`: compiles an ONNX model to a module."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from mcfuser.arguments.files import check_readable
from mcfuser.arguments.in_place import in_place_pairs
from mcfuser.arguments.precision import check_precision
from mcfuser.arguments.shapes import ranged_shapes
from mcfuser.cli.console import out, progress, say
from mcfuser.cli.deadline import process_start
from mcfuser.cli.documents import print_document
from mcfuser.cli.kept import make_data_folder
from mcfuser.cli.options import (
    BucketsOption,
    CacheOption,
    DeviceOption,
    InPlaceOption,
    JsonOption,
    LockedOption,
    PrecisionOption,
    RangedShapeOption,
    RetuneOption,
    SeedOption,
    TimeoutOption,
    TrialsOption,
    tuning,
)
from mcfuser.cli.results import check_writable, write_results
from mcfuser.cli.sign import PassphraseOption, SignOption, signing_key
from mcfuser.devices.catalogue import HOST, device_named
from mcfuser.errors import InputError, LimitError
from mcfuser.extents import BUCKETS


def compile_(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="an ONNX model")],
    output: Annotated[Path, typer.Option("--output", "-o", help="a folder for the results")],
    device: DeviceOption = HOST,
    shape: RangedShapeOption = None,
    buckets: BucketsOption = BUCKETS,
    precision: PrecisionOption = None,
    in_place: InPlaceOption = None,
    seed: SeedOption = 0,
    trials: TrialsOption = None,
    timeout: TimeoutOption = None,
    cache: CacheOption = True,
    retune: RetuneOption = False,
    locked: LockedOption = None,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="compare the module with onnxruntime")
    ] = True,
    sign: SignOption = None,
    passphrase_file: PassphraseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compile an ONNX model, its chains fused where that is faster.

    module.so and report.json are written to the folder of the results.
    """
    begun = process_start()
    options, limit = tuning(seed, trials, timeout, retune)
    shapes, precision = ranged_shapes(shape or ()), check_precision(precision)
    pairs = in_place_pairs(in_place or ())
    if device != HOST:
        device_named(device)  # raises InputError for an unknown name before anything is started
    check_readable(model, f"model '{model}'")
    if locked is not None:
        check_readable(locked, f"lock '{locked}'")
    check_writable(output)
    if locked is not None and retune:
        raise InputError("--retune searches and --locked does not: leave one of them out")
    key = signing_key(sign, passphrase_file)
    from mcfuser.process.confined import Stopped
    from mcfuser.report import show
    from mcfuser_service.compilation import CompileRequest, compiled, start
    from mcfuser_service.settings import read_settings

    settings = read_settings()
    process = start(settings.job_memory)
    store = settings.database_url if cache and locked is None else None
    if store is not None:
        make_data_folder(settings.data)
    limits = asdict(settings.model_limits)
    request = CompileRequest(
        model, device, options, shapes, store, limit, begun, limits, model.parent, check,
        precision, buckets, pairs, locked, settings.team,
    )  # fmt: skip
    try:
        with progress() as tell:
            artifact = compiled(request, process, tell)
    except Stopped as died:
        raise LimitError(f"the model was not compiled: {died}") from None
    report = (json.dumps(artifact.report, indent=2) + "\n").encode()
    written = write_results(output, artifact.module, report, key)
    if as_json:
        names = ("module", "report", "envelope")
        files = {name: str(path) for name, path in zip(names, written, strict=False)}
        print_document({"files": files, "report": artifact.report})
        return
    show(artifact.report, out)
    say(f"wrote {' and '.join(map(str, written))}")
