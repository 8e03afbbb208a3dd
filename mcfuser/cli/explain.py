"""`mcfuser explain`: analyses a chain or a model without compiling anything."""

from __future__ import annotations

from pathlib import Path

from mcfuser.arguments.files import read_model
from mcfuser.arguments.precision import narrow_type
from mcfuser.arguments.shapes import shapes as parse_shapes
from mcfuser.cli.console import out
from mcfuser.cli.documents import print_document
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
    """Show how a chain or a model is fused, and what is not and why.

    Of a chain: how its reductions depend on each other, and the loop nests they are fused into.
    Of a model: its regions, what they save, and why the other operators are in none.
    """
    if what.endswith(_MODELS):
        narrow = narrow_type(precision)
        _explain_model(Path(what), device or HOST, shape or [], narrow, as_json)
        return
    if shape or precision:
        given = "--shape" if shape else "--precision"
        raise InputError(f"{given} is for a model, and '{what}' is no file that ends in {_MODELS}")
    from mcfuser.backends import backend_of
    from mcfuser.derivation import derive
    from mcfuser.report import show_algebra

    chain, target = read_chain(what, dtype), device_named(device or EXAMPLE)
    derivation = derive(chain, backend_of(target).tiled(chain, target), target)
    if as_json:
        print_document(derivation.to_json())
        return
    show_algebra(derivation, out)


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
        print_document(explanation.to_json())
        return
    show_model(explanation, out)
