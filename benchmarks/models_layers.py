"""Modules of `benchmarks/models_zoo.py` that are no encoders of transformers: MLP-Mixer, Llama."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# --- MLP-Mixer ------------------------------------------------------------------------------


class TwoLayers(nn.Module):  # type: ignore[misc]
    """Two linear layers with GELU between them."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class MixerLayer(nn.Module):  # type: ignore[misc]
    """Mixes the patches of each channel, then the channels of each patch."""

    def __init__(self, patches: int, width: int, across: int, along: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across, self.along = TwoLayers(patches, across), TwoLayers(width, along)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.across(self.first(x).transpose(1, 2)).transpose(1, 2)
        return x + self.along(self.second(x))


class Mixer(nn.Module):  # type: ignore[misc]
    """MLP-Mixer B/16: an image to 1,000 classes."""

    def __init__(
        self, layers: int = 12, width: int = 768, across: int = 384, along: int = 3072
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.layers = nn.ModuleList(
            MixerLayer(14 * 14, width, across, along) for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = self.patches(pixel_values).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(1))


# --- Llama ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class DecoderShape:
    """The extents of a decoder's layer; `keys` heads of keys and values serve all `heads`."""

    width: int = 4096
    heads: int = 32
    keys: int = 8
    inner: int = 14336
    base: float = 500_000.0

    @property
    def depth(self) -> int:
        return self.width // self.heads


class RootMeanSquare(nn.Module):  # type: ignore[misc]
    """RMSNorm, whose mean is taken in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * wide.to(x.dtype)


class DecoderLayer(nn.Module):  # type: ignore[misc]
    """One layer of Llama 3 at fixed positions, after `cached` tokens that were seen before.

    Takes the hidden states of `rows` tokens and, where there are any, the cached keys and values;
    gives the new hidden states, and the keys and values of these tokens.
    """

    def __init__(self, shape: DecoderShape, rows: int, cached: int = 0) -> None:
        super().__init__()
        self.shape = s = shape
        self.first, self.second = RootMeanSquare(s.width), RootMeanSquare(s.width)
        self.query = nn.Linear(s.width, s.heads * s.depth, bias=False)
        self.key = nn.Linear(s.width, s.keys * s.depth, bias=False)
        self.value = nn.Linear(s.width, s.keys * s.depth, bias=False)
        self.output = nn.Linear(s.heads * s.depth, s.width, bias=False)
        self.gate = nn.Linear(s.width, s.inner, bias=False)
        self.up = nn.Linear(s.width, s.inner, bias=False)
        self.down = nn.Linear(s.inner, s.width, bias=False)
        steps = torch.arange(0, s.depth, 2, dtype=torch.float64) / s.depth
        places = torch.arange(cached, cached + rows, dtype=torch.float64)
        angles = torch.outer(places, s.base**-steps).repeat(1, 2)
        self.register_buffer("cosine", angles.cos().float())
        self.register_buffer("sine", angles.sin().float())

    def forward(
        self, x: Tensor, keys: Tensor | None = None, values: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        y = self.first(x)
        q = self._rotated(self._split(self.query(y)))
        k, v = self._rotated(self._split(self.key(y))), self._split(self.value(y))
        if keys is None or values is None:
            mixed = self._attention(q, k, v, True)
        else:
            mixed = self._attention(q, torch.cat([keys, k], 2), torch.cat([values, v], 2), False)
        x = x + self.output(mixed.transpose(1, 2).reshape(x.shape))
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y)), k, v

    def _split(self, x: Tensor) -> Tensor:
        """Of [batch, rows, heads * depth], the heads before the rows."""
        return x.view(*x.shape[:2], -1, self.shape.depth).transpose(1, 2)

    def _rotated(self, x: Tensor) -> Tensor:
        half = self.shape.depth // 2
        turned = torch.cat([-x[..., half:], x[..., :half]], -1)
        return x * self.cosine + turned * self.sine

    def _attention(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        if not torch.onnx.is_in_onnx_export():
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
        # the exporter knows no shared heads, and makes what a causal mask is added to float32
        k, v = self._repeated(k), self._repeated(v)
        scores = q @ k.transpose(-1, -2) * self.shape.depth**-0.5
        if causal:
            lowest = torch.finfo(q.dtype).min
            scores = scores + torch.full(scores.shape[-2:], lowest, dtype=q.dtype).triu(1)
        return torch.softmax(scores, -1) @ v

    def _repeated(self, x: Tensor) -> Tensor:
        batch, keys, rows, depth = x.shape
        groups = self.shape.heads // keys
        wide = x[:, :, None].expand(batch, keys, groups, rows, depth)
        return wide.reshape(batch, keys * groups, rows, depth)
