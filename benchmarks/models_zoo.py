"""The whole models of `benchmarks/models.py`: torch modules with seeded random weights.

BERT, ViT, MiniLM and Whisper are those of transformers where it is installed, else the encoders of
this file, which compute the same; the others are always of this file. Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models_layers import DecoderLayer, DecoderShape, Mixer

Origin = Literal["transformers", "own"]
"""Where a model's module is from."""
VOCABULARY = 30522
MASKED = 8
"""One token in so many, at the end of a sequence, is padding."""
SPREAD = 0.02
"""The standard deviation of what is added to weights that are all equal, as norms' and biases' are:
no compiler may profit from ones and zeros."""


@dataclass(frozen=True)
class EncoderShape:
    """The extents of a transformer's encoder."""

    layers: int
    width: int
    heads: int
    inner: int


BASE = EncoderShape(12, 768, 12, 3072)
LARGE = EncoderShape(24, 1024, 16, 4096)
MINILM = EncoderShape(6, 384, 12, 1536)
WHISPER_BASE = EncoderShape(6, 512, 8, 2048)
TINY = EncoderShape(1, 64, 4, 256)


@dataclass(frozen=True)
class WholeModel:
    """A model of the benchmark: how its module and its inputs are made.

    `build` makes the module from where it is asked for, `inputs` its example inputs in float32, in
    the order of its arguments, by name.
    """

    name: str
    build: Callable[[Origin], nn.Module]
    inputs: Callable[[], dict[str, Tensor]]
    shared: bool = False
    """Transformers has this model, too."""

    def origin(self) -> Origin:
        """Where the module is from if nobody asks for another place."""
        return "transformers" if self.shared and find_spec("transformers") else "own"


def made(
    model: WholeModel, origin: Origin, dtype: torch.dtype, seed: int
) -> tuple[nn.Module, dict[str, Tensor]]:
    """The module with random weights and its inputs, both of one floating dtype, on the CPU."""
    torch.manual_seed(seed)
    module = model.build(origin).eval().requires_grad_(False)
    for weight in module.parameters():
        if bool((weight == weight.flatten()[0]).all()):
            weight.add_(SPREAD * torch.randn_like(weight))
    given = model.inputs()
    return module.to(dtype), {
        n: x.to(dtype) if x.is_floating_point() else x for n, x in given.items()
    }


# --- encoders -------------------------------------------------------------------------------


class SelfAttention(nn.Module):  # type: ignore[misc]
    """Attention of all positions to all, or to those that the mask leaves."""

    def __init__(self, shape: EncoderShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.query, self.key, self.value, self.output = (
            nn.Linear(shape.width, shape.width) for _ in range(4)
        )

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        batch, rows, width = x.shape
        q, k, v = (
            part(x).view(batch, rows, self.heads, width // self.heads).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.output(mixed.transpose(1, 2).reshape(batch, rows, width))


class EncoderLayer(nn.Module):  # type: ignore[misc]
    """Attention and two linear layers, each with a residual and a norm before or after it."""

    def __init__(self, shape: EncoderShape, before: bool) -> None:
        super().__init__()
        self.before, self.attention = before, SelfAttention(shape)
        self.first, self.second = (nn.LayerNorm(shape.width) for _ in range(2))
        self.up, self.down = (
            nn.Linear(shape.width, shape.inner), nn.Linear(shape.inner, shape.width),
        )  # fmt: skip

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.before:
            x = x + self.attention(self.first(x), mask)
            return x + self._inner(self.second(x))
        x = self.first(x + self.attention(x, mask))
        return self.second(x + self._inner(x))

    def _inner(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class TextEncoder(nn.Module):  # type: ignore[misc]
    """BERT: tokens and a mask of those that count, to hidden states."""

    def __init__(self, shape: EncoderShape, longest: int = 512) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, shape.width)
        self.positions = nn.Embedding(longest, shape.width)
        self.kinds = nn.Embedding(2, shape.width)
        self.norm = nn.LayerNorm(shape.width)
        self.layers = nn.ModuleList(EncoderLayer(shape, False) for _ in range(shape.layers))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        rows = input_ids.shape[1]
        x = self.words(input_ids) + self.kinds.weight[0] + self.positions.weight[:rows]
        x = self.norm(x)
        lowest = torch.finfo(x.dtype).min
        mask = (1 - attention_mask[:, None, None, :].to(x.dtype)) * lowest
        for layer in self.layers:
            x = layer(x, mask)
        return x


class ImageEncoder(nn.Module):  # type: ignore[misc]
    """ViT: an image's patches of 16 x 16 pixels, and one more position, to hidden states."""

    def __init__(self, shape: EncoderShape, pixels: int = 224) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, shape.width, 16, 16)
        self.first = nn.Parameter(torch.zeros(1, 1, shape.width))
        count = (pixels // 16) ** 2 + 1
        self.positions = nn.Parameter(SPREAD * torch.randn(1, count, shape.width))
        self.layers = nn.ModuleList(EncoderLayer(shape, True) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = self.patches(pixel_values).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class SpeechEncoder(nn.Module):  # type: ignore[misc]
    """Whisper's encoder: 80 mel bands of 3,000 frames to 1,500 hidden states."""

    def __init__(self, shape: EncoderShape, frames: int = 3000) -> None:
        super().__init__()
        self.first = nn.Conv1d(80, shape.width, 3, padding=1)
        self.second = nn.Conv1d(shape.width, shape.width, 3, stride=2, padding=1)
        self.positions = nn.Parameter(SPREAD * torch.randn(frames // 2, shape.width))
        self.layers = nn.ModuleList(EncoderLayer(shape, True) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)

    def forward(self, input_features: Tensor) -> Tensor:
        x = F.gelu(self.second(F.gelu(self.first(input_features)))).transpose(1, 2)
        x = x + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class FirstState(nn.Module):  # type: ignore[misc]
    """A model of transformers, by the names of its arguments; gives its last hidden state alone.

    `spelled` chooses how its attention is written: torch's exporter writes a product of float16 and
    float32 for "sdpa" in float16, which is no valid ONNX, so "eager" is what is exported.
    """

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def spelled(self, attention: Literal["eager", "sdpa"]) -> None:
        self.model.set_attn_implementation(attention)

    def forward(self, *values: Tensor) -> Tensor:
        found = self.model(**dict(zip(self.names, values, strict=True)))
        return found.last_hidden_state


def text_encoder(shape: EncoderShape, origin: Origin) -> nn.Module:
    if origin == "own":
        return TextEncoder(shape)
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=VOCABULARY, num_hidden_layers=shape.layers, hidden_size=shape.width,
        num_attention_heads=shape.heads, intermediate_size=shape.inner,
    )  # fmt: skip
    model = BertModel(config, add_pooling_layer=False)
    return FirstState(model, ("input_ids", "attention_mask"))


def image_encoder(shape: EncoderShape, origin: Origin) -> nn.Module:
    if origin == "own":
        return ImageEncoder(shape)
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        num_hidden_layers=shape.layers, hidden_size=shape.width,
        num_attention_heads=shape.heads, intermediate_size=shape.inner,
    )  # fmt: skip
    return FirstState(ViTModel(config, add_pooling_layer=False), ("pixel_values",))


def speech_encoder(shape: EncoderShape, origin: Origin) -> nn.Module:
    if origin == "own":
        return SpeechEncoder(shape)
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(
        encoder_layers=shape.layers, d_model=shape.width,
        encoder_attention_heads=shape.heads, encoder_ffn_dim=shape.inner,
    )  # fmt: skip
    return FirstState(WhisperEncoder(config), ("input_features",))


# --- the zoo --------------------------------------------------------------------------------


def zoo() -> dict[str, WholeModel]:
    """Every model by its name."""
    found = [
        _text("bert-base-128", BASE, 128), _text("bert-base-512", BASE, 512),
        _text("bert-large-128", LARGE, 128), _text("bert-large-512", LARGE, 512),
        _text("minilm", MINILM, 128),
        WholeModel("vit-b16", lambda o: image_encoder(BASE, o), _image, True),
        WholeModel("vit-l16", lambda o: image_encoder(LARGE, o), _image, True),
        WholeModel("mixer-b16", lambda o: Mixer(), _image),
        WholeModel("whisper-base", lambda o: speech_encoder(WHISPER_BASE, o), _speech, True),
        WholeModel("llama-prefill", lambda o: DecoderLayer(LLAMA, 512), lambda: _decoder(512)),
        WholeModel("llama-decode", lambda o: DecoderLayer(LLAMA, 1, 2048),
                   lambda: _decoder(1, 2048)),
        replace(_text("tiny", TINY, 32), shared=False),
    ]  # fmt: skip
    return {m.name: m for m in found}


LLAMA = DecoderShape()


def _text(name: str, shape: EncoderShape, rows: int) -> WholeModel:
    return WholeModel(name, lambda o: text_encoder(shape, o), lambda: _tokens(rows), True)


def _tokens(rows: int) -> dict[str, Tensor]:
    mask = torch.ones(1, rows, dtype=torch.int64)
    mask[:, rows - rows // MASKED :] = 0
    return {"input_ids": torch.randint(0, VOCABULARY, (1, rows)), "attention_mask": mask}


def _image() -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(1, 3, 224, 224)}


def _speech() -> dict[str, Tensor]:
    return {"input_features": torch.randn(1, 80, 3000)}


def _decoder(rows: int, cached: int = 0) -> dict[str, Tensor]:
    given = {"x": torch.randn(1, rows, LLAMA.width)}
    if cached:
        extents = (1, LLAMA.keys, cached, LLAMA.depth)
        given |= {"keys": torch.randn(extents), "values": torch.randn(extents)}
    return given
