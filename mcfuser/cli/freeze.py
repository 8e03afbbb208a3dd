"""`mcfuser freeze`: a model some of whose inputs always have one value."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from mcfuser.arguments.files import check_readable
from mcfuser.arguments.values import input_values
from mcfuser.cli.console import say
from mcfuser.cli.documents import print_document
from mcfuser.cli.options import JsonOption
from mcfuser.errors import InputError


def freeze(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="an ONNX model")],
    values: Annotated[
        list[str], typer.Argument(metavar="INPUT=VALUE", help="an input, and its value from now on")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="the model that is written")],
    as_json: JsonOption = False,
) -> None:
    """Write a model some of whose inputs are constants.

    A value is a number, several with commas between them, or true and false. An If that asks for
    such an input becomes the branch that is taken when the model is compiled.
    """
    given = input_values(values)
    check_readable(model, f"model '{model}'")
    if output.exists() and output.samefile(model):
        raise InputError(f"'{output}' is the model itself; write to another file")
    from mcfuser.graph.embedded import mapped
    from mcfuser.graph.freeze import has_files, initializers
    from mcfuser.graph.limits import DEFAULTS
    from mcfuser.graph.read import light

    proto, _ = light(mapped(model), DEFAULTS)
    added = initializers(proto, given)
    if has_files(proto) and output.resolve().parent != model.resolve().parent:
        raise InputError(
            f"weights of '{model}' are in files beside it: write the result to the same folder, "
            f"as {model.parent / output.name}"
        )
    try:
        shutil.copyfile(model, output)
        with output.open("ab") as file:
            file.write(added)
    except OSError as error:
        raise InputError(f"'{output}' cannot be written: {error.strerror}") from None
    if as_json:
        print_document({"file": str(output), "values": given})
        return
    say(f"wrote {output}, where {', '.join(f'{n} is {v}' for n, v in given.items())}")
