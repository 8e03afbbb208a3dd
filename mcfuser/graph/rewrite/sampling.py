"""Forms of Resize, RoiAlign and ConvTranspose that TVM would compute otherwise than ONNX says, and
Col2Im, which it lacks."""

from __future__ import annotations

import numpy as np
from onnx import helper

from mcfuser.graph.evaluate import Unfolded, evaluate
from mcfuser.graph.rewrite.body import NodeBody
from mcfuser.graph.weights import OnnxArray

_WHOLE = 1e-3
"""By how much of an element a size may differ from a whole number."""


def resize(body: NodeBody) -> list[str | None] | None:
    """A Resize that TVM would compute wrongly, as a product with a constant matrix for each axis
    that it changes; any other one is left to TVM.

    TVM knows the sizes alone. Where a factor does not lead to a whole size, it interpolates at
    other places than ONNX.
    """
    x, mode = body.read(0), body.attribute("mode", "nearest")
    shape = body.shape(x)
    given = body.attribute("axes", None) or range(len(shape))
    axes = [axis % len(shape) for axis in given]
    factors, sizes = body.array(body.input(2)), body.array(body.input(3))
    blurred = body.attribute("antialias", 0) or body.attribute("exclude_outside", 0)
    if factors is not None and factors.size:
        wanted = [float(f) for f in factors]
        extents = np.asarray(factors, np.float64) * [shape[axis] for axis in axes]
        whole = bool(np.abs(extents - np.round(extents)).max() <= _WHOLE)
    elif sizes is not None:
        wanted, whole = [int(n) for n in sizes], True
    else:
        return None
    if mode == "nearest" or (whole and not blurred):
        return None
    for name, plain in (
        ("keep_aspect_ratio_policy", "stretch"),
        ("coordinate_transformation_mode", "half_pixel"),
    ):
        if body.attribute(name, plain) in ("not_larger", "not_smaller", "tf_crop_and_resize"):
            raise body.refusal(f"TVM has no such form with '{name}'; export it with sizes")
    for axis, size in zip(axes, wanted, strict=True):
        if size != (shape[axis] if factors is None or not factors.size else 1):
            x = _resized(body, x, axis, size)
    return [x]


def _resized(body: NodeBody, x: str, axis: int, size: float) -> str:
    """x with one axis interpolated: a product with a matrix, [extent, resized extent].

    `size` is the new extent if it is an int, else the factor. The matrix is what the operator makes
    of the unit matrix.
    """
    shape = body.shape(x)
    extent = shape[axis]
    body.room(extent, extent)
    kept = {
        n: v
        for n in (
            "antialias", "coordinate_transformation_mode", "cubic_coeff_a", "exclude_outside",
            "mode",
        )
        if (v := body.attribute(n, None)) is not None
    }  # fmt: skip
    sized = isinstance(size, int)
    unit: OnnxArray = np.eye(extent, dtype=np.float32).reshape(1, 1, extent, extent)
    size_of_all: OnnxArray = np.asarray([1, 1, extent if sized else 1, size])
    given = {"x": unit, "size": size_of_all.astype(np.int64 if sized else np.float32)}
    inputs = ["x", "", "", "size"] if sized else ["x", "", "size"]
    alone = helper.make_node("Resize", inputs, ["y"], body.node.name, **kept)
    most = body.limits.constant_bytes - body.bytes
    try:
        matrix = evaluate(alone, given, body.known.opsets, most)["y"].reshape(extent, -1)
    except Unfolded as error:
        raise body.refusal(str(error)) from None
    wide = body.widened(x)
    order = [*(i for i in range(len(shape)) if i != axis), axis]
    if axis == len(shape) - 2:
        turned = body.const(np.ascontiguousarray(matrix.T), body.dtype(wide))
        made = body.op("MatMul", turned, wide)
    else:
        rows = body.transpose(wide, *order)
        made = body.op("MatMul", rows, body.const(matrix, body.dtype(wide)))
        made = body.transpose(made, *np.argsort(order).tolist())
    return body.cast(made, body.dtype(x))


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


def overlapping_sum(body: NodeBody) -> list[str | None]:
    """Col2Im: blocks that are added up where they overlap, which is a transposed convolution with a
    unit matrix. The input is [batch, channels x elements of a block, blocks]."""
    x = body.read(0)
    batch, rows, blocks = body.shape(x, 3)
    image, block = (body.array(name) for name in (body.read(1), body.read(2)))
    if image is None or block is None:
        raise body.refusal("the extents of its image or blocks are known only at run time")
    if len(block) != 2:
        raise body.refusal(f"its blocks have {len(block)} dimensions, and only 2 are accepted")
    extents, kernel = [int(n) for n in image], [int(n) for n in block]
    strides, dilations = (body.attribute(n, None) or [1, 1] for n in ("strides", "dilations"))
    pads = body.attribute("pads", None) or [0] * 4
    spans = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    free = [e + low + high - s for e, low, high, s in
            zip(extents, pads[:2], pads[2:], spans, strict=True)]  # fmt: skip
    steps = [f // s + 1 for f, s in zip(free, strides, strict=True)]
    elements = kernel[0] * kernel[1]
    if min(steps) < 1 or steps[0] * steps[1] != blocks or rows % elements:
        raise body.refusal(f"its image {extents} does not consist of {blocks} blocks {kernel}")
    channels = rows // elements
    unit = np.eye(elements).reshape(elements, 1, *kernel)
    y = body.op(
        "ConvTranspose",
        body.reshape(x, batch * channels, elements, *steps),
        body.const(unit, body.dtype(x)),
        strides=strides, dilations=dilations, pads=pads,
        output_padding=[f % s for f, s in zip(free, strides, strict=True)],
    )  # fmt: skip
    return [body.reshape(y, batch, channels, *extents)]
