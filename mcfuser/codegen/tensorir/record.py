"""A generated function kept as a document, and made again for a chain with other names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcfuser.chain import NO_STARTS, Chain
from mcfuser.codegen.tensorir.parameters import ROOT, Shapes, header, parameters
from mcfuser.codegen.tensorir.source import Panels, TensorirSource


def to_record(source: TensorirSource) -> dict[str, Any]:
    """What a caller must know besides the text, as JSON: names are those of the text's chain."""
    packed = [
        [name, list(p.depth), p.columns, p.width, list(p.window), p.out, p.dot]
        for name, p in source.packed
    ]
    return {"name": source.name, "packed": packed, "scalars": list(source.scalars)}


def from_record(
    record: Mapping[str, Any], text: str, tensors: Mapping[str, str], axes: Mapping[str, str]
) -> TensorirSource:
    """The function of a text, for a chain in which tensors and axes have other names: it takes its
    arguments by position.

    Raises KeyError, TypeError or ValueError where the record is of another form.
    """
    panels = [
        (tensors[n], Panels(tuple(depth), columns, width, tuple(window), out, dot))
        for n, depth, columns, width, window, out, dot in record["packed"]
    ]
    scalars = tuple(axes[a] for a in record["scalars"])
    return TensorirSource(text, str(record["name"]), tuple(panels), scalars)


def check_parameters(source: TensorirSource, chain: Chain) -> None:
    """Raises ValueError where a text, generated for `chain`, does not declare its parameters as
    this back end would: another version generated it."""
    _, head, _ = _split(source.text)
    if head != [*header(source.name, parameters(chain, dict(source.packed), {}))]:
        raise ValueError(f"the source of '{source.name}' declares its parameters in another way")


def with_shapes(
    source: TensorirSource,
    chain: Chain,
    name: str,
    shapes: Shapes,
    starts: Mapping[str, int] = NO_STARTS,
) -> TensorirSource:
    """The function under another name, for parameters of other shapes, in which arrays begin at
    other elements; `chain` is the one that its text was generated for. Its statements are those of
    the text: only the lines that declare parameters are written anew."""
    before, _, body = _split(source.text)
    given = parameters(chain, dict(source.packed), shapes, starts)
    text = "\n".join([*before, *header(name, given), *body])
    return TensorirSource(text, name, source.packed, given.scalars)


def _split(text: str) -> tuple[list[str], list[str], list[str]]:
    """The lines before the function's first one, those that declare it, and its statements."""
    lines = text.split("\n")
    first = next((i for i, line in enumerate(lines) if line.startswith("def ")), len(lines))
    root = next((i for i, line in enumerate(lines) if line.strip() == ROOT), len(lines))
    return lines[:first], lines[first:root], lines[root:]
