"""CUDA C for a recurrence: one kernel walks over a whole sequence (mcfuser.codegen.cuda.cluster).

In each stage of a step a block waits until the vector that is multiplied has arrived from all
blocks, multiplies it by its part of the matrix, and computes the values of its units, which it
sends to all blocks. Nothing else waits for another block. A state's vector is there twice: a block
that computes the one after the next has seen what all others made of this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mcfuser.chain.recurrence import Recurrence, RecurrentStage
from mcfuser.codegen.cuda.cluster import THREADS, ClusterWalk, Division
from mcfuser.codegen.cuda.recurrence_product import TENSOR_CORE, indented, product, unrolled
from mcfuser.codegen.cuda.scalar import FUNCTIONS, HEADERS, NARROW, NUMBER, WIDE, expression
from mcfuser.expr import Read, reads

_BITS = {"float32": "__float_as_uint", "float16": "__half_as_ushort",
         "bfloat16": "__bfloat16_as_ushort"}  # fmt: skip
_PTX = {"float16": "f16", "bfloat16": "bf16"}
CLUSTER = """
// An address of this block's shared memory, as that of the same place in another block's.
__device__ __forceinline__ unsigned in_block(unsigned address, unsigned block) {
  unsigned there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
  return there;
}
// Writes to another block, and counts the bytes where these have arrived.
__device__ __forceinline__ void send(unsigned address, unsigned bits, unsigned arrived) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
               :: "r"(address), "r"(bits), "r"(arrived) : "memory");
}
__device__ __forceinline__ void prepare(unsigned arrived) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\\n"
               "fence.mbarrier_init.release.cluster;" :: "r"(arrived) : "memory");
}
__device__ __forceinline__ void expect(unsigned arrived, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :: "r"(arrived), "r"(bytes) : "memory");
}
__device__ __forceinline__ void wait(unsigned arrived, unsigned parity) {
  asm volatile("{ .reg .pred done;\\n"
               "again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\\n"
               "@!done bra again; }" :: "r"(arrived), "r"(parity) : "memory");
}
__device__ __forceinline__ void all_blocks() {
  asm volatile("barrier.cluster.arrive.release.aligned;\\n"
               "barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
"""


def source(walk: ClusterWalk, name: str) -> str:
    """The text of a kernel of that name."""
    return _Writer(walk).text(name)


def parameters(walk: ClusterWalk) -> tuple[str, ...]:
    """What the kernel takes: the input products of all steps, the matrices by pieces, constants,
    lengths, the states before the first step; then what the steps show, and the states behind the
    last one."""
    cell = walk.recurrence
    states = [name for name, _ in cell.states]
    return (
        "given", "square", *(["fixed"] if cell.constants else ()),
        *(["lengths"] if cell.lengths else ()), *(f"first_{s}" for s in states), "out",
        *(f"last_{s}" for s in states),
    )  # fmt: skip


@dataclass(frozen=True)
class _Writer:
    """Writes the kernel of a walk.

    What a step computes has the names of the recurrence: `x_` and a name for a value, `state_` for
    a state of the thread's units, `vector_` for the vector of all units in shared memory.
    """

    walk: ClusterWalk

    @property
    def cell(self) -> Recurrence:
        return self.walk.recurrence

    @property
    def states(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.cell.states)

    @property
    def several(self) -> bool:
        """Whether a cluster has several blocks."""
        return self.walk.blocks > 1

    @property
    def items(self) -> int:
        """Units of rows that a block has."""
        return self.walk.rows * self.walk.units

    @property
    def each(self) -> int:
        """Units of rows that a thread has at most."""
        return -(-self.items // THREADS)

    @property
    def count(self) -> str:
        """The number of steps that some row of a walk has."""
        return "count" if self.cell.lengths else str(self.walk.steps)

    @property
    def later(self) -> tuple[str, ...]:
        """The values of all stages but the last that later ones read of the same unit, or that are
        states after the step."""
        nexts = [after for _, after in self.cell.states]
        early = [name for stage in self.cell.stages[:-1] for name, _ in stage.values]
        return tuple(name for name in early if name in self.cell.kept or name in nexts)

    def wide(self, number: str) -> str:
        """An element of a tensor, where a thread has the unit; 0 elsewhere."""
        return f"there ? {WIDE[self.walk.dtype].format(number)} : 0.0f"

    def narrow(self, number: str) -> str:
        """A value as a tensor holds it."""
        return NARROW[self.walk.dtype].format(number)

    def multiplied(self, number: str) -> str:
        """A value as a vector that is multiplied holds it."""
        return NARROW[self.walk.multiplied].format(number)

    def text(self, name: str) -> str:
        w, number = self.walk, NUMBER[self.walk.dtype]
        kinds = {"square": "const uint4*", "lengths": "const int*", "out": f"{number}*"}
        kinds |= {f"last_{s}": f"{number}*" for s in self.states}
        taken = [f"{kinds.get(p, f'const {number}*')} __restrict__ {p}" for p in parameters(w)]
        cluster = f"__cluster_dims__({w.blocks}, 1, 1) " if self.several else ""
        return "\n".join((
            HEADERS, FUNCTIONS, *([CLUSTER] if self.several else ()),
            *([TENSOR_CORE.format(type=_PTX[w.multiplied])] if w.size == 2 else ()),
            f'extern "C" __global__ void {cluster}__launch_bounds__({THREADS}, 1)',
            f"{name}({', '.join(taken)}) {{", *indented(self._body()), "}", "",
        ))  # fmt: skip

    def _body(self) -> Iterator[str]:
        w = self.walk
        first = f"blockIdx.y * {w.rows}"
        first = first if w.batch % w.rows == 0 else f"min({first}, {w.batch - w.rows})"
        yield "const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;"
        yield f"const int d = blockIdx.z, block = blockIdx.x, begun = block * {w.units};"
        yield f"const int first = {first};"
        yield from self._shared()
        yield from self._matrices()
        yield from self._vectors()
        if self.cell.lengths:
            yield "int count = 0;"
            longest = f"count = max(count, min(lengths[first + r], {w.steps}));"
            yield from unrolled("r", w.rows, (longest,))
        yield from self._begun()
        yield from self._given("0")
        yield "all_blocks();" if self.several else "__syncthreads();"
        yield f"for (int t = 0; t < {self.count}; ++t) {{"
        yield from indented(self._step())
        yield "}"
        if self.several:
            yield "all_blocks();"
        yield from self._ended()

    # --- before the first step ---------------------------------------------------------------

    def _shared(self) -> Iterator[str]:
        """What lies in shared memory; where blocks send, also its addresses."""
        number, at = NUMBER[self.walk.multiplied], 0
        kinds = {"further": "uint4", "sums": "float"}
        yield "extern __shared__ __align__(128) unsigned char shared[];"
        for name, size in self.walk.places:
            if size and name != "arrived":
                kind = kinds.get(name, number)
                yield f"{kind}* {name} = reinterpret_cast<{kind}*>(shared + {at});"
            elif size and self.several:
                yield f"const unsigned arrived = __cvta_generic_to_shared(shared + {at});"
            at += size
        if not self.several:
            return
        for name in self.walk.operands:
            yield f"const unsigned {name}_at = __cvta_generic_to_shared(vector_{name});"
        count = 2 * len(self.walk.operands)
        yield f"if (thread < {count}) prepare(arrived + 8 * thread);"

    def _matrices(self) -> Iterator[str]:
        """The block's part of the matrices."""
        pieces, held = self.walk.pieces, self.walk.held
        yield f"square += (d * {self.walk.blocks} + block) * {pieces * THREADS} + thread;"
        yield f"uint4 held[{held}];"
        yield from unrolled("i", held, (f"held[i] = square[i * {THREADS}];",))
        if pieces > held:
            yield f"for (int i = {held}; i < {pieces}; ++i)"
            yield f"  further[(i - {held}) * {THREADS} + thread] = square[i * {THREADS}];"

    def _vectors(self) -> Iterator[str]:
        """The vectors before the first step, with zeros behind their units."""
        w = self.walk
        for name in w.operands:
            rows, value = w.rows * (1 + w.is_state(name)), "0.0f"
            if w.is_state(name):
                before = f"first_{name}[(d * {w.batch} + first + r) * {w.hidden} + j]"
                before = WIDE[w.dtype].format(before)
                value = f"r < {w.rows} && j < {w.hidden} ? {before} : 0.0f"
            yield f"for (int i = thread; i < {rows * w.width}; i += {THREADS}) {{"
            yield f"  const int r = i / {w.width}, j = i % {w.width};"
            yield f"  vector_{name}[i] = {self.multiplied(value)};"
            yield "}"

    def _begun(self) -> Iterator[str]:
        """What a thread keeps of its units: states, values, and what the next step is given."""
        named = [*(f"state_{s}" for s in self.states), *(f"kept_{n}" for n in self.later)]
        for name in (*named, *(f"x_{g}" for g in self.cell.given)):
            yield f"float {name}[{self.each}];"
        yield from self._units(
            f"state_{s}[i] = {self.wide(f'first_{s}[{self._unit_of_state}]')};" for s in self.states
        )

    @property
    def _unit_of_state(self) -> str:
        """Where a unit is in a state's tensor."""
        return f"(d * {self.walk.batch} + first + r) * {self.walk.hidden} + unit"

    @property
    def _shown(self) -> str:
        """Where a unit is in what the steps show."""
        row = f"(at * {self.cell.directions} + d) * {self.walk.batch} + first + r"
        return f"({row}) * {self.walk.hidden} + unit"

    def _units(self, lines: Iterable[str]) -> Iterator[str]:
        """Statements for each unit of rows that a thread may have; `there` tells whether it has
        it. All threads of a warp are there, or none."""
        w = self.walk
        yield from unrolled("i", self.each, (
            f"const int item = thread + i * {THREADS};",
            f"if (item - lane >= {self.items}) break;",
            f"const int r = min(item / {w.units}, {w.rows - 1}), u = item % {w.units};",
            "const int unit = begun + u;",
            f"const bool there = item < {self.items} && unit < {w.hidden};",
            *lines,
        ))  # fmt: skip

    # --- a step -------------------------------------------------------------------------------

    def _step(self) -> Iterator[str]:
        stages, begun = self.cell.stages, 0
        yield f"const int at = {self._time('t')};"
        yield "const int now = t % 2, then = 1 - now;"
        if self.several:
            yield from self._expected()
        for n, (stage, division) in enumerate(zip(stages, self.walk.divisions, strict=True)):
            yield f"// {', '.join(stage.sums)}: by {stage.operand}"
            if self.several and stage.operand not in [s.operand for s in stages[:n]]:
                yield self._awaited(stage.operand)
            vector = f"vector_{stage.operand} + {self._rows(stage.operand, 'now')}"
            yield from product(self.walk, stage, division, begun, vector)
            yield "__syncthreads();"
            yield from self._units(self._values(stage, division))
            begun += self.walk.pieces_of(division)
            if n + 1 < len(stages) and not self.several:
                yield "__syncthreads();"
        yield from self._given("t + 1")
        if not self.several:
            yield "__syncthreads();"

    def _time(self, step: str) -> str:
        """The place in the sequence of a step of a direction."""
        back, ways = f"{self.count} - 1 - ({step})", self.cell.backward
        if len(ways) == 2:
            return f"d ? {back} : {step}"
        return back if ways[0] else step

    def _given(self, step: str) -> Iterator[str]:
        """Loads what a step has of the sequence, long before it is used."""
        w, cell = self.walk, self.cell
        line = f"((at * {w.batch} + first + r) * {cell.directions} + d) * {len(cell.given)}"
        yield f"if ({step} < {self.count}) {{"
        yield f"  const int at = {self._time(step)};"
        yield from indented(self._units(
            f"x_{name}[i] = {self.wide(f'given[({line} + {g}) * {w.hidden} + unit]')};"
            for g, name in enumerate(cell.given)
        ))  # fmt: skip
        yield "}"

    def _expected(self) -> Iterator[str]:
        """How many bytes will arrive of each vector."""
        w = self.walk
        size = w.rows * w.blocks * w.units * w.size
        yield "if (thread == 0) {"
        for name in w.operands:
            ahead = f"if (t + 1 < {self.count}) " if w.is_state(name) else ""
            yield f"  {ahead}expect({self._arrived(name, 'then')}, {size});"
        yield "}"

    def _awaited(self, name: str) -> str:
        """Every other step a state's vector arrives at the same place."""
        if self.walk.is_state(name):
            return f"if (t > 0) wait({self._arrived(name, 'now')}, (t - 1) / 2 % 2);"
        return f"wait({self._arrived(name, 'now')}, t % 2);"

    def _arrived(self, name: str, which: str) -> str:
        """The address where a vector's bytes are counted."""
        first = 2 * self.walk.operands.index(name)
        return f"arrived + 8 * ({first} + {which if self.walk.is_state(name) else 0})"

    def _rows(self, name: str, which: str) -> str:
        """Where a vector's rows begin."""
        return f"{which if self.walk.is_state(name) else 0} * {self.walk.rows * self.walk.width}"

    def _values(self, stage: RecurrentStage, division: Division) -> Iterator[str]:
        """The values of a unit, and where they go."""
        w, cell = self.walk, self.cell
        height = w.height(division)
        for s, name in enumerate(stage.sums):
            part = f"sums[(p * {w.rows} + r) * {height} + {s * w.units} + u]"
            yield f"float x_{name} = 0.0f;"
            yield from unrolled("p", division.parts, (f"x_{name} += {part};",))
        read = {r.tensor for _, e in stage.values for r in reads(e)}
        for n, name in enumerate(cell.constants):
            if name in read:
                place = f"fixed[(d * {len(cell.constants)} + {n}) * {w.hidden} + unit]"
                yield f"const float x_{name} = {self.wide(place)};"
        here = {name for name, _ in stage.values}

        def element(r: Read) -> str:
            return self._element(r.tensor, here)

        for name, e in stage.values:
            yield f"const float x_{name} = {expression(e, element, fast=w.size == 2)};"
            if name in self.later:
                yield f"kept_{name}[i] = x_{name};"
            if name in w.operands:
                yield from self._sent(name, f"x_{name}", "0")
        if stage is cell.stages[-1]:
            yield from self._next(here)

    def _element(self, name: str, here: set[str]) -> str:
        """What a stage reads of a unit; `here` are the values that it computes itself."""
        if name in self.states:
            return f"state_{name}[i]"
        if name in self.later and name not in here:
            return f"kept_{name}[i]"
        return f"x_{name}[i]" if name in self.cell.given else f"x_{name}"

    def _next(self, here: set[str]) -> Iterator[str]:
        """The states after a step, and what the step shows. Behind a sequence's end states stay,
        and nothing is shown."""
        w, cell = self.walk, self.cell
        if cell.lengths:
            yield "const bool within = at < lengths[first + r];"
        shown = self._element(cell.states[0][1], here)
        shown = f"within ? {shown} : 0.0f" if cell.lengths else shown
        yield f"if (there) out[{self._shown}] = {self.narrow(shown)};"
        for state, after in cell.states:
            within = "if (within) " if cell.lengths else ""
            yield f"{within}state_{state}[i] = {self._element(after, here)};"
        for state in (s for s in self.states if s in w.operands):
            yield f"if (t + 1 < {self.count}) {{"
            yield from indented(self._sent(state, f"state_{state}[i]", "then"))
            yield "}"

    def _sent(self, name: str, value: str, which: str) -> Iterator[str]:
        """Sends a unit's value to all blocks. Of 16 bits, two lanes have two units, and send them
        to every other block each."""
        w, pairs = self.walk, self.walk.size == 2
        place = f"{self._rows(name, which)} + r * {w.width} + unit"
        if not self.several:
            yield f"if (there) vector_{name}[{place}] = {self.multiplied(value)};"
            return
        bits = self.multiplied(f"there ? {value} : 0.0f")
        yield f"unsigned bits = {_BITS[w.multiplied]}({bits});"
        yield f"unsigned place = {name}_at + ({place}) * {w.size};"
        if pairs:
            yield "const unsigned other = __shfl_xor_sync(0xffffffffu, bits, 1);"
            yield "bits = u % 2 ? other | bits << 16 : bits | other << 16;"
            yield f"place -= u % 2 * {w.size};"
        yield f"if (item < {self.items}) {{"
        yield from indented(unrolled("b", w.blocks // (1 + pairs), (
            f"const unsigned to = {'b * 2 + u % 2' if pairs else 'b'};",
            f"send(in_block(place, to), bits, in_block({self._arrived(name, which)}, to));",
        )))  # fmt: skip
        yield "}"

    # --- behind the last step -----------------------------------------------------------------

    def _ended(self) -> Iterator[str]:
        """The states behind the last step, and zeros for steps that no row has."""
        w, cell = self.walk, self.cell
        lines = [
            f"last_{s}[{self._unit_of_state}] = {self.narrow(f'state_{s}[i]')};"
            for s in self.states
        ]
        if cell.lengths:
            lines.append(f"for (int at = count; at < {w.steps}; ++at)")
            lines.append(f"  out[{self._shown}] = {self.narrow('0.0f')};")
        yield from self._units(("if (there) {", *indented(lines), "}"))
