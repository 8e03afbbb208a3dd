"""Kernels of warp groups run on the CPU: the part of Gluon that they use, over NumPy arrays.

Warps are coroutines that stop wherever they meet others: at barriers, loads, products. Which of
them goes on is drawn from a seed. Memory is as hostile as a GPU's may be: a load arrives as late
as it can and its tile is NaN until then; a product reads its operands both when it begins and when
it is waited for, and is NaN where they differ; so a race shows in what the kernel leaves.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from random import Random
from types import CodeType, SimpleNamespace
from typing import Any

import numpy as np

from mcfuser.codegen.triton import TritonSource
from mcfuser.lowering.triton.instructions import ROWS
from tests.support.numpy_triton import DTYPES, Map, Pointer, Tile, language, tile

KEPT = (*DTYPES, "constexpr", "program_id", "static_range", "load", "store", "where", "maximum",
        "minimum", "max", "sum", "exp", "exp2", "log", "sqrt", "abs", "floor", "erf",
        "rsqrt")  # fmt: skip
"""What Gluon's language has in common with Triton's, as far as kernels call it."""
LAYOUTS = ("NVMMADistributedLayout", "SliceLayout", "DotOperandLayout")
MEETING = {"mbarrier", "hopper", "tma", "fetch", "put"}
"""A call of these, or of what they hold, is where warps stop."""
RESTLESS = 0.1
"""How often who has just gone on gets another place among those that wait for their turn."""


class Broken(Exception):
    """A GPU would hang, or what it does would be left to chance."""


# --- shared memory


@dataclass
class Barrier:
    """An mbarrier: a phase ends when all have arrived and all bytes are there."""

    count: int = 0
    pending: int = 0
    bytes: int = 0
    phase: int = 0

    def arrive(self, count: int, more: int = 0) -> None:
        """So many arrive, and promise more bytes; fewer where bytes have come."""
        if not self.count:
            raise Broken("a barrier is used before it is set up")
        if count > self.pending:
            raise Broken("more arrive at a barrier than it waits for")
        self.pending -= count
        self.bytes += more
        if not self.pending and not self.bytes:
            self.phase, self.pending = self.phase + 1, self.count


@dataclass(frozen=True)
class Shared:
    """A piece of shared memory. `open` holds the addresses of what was stored there by threads and
    not fenced yet, as the copy engine may not see it."""

    array: np.ndarray
    open: set[int]

    def index(self, i: int) -> Shared:
        if not 0 <= i < len(self.array):
            raise Broken(f"there are {len(self.array)} tiles, and none is {i}")
        return Shared(self.array[int(i)], self.open)  # by an array it would be a copy

    def reshape(self, shape: Sequence[int]) -> Shared:
        found = self.array.reshape(shape)
        assert np.shares_memory(found, self.array)
        return Shared(found, self.open)

    def permute(self, order: Sequence[int]) -> Shared:
        return Shared(self.array.transpose(order), self.open)

    def store(self, value: Tile) -> None:
        assert (value.shape, value.dtype) == (self.array.shape, self.array.dtype)
        self.array[...] = value
        self.open.add(self.address)

    @property
    def address(self) -> int:
        return self.array.ctypes.data

    @property
    def barrier(self) -> Barrier:
        found: Barrier = self.array.item()
        return found


class Described(Map):
    layout = "as the map says"


# --- what is under way


class Flying:
    """A product that has begun: it may read its operands at any time until it has ended."""

    def __init__(self, a: Any, b: Shared, acc: Any) -> None:
        if isinstance(acc, Flying):
            raise Broken("a product adds to one that has not ended")
        self.sides, self.acc = (a, b), acc
        self.seen = [_values(x).tobytes() for x in self.sides]
        self.value: Tile | None = None
        left, right = map(_values, self.sides)
        assert left.dtype == right.dtype != np.float32
        assert (len(left), left.shape[1]) == (ROWS, len(right))
        assert (left.shape[1] % 16, right.shape[1] % 8) == (0, 0)
        assert (acc.shape, acc.dtype) == ((ROWS, right.shape[1]), np.float32)

    def end(self) -> None:
        now = [_values(x) for x in self.sides]
        left, right = (x.astype(np.float32) for x in now)
        same = [x.tobytes() for x in now] == self.seen
        self.value = tile(np.asarray(self.acc) + (left @ right if same else np.float32(np.nan)))

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        raise Broken("a product is used that has not ended")

    def unknown(self, *args: Any) -> Any:
        raise Broken("a product is used that has not ended")

    to = __getitem__ = __neg__ = __add__ = __mul__ = __sub__ = __truediv__ = unknown


def _values(x: Any) -> np.ndarray:
    return np.asarray(x.array if isinstance(x, Shared) else x)


@dataclass(eq=False)
class Arrival:
    """A tile on its way into shared memory."""

    to: np.ndarray
    values: np.ndarray
    barrier: Barrier
    rank: float

    def ready(self) -> bool:
        return True


@dataclass(frozen=True)
class Leaving:
    """A tile on its way out of shared memory."""

    map: Map
    at: Sequence[Any]
    tile: np.ndarray
    seen: bytes

    def end(self) -> None:
        every = np.arange(1, self.map.memory.size + 1)
        address = np.asarray(Map(every, self.map.m).load(self.at))  # 0 outside the tensor
        same = self.tile.tobytes() == self.seen
        values = self.tile if same else np.full_like(self.tile, np.nan)
        self.map.memory[address[address > 0] - 1] = values[address > 0]


# --- warps


@dataclass(frozen=True)
class Stop:
    """Where warps meet others: what happens there, once it can."""

    happen: Callable[[Warps], Any]
    ready: Callable[[], bool] = lambda: True


@dataclass
class Warps:
    """Warps that run the same code in step, and what they have begun."""

    steps: Generator[Stop, Any, None]
    rank: float
    at: Stop | None = None
    products: list[Flying] = field(default_factory=list)
    stores: list[Leaving] = field(default_factory=list)

    def ready(self) -> bool:
        return self.at is not None and self.at.ready()

    def go(self, answer: Any = None) -> None:
        """On to the next stop."""
        try:
            self.at = self.steps.send(answer)
        except StopIteration:
            self.at = None
            if self.products or self.stores:
                raise Broken("warps end before what they have begun") from None


class Block:
    """A block's shared memory, its warps, and the loads that are under way."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.open: set[int] = set()
        self.arrivals: list[Arrival] = []

    def run(self, bodies: Sequence[Generator[Stop, Any, None]]) -> None:
        """Whoever can go on and comes first goes on, until all have ended."""
        warps = [Warps(steps, self.chance.random()) for steps in bodies]
        for w in warps:
            w.go()
        while any(w.at is not None for w in warps):
            every: tuple[Warps | Arrival, ...] = (*warps, *self.arrivals)
            able = [x for x in every if x.ready()]
            if not able:
                raise Broken("all warps wait, and nothing is on its way")
            one = max(able, key=lambda x: x.rank)
            if self.chance.random() < RESTLESS:
                one.rank = self.chance.random()
            if isinstance(one, Arrival):
                self.land(one)
            else:
                assert one.at is not None
                one.go(one.at.happen(one))
        if self.arrivals:
            raise Broken("a load is on its way when all warps have ended")

    def land(self, one: Arrival) -> None:
        self.arrivals.remove(one)
        one.to[...] = one.values
        one.barrier.arrive(0, -one.values.nbytes)

    def specialize(self, parts: Sequence[Any], warps: Sequence[int], registers: Any) -> None:
        assert len(parts) == len(warps) + 1 == len(registers) + 1
        if self.open:
            raise Broken("barriers are set up, and the copy engine may not see it")
        self.run([body(*args) for body, args in parts])

    # --- what warps do at a stop

    def setup(self, at: Shared, count: int) -> None:
        at.barrier.count = at.barrier.pending = count
        self.open.add(at.address)

    def fetch(self, m: Map, at: Sequence[Any], full: Shared, to: Shared) -> None:
        values = np.asarray(m.load(at))
        assert values.shape == to.array.shape
        to.array[...] = np.nan
        self.arrivals.append(Arrival(to.array, values, full.barrier, self.chance.random()))

    def put(self, w: Warps, m: Map, at: Sequence[Any], source: Shared) -> None:
        if source.address in self.open:
            raise Broken("a tile leaves that the copy engine may not see yet")
        w.stores.append(Leaving(m, at, source.array, source.array.tobytes()))


def settle(w: Warps, flying: int, deps: Sequence[Any]) -> Any:
    """All but so many products end, in order; what stands for them is their value then."""
    while len(w.products) > flying:
        w.products.pop(0).end()
    found = [x.value if isinstance(x, Flying) and x.value is not None else x for x in deps]
    return found[0] if len(found) == 1 else tuple(found)


def depart(w: Warps, flying: int) -> None:
    while len(w.stores) > flying:
        w.stores.pop(0).end()


def begin(w: Warps, a: Any, b: Shared, acc: Any) -> Flying:
    w.products.append(Flying(a, b, acc))
    return w.products[-1]


# --- the language


def vocabulary(block: Block, place: tuple[int, int]) -> dict[str, Any]:
    """What a kernel's text calls by name, as one block sees it."""
    plain = language(place)
    gl = SimpleNamespace(
        **{name: getattr(plain, name) for name in KEPT},
        **{name: lambda *args: None for name in LAYOUTS},
        arange=lambda first, last, lie: plain.arange(first, last),
        zeros=lambda shape, dtype, lie: plain.zeros(shape, dtype),
        full=lambda shape, value, dtype, lie: plain.full(shape, value, dtype),
        convert_layout=lambda x, lie: x,
        allocate_shared_memory=lambda dtype, shape, lie: allocated(block, dtype, shape),
        warp_specialize=block.specialize,
    )
    hopper = SimpleNamespace(
        fence_async_shared=lambda: Stop(lambda w: block.open.clear()),
        warpgroup_mma=multiplied,
        warpgroup_mma_wait=lambda flying, deps: Stop(lambda w: settle(w, flying, deps)),
    )
    mbarrier = SimpleNamespace(
        MBarrierLayout=lambda: None,
        init=lambda at, count: Stop(lambda w: block.setup(at, count)),
        wait=waited,
        arrive=lambda at, count: Stop(lambda w: at.barrier.arrive(count)),
        expect=lambda at, size: Stop(lambda w: at.barrier.arrive(1, size)),
    )
    tma = SimpleNamespace(
        async_load=lambda *args: Stop(lambda w: block.fetch(*args)),
        async_store=lambda *args: Stop(lambda w: block.put(w, *args)),
        store_wait=lambda flying: Stop(lambda w: depart(w, flying)),
    )
    gluon = SimpleNamespace(jit=lambda function: function)
    return {"gl": gl, "gluon": gluon, "hopper": hopper, "mbarrier": mbarrier, "tma": tma}


def waited(at: Shared, phase: int) -> Stop:
    """Until the phase of that parity has ended: of a new barrier, the one before the first has."""
    return Stop(lambda w: None, lambda: at.barrier.phase % 2 != phase)


def multiplied(a: Any, b: Shared, acc: Any, *, use_acc: bool = True, is_async: bool) -> Stop:
    assert is_async
    return Stop(lambda w: begin(w, a, b, acc if use_acc else np.zeros_like(acc)))


def allocated(block: Block, dtype: Any, shape: Sequence[int]) -> Shared:
    """Poisoned memory, or barriers that are not set up."""
    if dtype is not np.int64:
        return Shared(np.full(shape, np.nan, dtype), block.open)
    barriers = np.array([Barrier() for _ in range(math.prod(shape))], object)
    return Shared(barriers.reshape(shape), block.open)


class _Stopping(ast.NodeTransformer):
    """Functions that stop where they meet others."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        root: ast.expr = node.func
        while isinstance(root, ast.Attribute):
            root = root.value
        meets = isinstance(root, ast.Name) and root.id in MEETING
        return ast.Yield(node) if meets and not ast.unparse(node.func).endswith("Layout") else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """A value does not lie in threads here: `x.type.layout` is nothing."""
        typed = isinstance(node.value, ast.Attribute) and node.value.attr == "type"
        return ast.Constant(None) if typed and node.attr == "layout" else node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        return None


@cache
def _code(text: str) -> CodeType:
    tree = ast.fix_missing_locations(_Stopping().visit(ast.parse(text)))
    return compile(tree, "kernel.py", "exec")


def emulate(source: TritonSource, memory: Mapping[str, np.ndarray], seed: int) -> None:
    """Runs every block on flat arrays, by parameter; outputs are written in place.

    Raises Broken where a GPU might hang or would do something undefined.
    """
    code = _code(source.text)
    (launch,) = source.launches
    arguments = [Pointer(memory[name]) for name in launch.arguments]
    maps = [Described(memory[m.tensor], m) for m in launch.maps]
    x, y, _ = launch.blocks({})
    with np.errstate(all="ignore"):
        for place in product(range(x), range(y)):
            block = Block(Random(f"{seed} {place}"))
            space = vocabulary(block, place)
            exec(code, space)
            block.run([space[launch.name](*arguments, *maps)])
