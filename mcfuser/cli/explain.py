"""`mcfuser explain`: analyses a chain or a model without compiling anything."""

from __future__ import annotations

import json
from pathlib import Path

from mcfuser.arguments.files import read_model
from mcfuser.arguments.precision import narrow_type
from mcfuser.arguments.shapes import shapes as parse_shapes
from mcfuser.cli.console import out
from mcfuser.cli.options import (
    DtypeOption,
    EitherArgument,
    EitherDeviceOption,
    JsonOption,
    PrecisionOption,
    ShapeOption,
    read_chain,
)
from mcfuser.devices.catalogue import EXAMPLE, HOST, device_named
from mcfuser.errors import InputError

_MODELS = ".onnx"


def explain(
    what: EitherArgument,
    device: EitherDeviceOption = None,
    dtype: DtypeOption = "float16",
    shape: ShapeOption = None,
    precision: PrecisionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how a chain's reductions depend on each other, and the loop nest they are fused into;
    of a model, its regions, what they save, and why the other operators are in none."""
    if what.endswith(_MODELS):
        narrow = narrow_type(precision)
        _explain_model(Path(what), device or HOST, shape or [], narrow, as_json)
        return
    if shape or precision or as_json:
        given = "--shape" if shape else "--precision" if precision else "--json"
        raise InputError(f"{given} is for a model, and '{what}' is no file that ends in {_MODELS}")
    from mcfuser.report import show_algebra

    program = read_chain(what, dtype)
    show_algebra(program, device_named(device or EXAMPLE), out)


def _explain_model(
    path: Path, device: str, shape: list[str], narrow: str | None, as_json: bool
) -> None:
    shapes, target, model = parse_shapes(shape), device_named(device), read_model(path)
    from mcfuser.explain import explain as explained
    from mcfuser.graph.external import DataFolder
    from mcfuser.report import show_model
    from mcfuser_service.settings import read_settings

    limits = read_settings().model_limits
    explanation = explained(model, target, shapes, limits, DataFolder(path.parent), narrow)
    if as_json:
        print(json.dumps(explanation.to_json()))
        return
    show_model(explanation, out)
