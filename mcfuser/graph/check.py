"""Compares a compiled module with onnxruntime: their outputs, and on one device their times."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

from mcfuser.errors import InputError
from mcfuser.graph.careful import careful
from mcfuser.graph.draw import Feeds, inputs
from mcfuser.graph.external import DataFolder
from mcfuser.graph.limits import DEFAULTS, ModelLimits
from mcfuser.graph.load import NOTHING, bound, input_ports
from mcfuser.graph.npz import read_arrays
from mcfuser.graph.refusal import ort_reason
from mcfuser.graph.running import Ran, RunMode, library_at, named, running, threads, timed
from mcfuser.graph.session import loses_updates, session
from mcfuser.graph.ties import tied_error
from mcfuser.graph.unsettled import unsettled_errors
from mcfuser.graph.weights import OnnxModel
from mcfuser.graph.wire import ModelBytes
from mcfuser.measure.tolerance import QUANTIZED, difference, numberless, tolerance

ReferenceRun = Callable[[], Sequence[Any]]
"""Runs a model in onnxruntime; gives its outputs, in order."""
_LEVELS = (
    onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
    onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
)

_EXACT_SUMS = "session.x64quantprecision"
"""An option of onnxruntime's sessions: "1" for sums of bytes that do not saturate."""
_SUMS = {False: ("1", "0"), True: ("0",)}
"""Its values, in the order in which they are tried, by whether onnxruntime runs as it does by
itself: exact sums otherwise, where a model loads with them."""


@dataclass(frozen=True, slots=True)
class Checked:
    """The norm-wise relative errors of the outputs, by name, and the largest that passes; the run
    of the module; and onnxruntime's median time, in seconds a run.

    onnxruntime runs on the CPU. Where the module does not, there is no time of onnxruntime's: two
    devices would be compared. `numberless` are the outputs without any finite number, in
    onnxruntime's results as well.
    """

    errors: Mapping[str, float]
    tolerance: float
    ran: Ran
    reference_seconds: float | None
    numberless: tuple[str, ...] = ()

    @property
    def error(self) -> float:
        """The largest error of an output."""
        return max(self.errors.values())

    @property
    def agrees(self) -> bool:
        return self.error <= self.tolerance

    @property
    def seconds(self) -> float:
        """The module's median time, in seconds a run."""
        return self.ran.seconds


def check(
    module: Path,
    model: ModelBytes,
    shapes: Mapping[str, tuple[int, ...]],
    seed: int = 0,
    mode: RunMode = "host",
    limits: ModelLimits = DEFAULTS,
    folder: DataFolder | None = None,
    given: Path | None = None,
    narrow: str | None = None,
    in_place: Mapping[str, str] = NOTHING,
) -> Checked:
    """Runs a module in a fresh process, and the ONNX model in onnxruntime, on the same inputs.

    `module` is the library, or a folder with module.so; `folder` has the model's external data. The
    inputs are the arrays of the file `given`, or random ones; `narrow` is the type to which the
    module's products were narrowed, if they were; `in_place` has the outputs that share an input's
    memory, in onnxruntime as well, by these. On the host the two are timed alternately, onnxruntime
    on all cores and as it runs by itself. On a GPU the inputs are in its memory, and a run ends
    when the GPU is done. Raises InputError where there is no module, where it or the model does not
    run, or where the file is not of the model's inputs.
    """
    library = library_at(module)
    fixed = bound(model, shapes, limits, folder)
    feeds = given_or_drawn(fixed, given, seed)
    names = [o.name for o in fixed.proto.graph.output]
    with running(library, feeds, mode) as child:
        reference, expected = answering(fixed, feeds, in_place)
        outputs = named(child.outputs, names, module)
        passes = model_tolerance(fixed.proto, narrow)
        found = tuple(outputs.values())
        errors = output_errors(names, found, expected)
        errors = settled_errors(errors, passes, fixed, feeds, found, in_place)
        runs = [child.again]
        if mode == "host":
            usual = _as_usual(fixed, reference, feeds, in_place)
            runs.append(lambda: _seconds(usual))
        seconds, *others = timed(runs)
    theirs = others[0] if others else None
    return Checked(errors, passes, Ran(outputs, seconds), theirs, numberless(names, expected))


def output_errors(
    names: Sequence[str],
    found: Sequence[NDArray[np.generic]],
    expected: Sequence[NDArray[np.generic]],
) -> dict[str, float]:
    """The norm-wise relative error of every output, by name."""
    return dict(zip(names, map(difference, found, expected), strict=True))


def settled_errors(
    errors: Mapping[str, float],
    passes: float,
    model: OnnxModel,
    feeds: Feeds,
    found: Sequence[NDArray[np.generic]],
    in_place: Mapping[str, str] = NOTHING,
) -> dict[str, float]:
    """The errors of the outputs that were `found` in order, by name. Where one of them is more than
    `passes`, each such output is compared with the model as it is written, which onnxruntime's
    optimizations change where weights are quantized, and with the one that is precise (`careful`),
    too; the smallest error is its. That of positions of the best elements is the error of what they
    stand for, if theirs is more than `passes` (`tied_error`); and rows that a model chooses may be
    in another order, if onnxruntime's own ones are once its weights are rounded otherwise
    (`unsettled_errors`)."""
    settled = dict(errors)
    for written in _written(model):
        if all(e <= passes for e in settled.values()):
            break
        try:
            plain = reference_session(written, _LEVELS[-1:])
            expected = answered(reference_run(plain, feeds, in_place))
        except InputError:
            continue
        again = output_errors(list(settled), found, expected)
        settled = {n: e if e <= passes else min(e, again[n]) for n, e in settled.items()}
    for name, positions in zip(errors, found, strict=True):
        if settled[name] > passes:
            with suppress(InputError):
                tied = tied_error(model, feeds, name, positions)
                settled[name] = settled[name] if tied is None else tied
    if any(e > passes for e in settled.values()):
        with suppress(InputError):
            named_outputs = dict(zip(errors, found, strict=True))
            for name, error in unsettled_errors(model, feeds, named_outputs, passes).items():
                settled[name] = min(settled[name], error)
    return settled


def _written(model: OnnxModel) -> Iterator[OnnxModel]:
    """The model, and the one that is precise where it may be imprecise (`careful`)."""
    yield model
    if (precise := careful(model)) is not model:
        yield precise


def model_tolerance(proto: onnx.ModelProto, narrow: str | None = None) -> float:
    """The largest error that passes, by the types that a model computes with, and the type to which
    its products were narrowed."""
    graph = proto.graph
    numbers = {v.type.tensor_type.elem_type for v in (*graph.input, *graph.output)}
    numbers |= {t.data_type for t in graph.initializer}
    for node in graph.node:
        numbers |= {a.i for a in node.attribute if node.op_type == "Cast" and a.name == "to"}
    names = [onnx.TensorProto.DataType.Name(n).lower() for n in numbers]
    if _quantizes(proto):
        names.append(QUANTIZED)
    if narrow is not None:
        names.append(narrow)
    return tolerance(names)


def _quantizes(proto: onnx.ModelProto) -> bool:
    """Whether numbers are rounded as the model runs; a table that was is read exactly."""
    others = [n.op_type for n in proto.graph.node if n.op_type != "GatherBlockQuantized"]
    rounding = any("Quantize" in kind or kind.startswith("QLinear") for kind in others)
    return rounding or any(map(_rounds_rows, proto.graph.node))


def _rounds_rows(node: onnx.NodeProto) -> bool:
    """Whether onnxruntime rounds what it multiplies experts of eight bits by, which nothing stops
    it from."""
    bits = [a.i for a in node.attribute if a.name.endswith("expert_weight_bits")]
    return node.op_type == "QMoE" and 8 in bits


def _as_usual(
    model: OnnxModel, exact: ReferenceRun, feeds: Feeds, in_place: Mapping[str, str]
) -> ReferenceRun:
    """What runs a model in onnxruntime as it does by itself. Exact sums of bytes, which a module is
    compared with, take it twice as long, also on CPUs whose sums are exact anyway; and so may
    updates of which none is lost."""
    if not (_quantizes(model.proto) or loses_updates(model.proto)):
        return exact
    with suppress(InputError):
        return answering(model, feeds, in_place, usual=True)[0]
    return exact


def given_or_drawn(model: OnnxModel, given: Path | None, seed: int) -> Feeds:
    """The inputs that a file holds, or random ones where there is no file. Raises InputError."""
    if given is None:
        return inputs(model, np.random.default_rng(seed))
    return read_arrays(given, input_ports(model.proto))


def reference_session(
    model: OnnxModel,
    levels: Sequence[onnxruntime.GraphOptimizationLevel] = _LEVELS,
    usual: bool = False,
) -> onnxruntime.InferenceSession:
    """The model in onnxruntime on all cores, with as many of its optimizations as it survives, of
    these `levels`: some of them fail on models that onnxruntime runs without.

    Sums of products of unsigned and signed bytes are exact where it can, unless it runs as `usual`;
    they saturate otherwise on x86 CPUs without VNNI. Raises InputError where onnxruntime refuses
    the model.
    """
    first: Exception | None = None
    for level, shaped, sums in product(levels, (True, False), _SUMS[usual]):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = level
        options.intra_op_num_threads = threads()
        options.log_severity_level = 4
        options.add_session_config_entry(_EXACT_SUMS, sums)
        try:
            return session(model if shaped else _open(model), options, usual=usual)
        except Exception as error:  # onnxruntime's errors have no common base class
            first = first or error
    assert first is not None
    raise InputError(f"onnxruntime cannot load the model: {ort_reason(first)}") from None


def _open(model: OnnxModel) -> OnnxModel:
    """The model with inputs of any shapes.

    At fixed ones onnxruntime refuses a branch that is not right for them, whether or not it is ever
    taken.
    """
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    for value in proto.graph.input:
        value.type.tensor_type.ClearField("shape")
    return model.with_proto(proto)


def answer(reference: onnxruntime.InferenceSession, feeds: Feeds) -> list[NDArray[np.generic]]:
    """The outputs of the model in onnxruntime. Raises InputError where it does not run on these
    inputs."""
    return answered(reference_run(reference, feeds))


def reference_run(
    reference: onnxruntime.InferenceSession, feeds: Feeds, in_place: Mapping[str, str] = NOTHING
) -> ReferenceRun:
    """What runs the model in onnxruntime. `in_place` has the outputs that are written into the
    memory of inputs, by these; the arrays of `feeds` stay as they are."""
    if not in_place:
        return partial(reference.run, None, feeds)
    binding, shared = reference.io_binding(), {}
    for name, array in feeds.items():
        value = onnxruntime.OrtValue.ortvalue_from_numpy(array.copy())
        binding.bind_ortvalue_input(name, value)
        if name in in_place:
            shared[in_place[name]] = value
    for output in reference.get_outputs():
        if output.name in shared:
            binding.bind_ortvalue_output(output.name, shared[output.name])
        else:
            binding.bind_output(output.name)

    def run() -> Sequence[Any]:
        reference.run_with_iobinding(binding)
        return [value.numpy() for value in binding.get_outputs()]

    return run


def answering(
    model: OnnxModel,
    feeds: Feeds,
    in_place: Mapping[str, str] = NOTHING,
    usual: bool = False,
) -> tuple[ReferenceRun, list[NDArray[np.generic]]]:
    """What runs the model in onnxruntime (`reference_run`), and its outputs: with fewer of its
    optimizations where they make a model that it loads but does not run. `usual` is that of
    `reference_session`. Raises InputError where none runs."""
    first: InputError | None = None
    for number in range(len(_LEVELS)):
        try:
            loaded = reference_session(model, _LEVELS[number:], usual)
            run = reference_run(loaded, feeds, in_place)
            return run, answered(run)
        except InputError as error:
            first = first or error
    assert first is not None
    raise first


def answered(run: ReferenceRun) -> list[NDArray[np.generic]]:
    """The outputs of a run in onnxruntime. Raises InputError where it fails."""
    try:
        return [np.array(one) for one in run()]  # copies: what is shared goes with the run
    except Exception as error:  # onnxruntime's errors have no common base class
        raise InputError(
            f"onnxruntime cannot run the model on these inputs: {ort_reason(error)}"
        ) from None


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
