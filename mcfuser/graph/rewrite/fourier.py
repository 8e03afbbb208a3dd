"""Discrete Fourier transforms as products with a constant matrix.

Of N numbers that takes N^2 steps and not N log(N). But the transforms of speech have a few hundred
numbers, and as a product (of short times, a convolution) one is a chain like any other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mcfuser.graph.rewrite.body import NodeBody

_AXIS = (1, -2)  # of a DFT that names none: an attribute before opset 20, then an input


def transform(body: NodeBody) -> list[str | None]:
    """ONNX's DFT along an axis of [.., n, .., 1 or 2]; the last dimension has the real and the
    imaginary part. The result has 2 of them."""
    x, inverse = body.read(0), bool(body.attribute("inverse", 0))
    rank, onesided = len(body.shape(x)), _onesided(body, x, 0)
    if onesided and inverse:
        raise body.refusal("it is inverse and onesided, which ONNX does not define")
    # an input from opset 20 on, an attribute before
    axis = (
        _number(body, 2) if body.has(2) else -2 if body.opset >= 20 else body.attribute("axis", 1)
    )
    axis %= rank
    length = _number(body, 1) if body.has(1) else body.shape(x)[axis]
    used = min(length, body.shape(x)[axis])
    if used < body.shape(x)[axis]:
        x = body.slice(x, axis, 0, used)
    *outer, parts = (i for i in range(rank) if i != axis)
    rows = body.transpose(x, *outer, axis, parts)
    others, depth = [body.shape(x)[i] for i in outer], used * body.shape(x)[parts]
    matrix = _matrix(body, used, length, body.shape(x)[parts], onesided, inverse)
    y = body.op("MatMul", body.reshape(rows, *others, depth), _constant(body, matrix, x))
    y = body.reshape(y, *others, matrix.shape[1] // 2, 2)
    order = [*range(rank - 2), rank - 1]
    return [body.transpose(y, *order[:axis], rank - 2, *order[axis:])]


def short_time(body: NodeBody) -> list[str | None]:
    """ONNX's STFT of [batch, length] or [batch, length, 1 or 2]: [batch, frames, frequencies, 2].

    It is a convolution whose windows are the frames."""
    x = body.read(0)
    batch, length, *rest = body.shape(x)
    parts = rest[0] if rest else 1
    frame = length
    if body.has(3):
        frame = _number(body, 3)
    elif body.has(2):
        (frame,) = body.shape(body.read(2), 1)
    matrix = _matrix(body, frame, frame, parts, _onesided(body, x, 1, parts), False)
    weights = _constant(body, matrix.T.reshape(-1, frame, parts).transpose(0, 2, 1), x)
    if body.has(2):
        weights = body.op("Mul", weights, body.reshape(body.read(2), 1, 1, frame))
    channels = body.transpose(body.reshape(x, batch, length, parts), 0, 2, 1)
    y = body.op("Conv", channels, weights, strides=[_number(body, 1)])
    frames = (length - frame) // _number(body, 1) + 1
    y = body.transpose(y, 0, 2, 1)
    return [body.reshape(y, batch, frames, matrix.shape[1] // 2, 2)]


def _number(body: NodeBody, position: int) -> int:
    """An input that is one number. Raises ModelError where it is not known before the model
    runs."""
    found = body.array(body.read(position))
    if found is None:
        raise body.refusal(f"its input number {position} is known only when the model runs")
    return int(found.item())


def _onesided(body: NodeBody, x: str, default: int, parts: int | None = None) -> bool:
    """Whether the upper half of the frequencies is left out. Raises ModelError for complex
    numbers, of which that half is not known from the lower one."""
    onesided = bool(body.attribute("onesided", default))
    if onesided and (parts or body.shape(x)[-1]) == 2:
        raise body.refusal("it is onesided, and its input has imaginary parts")
    return onesided


def _matrix(
    body: NodeBody, used: int, length: int, parts: int, onesided: bool, inverse: bool
) -> NDArray[np.float64]:
    """What `used` numbers are multiplied with, [used x parts, frequencies x 2], in a transform of
    `length` numbers: those that there are not are 0."""
    count = length // 2 + 1 if onesided else length
    body.room(used * parts, count * 2)
    turns = np.outer(np.arange(used), np.arange(count)) % length
    angle = (2 if inverse else -2) * np.pi * turns / length
    cos, sin = (f(angle) / (length if inverse else 1) for f in (np.cos, np.sin))
    real, imaginary = np.stack((cos, sin), -1), np.stack((-sin, cos), -1)
    whole = np.stack((real, imaginary)[:parts], 1)  # [used, parts, frequencies, 2]
    return whole.reshape(used * parts, count * 2)


def _constant(body: NodeBody, values: NDArray[np.float64], x: str) -> str:
    return body.const(values, body.dtype(x))
