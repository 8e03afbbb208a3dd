"""`mcfuser space`: counts the candidates of a chain without compiling anything."""

from __future__ import annotations

from typing import Annotated

import typer

from mcfuser.cli.console import out
from mcfuser.cli.documents import print_document
from mcfuser.cli.options import (
    ChainArgument,
    DeviceOption,
    DtypeOption,
    JsonOption,
    among,
    read_chain,
)
from mcfuser.devices.catalogue import EXAMPLE, device_named
from mcfuser.errors import InputError

KINDS = ("mcfuser", "chimera")
"""The spaces that are counted."""


def space(
    chain: ChainArgument,
    device: DeviceOption = EXAMPLE,
    dtype: DtypeOption = "float16",
    kind: Annotated[
        str, typer.Option("--space", help="mcfuser or chimera", autocompletion=among(*KINDS))
    ] = "mcfuser",
    as_json: JsonOption = False,
) -> None:
    """Count a chain's candidates, and what each rule leaves of them."""
    from mcfuser import report as reporting
    from mcfuser.backends import backend_of
    from mcfuser.space import prune as pruning

    if kind not in KINDS:
        raise InputError(f"space '{kind}' is not known; use mcfuser or chimera")
    program, target = read_chain(chain, dtype), device_named(device)
    tiled = backend_of(target).tiled(program, target)
    whole = pruning.space(tiled, "chimera" if kind == "chimera" else "mcfuser")
    left, steps = pruning.prune(whole, target)
    distinct = pruning.distinct(left)
    document = {
        "chain": program.name,
        "device": target.name,
        "expressions": len(whole.expressions),
        "candidates": whole.candidates,
        "after": {
            s.rule: {"expressions": len(s.expressions), "candidates": s.candidates} for s in steps
        },
        "distinct": distinct.candidates,
        "split": pruning.parted(distinct, target).candidates,
    }
    if as_json:
        print_document(document)
        return
    reporting.show_space(document, steps, out)
