"""Forms of Resize, RoiAlign and ConvTranspose that TVM would compute otherwise than ONNX says."""

from __future__ import annotations

import numpy as np

from mcfuser.graph.rewrite.body import NodeBody


def resize(body: NodeBody) -> None:
    """Leaves a Resize to TVM, and refuses one that TVM computes wrongly.

    TVM knows the sizes alone. Where a factor does not lead to a whole size, it interpolates at
    other places than ONNX.
    """
    for name in ("antialias", "exclude_outside"):
        if body.attribute(name, 0):
            raise body.refusal(f"TVM has no resizing with '{name}'")
    factors = body.array(body.input(2))
    mode = body.attribute("mode", "nearest")
    if factors is None or not factors.size or mode == "nearest":
        return
    shape = body.shape(body.read(0))
    axes = body.attribute("axes", None) or range(len(shape))
    sizes = np.asarray(factors, np.float64) * np.asarray([shape[axis] for axis in axes])
    if np.abs(sizes - np.round(sizes)).max() > 1e-3:
        raise body.refusal(
            f"its factors {np.asarray(factors).tolist()} lead to no whole sizes, and TVM would "
            "interpolate at other places; export it with sizes"
        )


def roi_align(body: NodeBody) -> None:
    """Leaves a RoiAlign to TVM, and refuses a maximum, which TVM computes wrongly."""
    if body.attribute("mode", "avg") == "max":
        raise body.refusal("TVM has no maximum of regions (mode 'max')")


def transposed_convolution(body: NodeBody) -> list[str | None] | None:
    """ConvTranspose with the shape of its result, which TVM ignores: with the padding instead."""
    wanted = body.attribute("output_shape", None)
    if not wanted:
        return None
    inner, kernel = body.shape(body.read(0))[2:], body.shape(body.read(1))[2:]
    ones = [1] * len(inner)
    strides, dilations = (body.attribute(n, None) or ones for n in ("strides", "dilations"))
    more = body.attribute("output_padding", None) or [0] * len(inner)
    spans = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    pads = [
        s * (n - 1) + extra + span - out
        for s, n, extra, span, out in zip(
            strides, inner, more, spans, wanted[-len(inner) :], strict=True
        )
    ]
    if min(pads) < 0:
        raise body.refusal(f"its result would be smaller than its shape {wanted}")
    less, half = [p // 2 for p in pads], [p - p // 2 for p in pads]
    upper = body.attribute("auto_pad", "NOTSET") == "SAME_UPPER"
    return [
        body.op(
            "ConvTranspose", *body.node.input, strides=strides, dilations=dilations,
            output_padding=more, group=body.attribute("group", 1),
            pads=[*less, *half] if upper else [*half, *less],
        )
    ]  # fmt: skip
