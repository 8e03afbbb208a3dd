"""com.microsoft's operators for pictures that are stored with their channels last, as onnxruntime's
optimizer writes diffusion models for GPUs."""

from __future__ import annotations

from mcfuser.graph.rewrite.activation import swish
from mcfuser.graph.rewrite.body import NodeBody
from mcfuser.graph.rewrite.normalization import over_groups


def convolution(body: NodeBody) -> list[str | None]:
    """NhwcConv: pictures [batch, *places, channels], weights [channels, *window, channels]."""
    x, weights = (_first(body, v) for v in body.reads(2))
    bias = [row] if (row := body.input(2)) is not None else []
    return [_last(body, body.op("Conv", x, weights, *bias, **body.window()))]


def group_norm(body: NodeBody) -> list[str | None]:
    """GroupNorm: over groups of channels, with a sigmoid unit behind it where the node says so."""
    return [_normal(body, body.read(0))]


def skip_group_norm(body: NodeBody) -> list[str | None]:
    """SkipGroupNorm: the group norm of a sum, which is a result too. What is added may be one row
    of channels for each picture."""
    x, skip = body.read(0), body.read(3)
    if len(body.shape(skip)) == 2:
        batch, channels = body.shape(skip)
        row = [1] * len(body.shape(x))
        row[0], row[-1 if body.attribute("channels_last", 1) else 1] = batch, channels
        skip = body.reshape(skip, *row)
    total = body.op("Add", x, skip)
    if (bias := body.input(4)) is not None:
        total = body.op("Add", total, bias)
    return [_normal(body, total), total]


def _normal(body: NodeBody, x: str) -> str:
    scale, shift = body.read(1), body.read(2)
    last = body.attribute("channels_last", 1)
    groups, small = body.attribute("groups", 0), body.attribute("epsilon", 1e-5)
    y = over_groups(body, _first(body, x) if last else x, scale, shift, groups, small)
    if body.attribute("activation", 0):
        y = swish(body, y)
    return _last(body, y) if last else y


def _first(body: NodeBody, x: str) -> str:
    """A picture with its channels behind the batch."""
    rank = len(body.shape(x))
    return body.transpose(x, 0, rank - 1, *range(1, rank - 1))


def _last(body: NodeBody, x: str) -> str:
    """A picture with its channels last."""
    return body.transpose(x, 0, *range(2, len(body.shape(x))), 1)
