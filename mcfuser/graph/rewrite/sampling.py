"""Forms of Resize, RoiAlign and ConvTranspose that TVM would compute otherwise than ONNX says, and
Col2Im, which it lacks."""

from __future__ import annotations

import numpy as np
from onnx import helper

from mcfuser.graph.evaluate import Unfolded, evaluate
from mcfuser.graph.rewrite.activation import widened
from mcfuser.graph.rewrite.body import NARROW, NodeBody
from mcfuser.graph.weights import OnnxArray

_ATTRIBUTES = (
    "antialias", "coordinate_transformation_mode", "cubic_coeff_a", "exclude_outside", "mode",
    "nearest_mode",
)  # fmt: skip
"""The attributes of Resize that say how one axis is resized."""
_UNKNOWN = "TVM has no such form with '{}'; export it with sizes"
_OPTIONAL = 13
"""The first opset in which a Resize may leave out what it does not use."""
_PLACES, _HALF = "coordinate_transformation_mode", 16
"""Where a RoiAlign's places are, and the first opset in which they are half an element earlier
unless it says so."""
_WHOLE = 1e-3
"""By how much of an element a size may differ from a whole number."""


def resize(body: NodeBody) -> list[str | None] | None:
    """A Resize that TVM would compute wrongly, axis by axis: elements that are chosen as a Gather,
    others as a product with a constant matrix. Any other Resize is left to TVM.

    TVM knows the sizes alone. Where a factor does not lead to a whole size, it interpolates or
    chooses at other places than ONNX; where it chooses, also rounds otherwise between two elements.
    Symmetric halves of pixels it lacks; corners that it aligns for a single element divide by 0.
    """
    x, mode = body.read(0), body.attribute("mode", "nearest")
    shape = body.shape(x)
    given = body.attribute("axes", None) or range(len(shape))
    axes = [axis % len(shape) for axis in given]
    factors, sizes = body.array(body.input(2)), body.array(body.input(3))
    blurred = body.attribute("antialias", 0) or body.attribute("exclude_outside", 0)
    if factors is not None and factors.size:
        wanted = [float(f) for f in factors]
        extents = [f * shape[axis] for f, axis in zip(wanted, axes, strict=True)]
        whole = max(abs(extent - round(extent)) for extent in extents) <= _WHOLE
    elif sizes is not None:
        wanted, whole = [int(n) for n in sizes], True
        extents = [float(n) for n in wanted]
    else:
        return None
    if sizes is not None and body.attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise body.refusal(_UNKNOWN.format("keep_aspect_ratio_policy"))
    even = all(_even(shape[a], n) for a, n in zip(axes, extents, strict=True))
    places = body.attribute("coordinate_transformation_mode", "half_pixel")
    single = any(shape[a] > n and n < 2 for a, n in zip(axes, extents, strict=True))
    lacking = places == "half_pixel_symmetric" or (places == "align_corners" and single)
    if whole and not blurred and not lacking and (mode != "nearest" or even):
        return None
    if places == "tf_crop_and_resize":
        raise body.refusal(_UNKNOWN.format("coordinate_transformation_mode"))
    one_axis = _chosen if mode == "nearest" else _resized
    for axis, size in zip(axes, wanted, strict=True):
        if size != (shape[axis] if isinstance(size, int) else 1):
            x = one_axis(body, x, axis, size)
    return [x]


def _even(extent: int, resized: float) -> bool:
    """Whether an axis grows or shrinks by a whole factor."""
    large, small = max(extent, round(resized)), min(extent, round(resized))
    return small > 0 and large % small == 0


def _chosen(body: NodeBody, x: str, axis: int, size: float) -> str:
    """x with the elements along one axis that are nearest to those of the new extent."""
    extent = body.shape(x)[axis]
    body.room(extent)
    places: OnnxArray = np.arange(extent, dtype=np.float32).reshape(1, 1, 1, extent)
    chosen = _alone(body, places, size).reshape(-1).astype(np.int64)
    return body.op("Gather", x, body.ints(chosen.tolist()), axis=axis)


def _resized(body: NodeBody, x: str, axis: int, size: float) -> str:
    """x with one axis interpolated: a product with a matrix, [extent, resized extent].

    `size` is the new extent if it is an int, else the factor. The matrix is what the operator makes
    of the unit matrix.
    """
    shape = body.shape(x)
    extent = shape[axis]
    body.room(extent, extent)
    unit: OnnxArray = np.eye(extent, dtype=np.float32).reshape(1, 1, extent, extent)
    matrix = _alone(body, unit, size).reshape(extent, -1)
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


def _alone(body: NodeBody, x: OnnxArray, size: float) -> OnnxArray:
    """What the operator makes of x, [1, 1, rows, extent], whose rows alone it resizes."""
    kept = {n: v for n in _ATTRIBUTES if (v := body.attribute(n, None)) is not None}
    sized = isinstance(size, int)
    size_of_all: OnnxArray = np.asarray([1, 1, x.shape[2] if sized else 1, size])
    given = {"x": x, "size": size_of_all.astype(np.int64 if sized else np.float32)}
    none = ""
    if body.opset < _OPTIONAL:
        none, given["none"] = "none", np.zeros(0, np.float32)
    inputs = ["x", none, none, "size"] if sized else ["x", none, "size"]
    alone = helper.make_node("Resize", inputs, ["y"], body.node.name, **kept)
    most = body.limits.constant_bytes - body.bytes
    try:
        return evaluate(alone, given, body.known.opsets, most)["y"]
    except Unfolded as error:
        raise body.refusal(str(error)) from None


def roi_align(body: NodeBody) -> list[str | None] | None:
    """A RoiAlign that says where its places are, if it may (graph.convert), with narrow floats as
    float32, which TVM computes whatever it says. Refuses a maximum, which TVM computes wrongly."""
    if body.attribute("mode", "avg") == "max":
        raise body.refusal("TVM has no maximum of regions (mode 'max')")
    if body.opset >= _HALF and body.attribute(_PLACES, None) is None:
        given = {a.name: helper.get_attribute_value(a) for a in body.node.attribute}
        given[_PLACES] = "half_pixel"
        x, kind = body.read(0), body.dtype(body.read(0))
        read = [body.widened(x), body.widened(body.read(1)), body.read(2)]
        made = body.op("RoiAlign", *read, **given)
        return [body.op("Cast", made, to=kind) if kind in NARROW else made]
    return widened(*NARROW)(body)


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
