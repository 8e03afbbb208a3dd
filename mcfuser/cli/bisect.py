"""`mcfuser bisect`: names the first operator of a model whose result differs from onnxruntime's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mcfuser.arguments.files import check_readable, read_model
from mcfuser.arguments.precision import narrow_type
from mcfuser.arguments.shapes import shapes as parse_shapes
from mcfuser.cli.console import progress, say
from mcfuser.cli.documents import print_document
from mcfuser.cli.kept import kernel_cache
from mcfuser.cli.options import (
    CacheOption,
    DeviceOption,
    InputsOption,
    JsonOption,
    PrecisionOption,
    SeedOption,
    ShapeOption,
    TimeoutOption,
    TrialsOption,
    tuning,
)
from mcfuser.devices.catalogue import HOST, device_named
from mcfuser.errors import DeviceError


def bisect(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="an ONNX model")],
    device: DeviceOption = HOST,
    inputs: InputsOption = None,
    shape: ShapeOption = None,
    precision: PrecisionOption = None,
    seed: SeedOption = 0,
    trials: TrialsOption = None,
    timeout: TimeoutOption = None,
    cache: CacheOption = True,
    as_json: JsonOption = False,
) -> None:
    """Name the first operator that differs from onnxruntime.

    The model is compiled so that every value that its module stores is compared.
    """
    options, _ = tuning(seed, trials, timeout, retune=False)
    shapes, target = parse_shapes(shape or ()), device_named(device)
    narrow = narrow_type(precision)
    if inputs is not None:
        check_readable(inputs, f"inputs '{inputs}'")
    data = read_model(model)
    from mcfuser.bisect import bisect as bisected
    from mcfuser.compile import compile_model
    from mcfuser.graph.check import given_or_drawn
    from mcfuser.graph.external import DataFolder
    from mcfuser.graph.load import bound
    from mcfuser.tune.progress import Progress
    from mcfuser.tune.tuned import TuneOptions
    from mcfuser_service.settings import read_settings

    limits, folder = read_settings().model_limits, DataFolder(model.parent)
    fixed = bound(data, shapes, limits, folder)
    feeds = given_or_drawn(fixed, inputs, seed)
    with kernel_cache(cache, target) as (kept, probed), progress() as tell:
        made = compile_model(
            data, probed, kept, TuneOptions(**options), shapes, tell, None, limits, folder, narrow
        )
        if made.decided.missing is not None:
            raise DeviceError(f"nothing can be compared: {made.decided.missing}")
        tell(Progress("compare"))
        result = bisected(made.decided, fixed, feeds)
    if as_json:
        print_document(result.to_json())
        return
    for sentence in result.sentences():
        say(sentence)
