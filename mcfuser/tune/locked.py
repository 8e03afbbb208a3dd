"""Rebuilds the kernels of a chain as a lock has them: no search, and nothing is timed to decide.

The source is generated anew, built, and checked against the reference as a searched kernel is.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent import futures
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from mcfuser.backend import Backend, Kernel
from mcfuser.chain import Bounds, Chain, under_names
from mcfuser.device import Device
from mcfuser.errors import ChainError, InputError, LimitError
from mcfuser.lock import BoxPin, ChainPin, DeviceLock, KernelPin, Lock, ModelPin, NamesPin
from mcfuser.measure.request import Measured, smaller_extents
from mcfuser.measure.worker import Worker, offsets
from mcfuser.process.child import NO_TIME
from mcfuser.space.expression import parse, rename
from mcfuser.space.knobs import KnobSettings, KnobTable
from mcfuser.space.plan import Plan, splits
from mcfuser.space.prune import space
from mcfuser.space.statement import Illegal
from mcfuser.tune.choice import SEED
from mcfuser.tune.cover import Cover, Decision, most_pieces, pieces
from mcfuser.tune.key import sources, toolchain
from mcfuser.tune.proof import disproof
from mcfuser.tune.tuned import Tuned, TuneOptions, kernel_name, names_of
from mcfuser.tune.tuner import key_of


class LockMiss(InputError):
    """A chain cannot be built as the lock has it; the sentence names the chain and what differs."""


# --- what is locked -------------------------------------------------------------------------


def model_pin(
    device: Device,
    backend: Backend,
    decisions: Mapping[str, tuple[Chain, Decision]],
    buckets: tuple[BoxPin, ...] | None,
) -> ModelPin:
    """What a compilation has decided: a chain and its decision for each key."""
    return ModelPin(
        device=device.key,
        toolchain=dict(toolchain(backend)),
        sources=sources(backend),
        chains={key: chain_pin(chain, decision) for key, (chain, decision) in decisions.items()},
        buckets=buckets,
    )


def chain_pin(chain: Chain, decision: Decision) -> ChainPin:
    """A chain and the cover that was chosen for it, with the names of `chain`."""
    kept = decision.kept
    kernels, cut = ([], ()) if kept is None else (list(kept.kernels), kept.cut)
    return ChainPin(
        name=chain.name,
        axes=_axes(chain),
        types=_types(chain),
        operators=tuple(map(str, chain.operators)),
        cut=cut,
        kernels=tuple(
            _kernel_pin(tuned, piece)
            for tuned, piece in zip(kernels, pieces(chain, cut) if kernels else (), strict=True)
        ),
    )


def _kernel_pin(tuned: Tuned, piece: Chain) -> KernelPin:
    _, names = names_of(tuned, piece)
    return KernelPin(
        expression=str(rename(parse(tuned.expression), names)),
        tiles={names[a]: n for a, n in tuned.tiles.items()},
        split=names[tuned.split] if tuned.split is not None else None,
        parts=tuned.parts,
        knobs=dict(tuned.lowering),
        space=tuned.space,
        shifts=tuned.shifts,
        names=NamesPin(
            chain=tuned.chain.name,
            axes=tuple(a.name for a in tuned.chain.axes),
            tensors=tuple(t.name for t in tuned.chain.tensors),
        ),
    )


def _axes(chain: Chain) -> str:
    """The axes with their extents: `m=128 s=1..512`."""
    extents = ((a.name, a.extent) for a in chain.axes)
    return " ".join(
        f"{n}={e.low}..{e.high}" if isinstance(e, Bounds) else f"{n}={e}" for n, e in extents
    )


def _types(chain: Chain) -> str:
    return ", ".join(f"{t.name} {t.dtype}" for t in chain.tensors)


# --- built as locked ------------------------------------------------------------------------


@dataclass
class LockedKernels:
    """The kernels of a lock, for one device, as they are rebuilt on the device that `worker`
    measures on, or for it where it is not at hand.

    `file` names the lock in messages; inputs are drawn from `seed`. What is not done at the
    `deadline` (time.monotonic) is an error.
    """

    lock: Lock
    file: str
    worker: Worker
    seed: int
    deadline: float
    made: dict[tuple[str, str], Tuned] = field(default_factory=dict)

    def decision(self, chain: Chain) -> Decision:
        """The locked cover of a chain, its kernels built and checked.

        Raises LockMiss where the chain is not locked, or cannot be built so, and LimitError where
        no time is left.
        """
        pin, unfused = self._pin(chain), most_pieces(chain, self.worker.device)
        if not pin.kernels:
            return Decision(unfused, None, (), (), f"left to TVM, as {self.file} has it")
        if sum(pin.cut) != len(chain.operators) or len(pin.cut) != len(pin.kernels):
            raise self._miss(chain, f"its cut {pin.cut} does not fit its operators and kernels")
        locked = [a.partition("=")[0] for a in pin.axes.split()]
        if len(locked) != len(chain.axes):
            raise self._miss(chain, f"it has {len(chain.axes)} axes, and the lock {pin.axes}")
        names = dict(zip(locked, (a.name for a in chain.axes), strict=True))
        parts = pieces(chain, pin.cut)
        kernels = [
            self._rebuilt(chain, piece, kernel, names)
            for piece, kernel in zip(parts, pin.kernels, strict=True)
        ]
        cover = Cover(pin.cut, parts, tuple(kernels))
        return Decision(unfused, cover, (cover,), (), f"as {self.file} has it")

    def _pin(self, chain: Chain) -> ChainPin:
        device, backend = self.worker.device, self.worker.backend
        there = self.lock.devices.get(device.key)
        if there is None:
            others = ", ".join(sorted(self.lock.devices)) or "no device"
            raise self._miss(chain, f"this device is {device.key}, and the lock is for {others}")
        changed = _changed(there, backend)
        if changed:
            raise self._miss(chain, f"{'; '.join(changed)}")
        pin = there.chains.get(chain.key)
        if pin is None:
            raise self._miss(chain, _nearest(chain, there))
        return pin

    def _rebuilt(
        self, chain: Chain, piece: Chain, pin: KernelPin, names: Mapping[str, str]
    ) -> Tuned:
        """One kernel of a chain; `names` are the chain's axes by those of the lock."""
        known = piece.key, pin.model_dump_json()
        if known in self.made:
            return self.made[known]
        try:
            piece, names = _written(piece, pin, names)
            plan, tiles = _plan(self.worker, piece, pin, names)
            settings = _settings(pin, self.worker)
            tuned = self._checked(chain, piece, pin, plan, tiles, settings)
        except (Illegal, ChainError, KeyError, ValueError) as error:
            if isinstance(error, InputError) and not isinstance(error, ChainError):
                raise
            what = f"no axis {error}" if isinstance(error, KeyError) else str(error)
            raise self._miss(chain, f"its kernel {_told(pin)} is none here: {what}") from None
        self.made[known] = tuned
        return tuned

    def _checked(
        self,
        chain: Chain,
        piece: Chain,
        pin: KernelPin,
        plan: Plan,
        tiles: Mapping[str, int],
        settings: KnobSettings,
    ) -> Tuned:
        worker = self.worker
        key = key_of(piece, worker.device, TuneOptions(space=pin.space), worker.backend)
        kernel = self._built(chain, piece, plan, tiles, settings, kernel_name(key.digest))
        result = self._result(chain, piece, pin, plan, tiles, kernel)
        return Tuned(
            key=key.digest,
            chain=piece,
            device=worker.device.name,
            expression=str(plan.expression),
            tiles=dict(tiles),
            lowering=dict(pin.knobs),
            source=kernel.source,
            binary=kernel.binary,
            predicted=result.seconds or 0.0,
            measured=result.seconds,
            error=result.error,
            stages={},
            trials=0,
            space=pin.space,
            shifts=pin.shifts,
            split=plan.split,
            parts=plan.parts,
            resources=kernel.resources,
            conditions=result.conditions,
            launch=kernel.launch,
            made=key,
        )

    def _built(
        self,
        chain: Chain,
        piece: Chain,
        plan: Plan,
        tiles: Mapping[str, int],
        settings: KnobSettings,
        name: str,
    ) -> Kernel:
        builder, worker = self.worker.builder, self.worker
        building = builder.begin(piece, plan.schedule(tiles), name, settings)
        left = self.deadline - time.monotonic()
        done, _ = futures.wait([building.done], timeout=max(0.0, min(left, 2.0 * builder.longest)))
        if not done:
            raise LimitError(f"the kernel of chain '{chain.name}' was not built in time")
        kernel = building.kernel()
        why = worker.backend.unfit(kernel, worker.device, measured=True)
        if why is not None:
            raise self._miss(chain, f"its kernel does not fit the device: {why}")
        return kernel

    def _result(
        self,
        chain: Chain,
        piece: Chain,
        pin: KernelPin,
        plan: Plan,
        tiles: Mapping[str, int],
        kernel: Kernel,
    ) -> Measured:
        """The time and the error of a kernel that is right; neither is known where its schedule
        was interpreted only, for a device that is not at hand."""
        if self.worker.refused(self.deadline) is not None:
            why = disproof(self.worker.tiled(piece), plan, tiles, pin.shifts, SEED)
            if why is not None:
                raise self._miss(chain, why)
            return Measured(None, None)
        near = offsets(piece) if pin.shifts else {}
        ask: Any = partial(self.worker.measure, piece, [[kernel]], deadline=self.deadline)
        answers = [
            *ask(self.seed, offsets=near),
            *ask(self.seed + 1, varied=True),
            *(m for e in smaller_extents(piece) for m in ask(self.seed + 1, extents=e)),
        ]
        failed = next((m.failed for m in answers if m.failed is not None), None)
        if failed == NO_TIME:
            raise LimitError(
                f"the kernel of chain '{chain.name}' was not checked in time; give it more"
            )
        if failed is not None:
            raise self._miss(chain, f"its kernel failed: {failed}")
        first: Measured = answers[0]
        return first

    def _miss(self, chain: Chain, what: str) -> LockMiss:
        return LockMiss(
            f"chain '{chain.name}' cannot be built as {self.file} has it: {what}; write the lock "
            "anew with --update-lock"
        )


def _changed(there: DeviceLock, backend: Backend) -> list[str]:
    """The programs and sources in which this build differs from the locked one, in words."""
    here, locked = dict(toolchain(backend)), there.toolchain
    words = [
        f"{name} is {here.get(name, 'absent')} here and {locked.get(name, 'absent')} in the lock"
        for name in sorted({*here, *locked})
        if here.get(name) != locked.get(name)
    ]
    if sources(backend) != there.sources:
        words.append(
            f"mcfuser's sources that generate code are {sources(backend)} here and "
            f"{there.sources} in the lock"
        )
    return words


def _nearest(chain: Chain, there: DeviceLock) -> str:
    """In what a chain differs from the nearest locked one."""
    operators, axes = tuple(map(str, chain.operators)), _axes(chain)
    alike = [p for p in there.chains.values() if p.operators == operators]
    if alike:
        pin = max(alike, key=lambda p: len({*p.axes.split()} & {*axes.split()}))
        if pin.axes != axes:
            return f"its extents are {axes} here and {pin.axes} in the lock"
        if pin.types != _types(chain):
            return f"its tensors are {_types(chain)} here and {pin.types} in the lock"
        return "the layout of its tensors differs from the locked one's"
    named = next((p for p in there.chains.values() if p.name == chain.name), None)
    if named is None:
        return f"none of the {len(there.chains)} locked chains has its operators"
    here = next((o for o in operators if o not in named.operators), operators[-1])
    return f"the locked chain of this name has other operators: '{here}' is not among them"


def _written(
    piece: Chain, pin: KernelPin, names: Mapping[str, str]
) -> tuple[Chain, Mapping[str, str]]:
    """The chain by the names that the kernel's source has, and its axes by those of the lock, given
    the names of the chain to be built."""
    if pin.names is None:
        return piece, names
    written = under_names(piece, pin.names.chain, pin.names.axes, pin.names.tensors)
    axes = {a.name: b.name for a, b in zip(piece.axes, written.axes, strict=True)}
    return written, {locked: axes[a] for locked, a in names.items() if a in axes}


def _plan(
    worker: Worker, piece: Chain, pin: KernelPin, names: Mapping[str, str]
) -> tuple[Plan, dict[str, int]]:
    backend, tiled = worker.backend, worker.tiled(piece)
    whole = space(tiled, pin.space, pin.shifts, backend.lines, backend.walks)
    expression = rename(parse(pin.expression), names)
    given = {names[a]: n for a, n in pin.tiles.items()}
    if set(given) != set(whole.axes):
        raise ValueError(f"tiles of {' '.join(whole.axes)} are expected")
    tiles = {a: given[a] for a in whole.axes}
    odd = [a for a, sizes in zip(whole.axes, whole.options, strict=True) if tiles[a] not in sizes]
    if odd or sorted(expression.axes) != sorted(whole.axes):
        what = f"tile {odd[0]}={tiles[odd[0]]}" if odd else f"expression {expression}"
        raise ValueError(f"{what} is not in the chain's space")
    plan = Plan(whole.program, expression, whole.dead(tiles))
    if pin.split is None:
        return plan, tiles
    split, extent = names[pin.split], whole.program.chain.size(names[pin.split])
    if split not in splits(plan) or not 2 <= pin.parts <= -(-extent // tiles[split]):
        raise ValueError(f"axis {split} has no {pin.parts} parts")
    return replace(plan, split=split, parts=pin.parts), tiles


def _settings(pin: KernelPin, worker: Worker) -> KnobSettings:
    """Raises ValueError where the device has no such knobs."""
    table = KnobTable(worker.backend.knobs, worker.device)
    expected = {k.name for k in table.knobs}
    if set(pin.knobs) != expected:
        odd = ", ".join(sorted(expected ^ set(pin.knobs)))
        raise ValueError(f"knobs {odd} are only in one of the lock and this version")
    settings = table.kind(**pin.knobs)
    if settings not in table.settings:
        raise ValueError(f"the device does not allow knobs {_words(pin.knobs)}")
    return settings


def _told(pin: KernelPin) -> str:
    return f"{pin.expression} {_words(pin.tiles)}"


def _words(values: Mapping[str, object]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())
