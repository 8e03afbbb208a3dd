"""Finds the first operator of a model whose result differs from onnxruntime's in a compiled module.

The module is built once more so that it returns every value that it stores, and these are compared
with onnxruntime's in the order in which they are computed.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from tvm import relax

from mcfuser.build import DecidedModel, build
from mcfuser.compile import CompiledModel
from mcfuser.devices.catalogue import HOST
from mcfuser.errors import DisagreementError, InputError, LimitError
from mcfuser.graph.check import answering, model_tolerance, output_errors, settled_errors
from mcfuser.graph.dataflow import dataflow
from mcfuser.graph.decided import decides
from mcfuser.graph.draw import Feeds, inputs
from mcfuser.graph.dynamic.verify import verify_buckets
from mcfuser.graph.intermediate import (
    Values,
    Zeroed,
    by_onnx_name,
    computed_by_onnxruntime,
    masked_rows,
)
from mcfuser.graph.running import RunMode, running, started
from mcfuser.graph.selection import ChainMatch, places
from mcfuser.graph.weights import OnnxModel
from mcfuser.measure.tolerance import difference, numberless, tolerance

_LOWEST = {np.dtype(t).name: float(np.finfo(t).min) for t in (np.float16, np.float32)}


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """The first value that differs, the node that computes it, the error found and the largest that
    passes, and what computes it: TVM, or the kernels of a chain, whose nodes are `inside`."""

    value: str
    operator: str
    node: str
    error: float
    tolerance: float
    computed_by: str
    inside: tuple[str, ...] = ()

    def __str__(self) -> str:
        words = (
            f"the first result that differs is that of {self.operator} '{self.node}': error "
            f"{self.error:.1e}, more than {self.tolerance:.0e}; {self.computed_by} computes it"
        )
        return f"{words} with {', '.join(self.inside)}" if self.inside else words


@dataclass(frozen=True, slots=True)
class Bisection:
    """What was found: the number of values that were compared, the first one that differs, and the
    same in a module that is all left to TVM where a chain's kernels computed that one.

    `masked` says which softmaxes have rows that are masked throughout: their results there are
    zeros in mcfuser and something else in onnxruntime, and are left out.
    """

    compared: int
    first: FirstDifference | None
    without_kernels: FirstDifference | None
    masked: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def sentences(self) -> list[str]:
        """What was found, in words."""
        said = list(self.masked)
        if self.first is None:
            return [*said, f"all {self.compared} values that the module stores agree"]
        said.append(str(self.first))
        if self.first.inside and self.without_kernels is None:
            said.append("left to TVM the model agrees, so the chain or its kernels are wrong")
        elif self.without_kernels is not None:
            said.append(f"without kernels, {self.without_kernels}")
        return said


CHECKING = 2.0
"""Seconds that checking a module of a small model takes. It is left out where less time is left."""
SHARE = 0.1
"""The largest share of a compilation's time that is set aside for the check."""


def built_by(end: float | None) -> float | None:
    """When a module must be done (time.monotonic) that is checked by `end`; None without an end."""
    if end is None:
        return None
    return end - min(CHECKING, SHARE * max(0.0, end - time.monotonic()))


def verify(
    compiled: CompiledModel, library: Path, model: OnnxModel, seed: int, end: float | None
) -> dict[str, Any]:
    """Compares a compiled module, which `library` holds, with onnxruntime on random inputs; gives
    what was found, for the report.

    Nothing is compared where the device is not at hand, onnxruntime cannot run the model, or too
    little time is left until `end` (time.monotonic): then `skipped` says so. Raises
    DisagreementError, naming the first operator that differs, where the error is too large.
    """
    decided, left = compiled.decided, _left(end)
    if (why := _not_compared(decided, left)) is not None:
        return {"skipped": why}
    feeds, pairs = inputs(model, np.random.default_rng(seed)), compiled.report["in_place"]
    try:
        with started(library, feeds, _mode(decided), left) as process:
            try:  # while the module is loaded
                expected = answering(model, feeds, pairs)[1]
            except InputError as refusal:
                return {"skipped": str(refusal)}
            child = process.ran()
            outputs, functions = child.outputs, child.functions()
    except LimitError:
        return {"skipped": "no time was left"}
    passes = model_tolerance(model.proto, decided.narrow)
    errors = output_errors([o.name for o in model.proto.graph.output], outputs, expected)
    errors = settled_errors(errors, passes, model, feeds, outputs, pairs)
    error = max(errors.values())
    if error <= passes:
        spent = None if functions is None else [f.to_json() for f in functions]
        found = {"error": error, "outputs": errors, "tolerance": passes, "seed": seed}
        found |= {"numberless": [*numberless([*errors], expected)]}
        return {**found, "functions": spent}
    late = "; mcfuser bisect names the first operator that differs"
    named = late if end is not None else f"; {'; '.join(bisect(decided, model, feeds).sentences())}"
    raise DisagreementError(
        f"the module disagrees with onnxruntime: its outputs differ by {error:.1e}, more than "
        f"{passes:.0e}{_beyond(decided, error, expected)}{named}"
    )


def verify_dynamic(
    compiled: CompiledModel, library: Path, seed: int, end: float | None
) -> dict[str, Any]:
    """As `verify`, of a module of several buckets: each is compared at several shapes."""
    assert compiled.buckets is not None
    decided = compiled.decided
    if (why := _not_compared(decided, _left(end))) is not None:
        return {"skipped": why}
    until = end if end is not None else math.inf
    return verify_buckets(compiled.buckets, library, _mode(decided), seed, until, decided.narrow)


def _left(end: float | None) -> float:
    """The seconds until `end` (time.monotonic)."""
    return end - time.monotonic() if end is not None else math.inf


def _not_compared(decided: DecidedModel, left: float) -> str | None:
    """Why a module is not run: its device is not at hand, or too little time is left."""
    if decided.missing is not None or left < CHECKING:
        return decided.missing or "no time was left"
    return None


def _beyond(decided: DecidedModel, error: float, expected: Sequence[NDArray[np.generic]]) -> str:
    """Where results are no numbers, or tiny ones, what float16 may have to do with it."""
    if decided.narrow != "float16":
        return ""
    if not math.isfinite(error):
        return " (a value may be beyond 65504, float16's largest number: bf16 has float32's range)"
    most = min(
        (float(np.abs(e).max()) for e in expected if e.size and e.dtype.kind == "f"), default=1.0
    )
    if most >= np.finfo(np.float16).tiny:
        return ""
    return (
        f" (a result has {most:.0e} at most, less than 6e-05, float16's smallest normal number: "
        "bf16 has float32's range)"
    )


def _mode(decided: DecidedModel) -> RunMode:
    """How a module runs whose values are compared."""
    return "host" if decided.device.name == HOST else "kernels"


@dataclass(frozen=True)
class _Module:
    """A module with or without kernels, and the values that it returns, by their names in the
    model."""

    decided: DecidedModel
    model: OnnxModel
    feeds: Feeds
    fused: bool

    @property
    def chains(self) -> Mapping[relax.Var, ChainMatch]:
        """The chain that computes each value that is inside one."""
        matches = self.decided.parted.matches if self.fused else ()
        computed = [m for m in matches if self.decided.kernels(m)]
        return {v: m for m in computed for v in m.bindings}

    def stored(self) -> dict[str, relax.Var]:
        """The values that the module stores and onnxruntime computes, too."""
        order = dataflow(self.decided.loaded.module["main"]).order
        made = {name for node in self.model.proto.graph.node for name in node.output}
        hidden = {v for v, m in self.chains.items() if v not in m.outputs.values()}
        known = by_onnx_name(self.decided.loaded.names, order)
        return {
            n: v
            for n, v in known.items()
            if n in made and v not in hidden and isinstance(v.ty, relax.TensorType)
        }

    def found(self, stored: Mapping[str, relax.Var]) -> Values:
        """The values and the outputs of the module, which runs in a fresh process."""
        outputs = [p.name for p in self.decided.loaded.outputs]
        returned = [v for n, v in stored.items() if n not in outputs]
        names = [*outputs, *(n for n in stored if n not in outputs)]
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder) / "module.so"
            library.write_bytes(build(self.decided, returned, self.fused))
            with running(library, self.feeds, _mode(self.decided)) as child:
                values = dict(zip(names, child.outputs, strict=True))
        return {n: values[n] for n in (*stored, *outputs) if n in values}


def bisect(decided: DecidedModel, model: OnnxModel, feeds: Feeds) -> Bisection:
    """Compares the values of a decided model with those of the ONNX model on `feeds`.

    `model` has fixed shapes (mcfuser.graph.load.bound). Raises InputError where the module cannot
    be built or does not run, or onnxruntime does not.
    """
    whole = _Module(decided, model, feeds, fused=True)
    compared, first, masked = _compared(whole)
    if first is None or not first.inside:
        return Bisection(compared, first, None, masked)
    _, alone, _ = _compared(_Module(decided, model, feeds, fused=False))
    return Bisection(compared, first, alone, masked)


def _compared(module: _Module) -> tuple[int, FirstDifference | None, tuple[str, ...]]:
    stored = module.stored()
    found = module.found(stored)
    softmaxes = {n.output[0]: n for n in module.model.proto.graph.node if n.op_type == "Softmax"}
    names = [*found, *(n for n in softmaxes if n not in found)]
    names += [s.input[0] for s in softmaxes.values() if s.input[0] not in names]
    graph_inputs = set(module.feeds) | {t.name for t in module.model.proto.graph.initializer}
    asked = [n for n in dict.fromkeys(names) if n not in graph_inputs]
    zeroed: dict[str, np.dtype[np.generic]] = {}
    said: list[str] = []
    expected = computed_by_onnxruntime(module.model, module.feeds, asked)
    if decides(module.model.proto):  # room for what is not found is in no result of onnxruntime's
        ends = {o.name for o in module.model.proto.graph.output}
        found = {n: v for n, v in found.items() if n in ends or v.shape == expected[n].shape}
    first = _first(module, stored, found, expected)
    while first is not None:
        more = _masked_before(softmaxes, first, found, {**expected, **module.feeds}, zeroed)
        if not more:
            break
        zeroed |= {name: expected[name].dtype for name in more}
        guarded = computed_by_onnxruntime(module.model, module.feeds, asked, zeroed)
        after = _first(module, stored, found, guarded)
        if after is not None and after.value == first.value:
            break
        said += more.values()
        expected, first = guarded, after
    return len(found), first, tuple(said)


def _masked_before(
    softmaxes: Mapping[str, onnx.NodeProto],
    first: FirstDifference,
    found: Values,
    expected: Values,
    zeroed: Zeroed,
) -> dict[str, str]:
    """The softmaxes with rows that are masked throughout and whose results are not known to agree,
    or have zeros where NaN is expected, which counts as equal; each with a sentence."""
    said = {}
    for name, node in softmaxes.items():
        scores = expected.get(node.input[0])
        agrees = name in found and name != first.value
        agrees = agrees and not (np.isnan(expected[name]) & (found[name] == 0)).any()
        if name in zeroed or agrees or scores is None:
            continue
        rows = masked_rows(node, scores)
        if rows.any():
            said[name] = (
                f"{rows.sum()} of {rows.size} rows of Softmax '{node.name}' are masked throughout: "
                "they are zeros in mcfuser and not in onnxruntime, which is left out"
            )
    return said


def _first(
    module: _Module, stored: Mapping[str, relax.Var], found: Values, expected: Values
) -> FirstDifference | None:
    least = model_tolerance(module.model.proto, module.decided.narrow)
    for name, value in found.items():
        passes = max(least, tolerance([str(expected[name].dtype)]))
        error = value_difference(value, expected[name])
        if not error <= passes:
            return _blamed(module, name, stored.get(name), error, passes)
    return None


def value_difference(found: NDArray[np.generic], expected: NDArray[np.generic]) -> float:
    """The norm-wise relative error (mcfuser.graph.check.difference) of what is not masked: marks
    near the type's lowest number would hide all else in a norm."""
    if found.shape != expected.shape or expected.dtype.kind != "f":
        return difference(found, expected)
    mark = _LOWEST.get(expected.dtype.name, -np.inf) / 4
    masked = (expected.astype(np.float64) <= mark) & (found.astype(np.float64) <= mark / 2)
    return difference(np.where(masked, 0, found), np.where(masked, 0, expected))


def _blamed(
    module: _Module, name: str, var: relax.Var | None, error: float, passes: float
) -> FirstDifference:
    nodes = {out: n for n in module.model.proto.graph.node for out in n.output}
    node = nodes[name]
    if var is None:  # an output of the model, which has another name in the module
        var = _result(module.decided, name)
    match = module.chains.get(var)
    blamed = FirstDifference(name, node.op_type, node.name, error, passes, "TVM")
    if match is None:
        return blamed
    by_var = {v: n for n, v in by_onnx_name(module.decided.loaded.names, match.bindings).items()}
    inside = [nodes[by_var[v]] for v in match.bindings if by_var.get(v) in nodes]
    others = tuple(f"{n.op_type} '{n.name}'" for n in inside if n.name != node.name)
    return replace(blamed, computed_by=_kernels(module.decided, match), inside=others)


def _result(decided: DecidedModel, name: str) -> relax.Expr:
    """The value of the module that is an output of the model."""
    main = decided.loaded.module["main"]
    at = [p.name for p in decided.loaded.outputs].index(name)
    whole = dataflow(main).values.get(main.body.body, main.body.body)
    return whole.fields[at] if isinstance(whole, relax.Tuple) else main.body.body


def _kernels(decided: DecidedModel, match: ChainMatch) -> str:
    """The kernels of a chain, in words."""
    keys = list(places(decided.parted.matches))
    kernels = decided.decisions[match.chain.key].kernels
    number = keys.index(match.chain.key) + 1
    how = ", ".join(k.expression for k in kernels)
    count = "the kernel" if len(kernels) == 1 else f"one of {len(kernels)} kernels"
    return f"{count} of chain {number} '{match.chain.name}' ({how})"
