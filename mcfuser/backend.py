"""What a kind of device must offer for its kernels to be tuned: the `Backend` protocol.

The tuner asks a back end which knobs a candidate may have, how fast the model expects it to be, and
for its kernel; a `Builder` makes several kernels at a time. `runner` names the module that runs
kernels in the measuring process (mcfuser.measure.runner). No other package names kinds of devices:
`mcfuser.backends` chooses the back end.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from mmap import mmap
from typing import Any, Protocol

from mcfuser.chain import Chain, ChannelsLast, from_json, to_json
from mcfuser.chain.recurrence import RecurrenceLimits
from mcfuser.device import Device
from mcfuser.space.knobs import Columns, KnobSettings
from mcfuser.space.plan import Floats, Ints, Plan
from mcfuser.space.schedule import Schedule


@dataclass(frozen=True)
class Names:
    """What a chain calls the tensors and the axes of another one that is equal but for names."""

    tensors: Mapping[str, str]
    axes: Mapping[str, str]


@dataclass(frozen=True)
class Kernel:
    """A kernel, and the chain that it computes.

    `launch` says how it is called, by the names of `chain`; it is JSON that the back end wrote.
    `binary` is empty where the process that measures compiles the source. `resources` are what the
    kernel needs of the device: bytes, registers.
    """

    chain: Chain
    source: str
    launch: Mapping[str, Any]
    binary: bytes = b""
    resources: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "chain": to_json(self.chain),
            "source": self.source,
            "launch": dict(self.launch),
            "binary": base64.b64encode(self.binary).decode(),
            "resources": dict(self.resources),
        }

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Kernel:
        """Raises KeyError, TypeError or ValueError where the document is of another form."""
        return Kernel(
            from_json(document["chain"]), document["source"], document["launch"],
            base64.b64decode(document["binary"]), document["resources"],
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How many blocks of a kernel run on one multiprocessor at a time.

    A block has `threads` threads. `blocks` of them fit, which the scarcest resource bounds (`bound`
    names it), and their threads are `fraction` of all that the multiprocessor holds.
    """

    threads: int
    blocks: int
    bound: str
    fraction: float


class Building(Protocol):
    """A kernel that is being made; `done` ends with it."""

    @property
    def done(self) -> Future[Any]: ...

    def kernel(self) -> Kernel:
        """The kernel, once it is done. Raises Illegal with the reason where there is none."""
        ...


class Builder(Protocol):
    """Makes kernels, `workers` of them at a time."""

    @property
    def workers(self) -> int: ...

    @property
    def longest(self) -> float:
        """Seconds after which a kernel that is still being made is given up."""
        ...

    @property
    def enough(self) -> float:
        """Seconds after which a search that has a correct kernel begins no further candidate."""
        ...

    def warm(self) -> None:
        """Starts what takes long to start, without waiting."""
        ...

    def begin(
        self, chain: Chain, schedule: Schedule, name: str, settings: KnobSettings
    ) -> Building:
        """Begins to make the kernel of a schedule. Raises Illegal where the back end cannot write
        it."""
        ...

    def ahead(self, chain: Chain, schedule: Schedule, name: str, settings: KnobSettings) -> None:
        """Begins to make a kernel for which `begin` will be called, where several are made at a
        time. Raises as `begin` does."""
        ...

    def foreseen(self, name: str) -> bool:
        """Whether a kernel of that name was begun `ahead`, and `begin` not called for it since."""
        ...

    def abandon(self) -> None:
        """Ends what is still being made, but for what was begun ahead."""
        ...

    def stop(self) -> None:
        """Ends every process."""
        ...


@dataclass(frozen=True)
class Function:
    """A tuned kernel as a function of a TVM module. It takes a chain's inputs, `counters` (arrays
    that it leaves as it finds them), and the chain's outputs.

    `packed` pairs the positions of inputs that it takes in another layout with that layout;
    `binary` is what the module must contain besides the function, if anything.
    """

    name: str
    primfunc: Any
    packed: tuple[tuple[int, Any], ...] = ()
    binary: Any = None
    counters: tuple[Any, ...] = ()


class Backend(Protocol):
    """One kind of device.

    `knobs` is a dataclass declared with `space.knobs.knob`. `sources` are the files and folders of
    this package that a kernel's text and binary depend on. `soft` are the programs of the toolchain
    on which making a kernel from its record does not depend, each with the number of parts of its
    version that must be equal for the kernel to be used all the same. Where the model is `trusted`,
    a search begins with the candidates that it ranks first, else with random ones; where it
    `has_constants`, these can be fitted to measurements (mcfuser.tune.refit). `limit` is the
    longest that one program may take in the measuring process, in seconds, besides what its flops
    take at `slowest`, and `memory` bounds that process's data, in bytes, if it is not None. Where
    programs run `on_host`, nothing else may be done there while they are timed. A new process takes
    about `starting` seconds to load what such a device needs besides TVM, and to open it; a module
    without kernels is built in at most about `building` times what its model's import took, and the
    kernels of a chain take at most about `installing` seconds to become part of a module; what is
    left to TVM of one takes about `leaving`. With `lines`, tiles along a picture's positions may be
    any pairs of its lines; windows of no matrix product are walked position by position if it
    `walks`, else tile by tile (space.prune). Weights that are `integers` stay so in the module;
    else they become floats when a model is compiled.
    """

    kind: str
    knobs: type
    sources: tuple[str, ...]
    soft: Mapping[str, int]
    runner: str
    trusted: bool
    has_constants: bool
    on_host: bool
    starting: float
    building: float
    installing: float
    leaving: float
    limit: float
    slowest: float
    memory: int | None
    lines: bool
    walks: bool
    integers: bool

    def __hash__(self) -> int: ...

    def toolchain(self) -> tuple[tuple[str, str], ...]:
        """Programs and libraries that a kernel is made with, and their versions."""
        ...

    def driver(self) -> str:
        """The version of the driver under which kernels are timed here; empty where there is none,
        or it is not known."""
        ...

    def tiled(self, chain: Chain, device: Device) -> Chain:
        """The chain whose axes the tiles of candidates are of. It computes the same elements of the
        same arrays; its axes may be others, where these are merged (mcfuser.chain.merged), or in
        another order (mcfuser.chain.turned)."""
        ...

    def channels_last(self, device: Device) -> ChannelsLast:
        """Where kernels are fastest if the pictures that convolutions read and write are stored
        with their channels last (mcfuser.graph.layout)."""
        ...

    def tf32(self, device: Device) -> bool:
        """Whether units of a device multiply numbers that are rounded to TF32. Kernels are fastest
        then where float32 weights are stored along the depth of their product
        (mcfuser.chain.deep)."""
        ...

    def recurrences(self, device: Device) -> RecurrenceLimits:
        """The recurrences that are loops in a module; the steps of others are written out."""
        ...

    def feasible(self, plan: Plan, tiles: Ints, settings: Columns, device: Device) -> Any:
        """Which candidates [candidates] are feasible, decided without their source."""
        ...

    def estimate(self, plan: Plan, tiles: Ints, settings: Columns, device: Device) -> Floats:
        """Seconds [candidates] that the model predicts, without their source."""
        ...

    def held(self, plan: Plan, tiles: Ints, settings: Columns, device: Device) -> Floats:
        """An estimate of the registers that a thread needs [candidates]: where those of one
        candidate spill, so do those of all with as many. Zeros where that is not known."""
        ...

    def events(
        self, plan: Plan, tiles: Ints, settings: Columns, device: Device
    ) -> tuple[Floats, Floats]:
        """What the model multiplies its constants by, [candidates, constants], and the seconds of
        memory [candidates] (model.fitted). It is asked only where the model has constants."""
        ...

    def builder(self, device: Device, cores: int | None = None) -> Builder:
        """A builder of kernels for a device, with `cores` processes; with as many as the machine
        has cores if None."""
        ...

    def unfit(self, kernel: Kernel, device: Device, measured: bool) -> str | None:
        """Why a kernel cannot be launched, or spills too much to be measured; where it will not be
        `measured`, also why it should not be chosen unmeasured. None where nothing speaks against
        it."""
        ...

    def occupancy(self, kernel: Kernel, device: Device) -> Occupancy | None:
        """How many blocks of a kernel run at a time on each multiprocessor of a device; None where
        there is no such number, or it is not known. Raises KeyError, TypeError or ValueError where
        the kernel's record is none of this back end's."""
        ...

    def missing(self) -> str | None:
        """Why this machine cannot measure, as far as that is known without starting a process; None
        where nothing is missing."""
        ...

    def lacking(self) -> str | None:
        """What this machine lacks to build modules, as far as that is known without starting a
        process; None where nothing is missing."""
        ...

    def refusal(self, module: Any) -> str | None:
        """Why no device of this kind runs a model, to be read after the device's name; None where
        nothing is known to speak against it."""
        ...

    def environment(self, device: Device) -> Mapping[str, str]:
        """Environment variables that the measuring process has in addition to its parent's."""
        ...

    def renamed(self, kernel: Kernel, chain: Chain, names: Names) -> Kernel:
        """The kernel for a chain that is equal but for its names. Raises KeyError, TypeError or
        ValueError where the kernel's launch is none of this back end's."""
        ...

    def function(
        self, kernel: Kernel, chain: Chain, names: Names, name: str,
        shapes: Mapping[str, tuple[int, ...]], starts: Mapping[str, int],
    ) -> Function:  # fmt: skip
        """The kernel for parameters of these physical shapes, in which the chain's arrays begin at
        the elements `starts`, under this name."""
        ...

    def packed(self, function: Function, chain: Chain, constants: Mapping[str, Any]) -> Any:
        """The constants that a function takes in another layout, by name, in that layout."""
        ...

    def library(self, module: Any, binaries: Any, device: Device) -> bytes | mmap:
        """The shared library of a TVM module that calls kernels; `binaries` are those of its
        functions."""
        ...
