"""Kernels in CUDA C that a module brings along, and the functions that launch them.

NVIDIA's compiler makes their cubins while the module is built (mcfuser.codegen.cuda.build).
"""

from __future__ import annotations

import hashlib
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mcfuser.codegen.cuda.scalar import HEADERS, NUMBER

THREADS = 256
"""The threads of a block in which each has a number of its own (`for_each`)."""
_DIGITS = 12


@dataclass(frozen=True, slots=True)
class SourceKernel:
    """A text in CUDA C: its functions by name with the types of what they take, and `shared` bytes
    a block that they are launched with."""

    functions: tuple[tuple[str, tuple[str, ...]], ...]
    text: str
    shared: int
    kind = "cu"
    dependent = False

    @property
    def name(self) -> str:
        """The first function's."""
        return self.functions[0][0]

    @property
    def content(self) -> bytes:
        """What the build reads of it."""
        return self.text.encode()


@dataclass(frozen=True, slots=True)
class GivenArray:
    """An array that kernels take: its name in their text, extents and type of elements."""

    name: str
    extents: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class SourceLaunch:
    """A launch of a function, which takes all arrays: threads of a block, and blocks along each of
    the grid's dimensions, of which TVM takes what is missing from the stack."""

    function: str
    threads: int
    blocks: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class KernelStep:
    """One function of an operator's kernel: its name, its statements, and how it is launched."""

    name: str
    body: str
    threads: int
    blocks: int


def for_each(name: str, count: int, lines: Sequence[str]) -> KernelStep:
    """What a thread does for each of `count` numbers `i`."""
    head = [
        f"const unsigned number = blockIdx.x * {THREADS}u + threadIdx.x;",
        f"if (number >= {count}u) return;",
        "const int i = number;",
    ]
    return KernelStep(name, "\n".join([*head, *lines]), THREADS, -(-count // THREADS))


@dataclass(frozen=True, slots=True)
class SourceOperator:
    """An operator as functions in CUDA C that run one after the other, each of which takes all
    arrays, of which the last ones are `written`; `functions` is what their statements call, and
    `shared` are the bytes of a block that they declare without a size."""

    name: str
    arrays: tuple[GivenArray, ...]
    written: int
    functions: str
    steps: tuple[KernelStep, ...]
    shared: int = 0

    def text(self, name: str) -> str:
        """The text of a kernel of that name."""
        count = len(self.arrays) - self.written
        taken = ", ".join(
            f"{'const ' if i < count else ''}{NUMBER[a.dtype]}* __restrict__ {a.name}"
            for i, a in enumerate(self.arrays)
        )
        made = [
            f'extern "C" __global__ void __launch_bounds__({step.threads})\n'
            f"{name}_{step.name}({taken}) {{\n{textwrap.indent(step.body.strip(), '  ')}\n}}\n"
            for step in self.steps
        ]
        return "".join([HEADERS, self.functions, *made])

    def kernel(self) -> tuple[SourceKernel, str]:
        """The kernel, and the text of a PrimFunc that launches it."""
        name = kernel_name(self.name, self.text)
        types = ("handle",) * len(self.arrays)
        functions = tuple((f"{name}_{step.name}", types) for step in self.steps)
        made = SourceKernel(functions, self.text(name), self.shared)
        launches = [
            SourceLaunch(f"{name}_{s.name}", s.threads, (s.blocks, 1, 1)) for s in self.steps
        ]
        return made, launch_text(made, self.arrays, self.written, launches)


def kernel_name(stem: str, text: Callable[[str], str]) -> str:
    """A name for the kernel whose text for a name is this; equal kernels have equal names."""
    return f"{stem}_{hashlib.sha256(text(stem).encode()).hexdigest()[:_DIGITS]}"


def one_unit(texts: Sequence[str]) -> str:
    """One text of the texts of several kernels, for the compiler takes 0.8 s to read CUDA's
    headers, and next to nothing for a small kernel: 54 concatenations took 46 s, and take 1.5. Each
    has a namespace, as several may have their own functions of one name."""
    parts = [f"namespace k{i} {{\n{text.removeprefix(HEADERS)}}}\n" for i, text in enumerate(texts)]
    return "".join([HEADERS, *parts])


def launch_text(
    kernel: SourceKernel,
    arrays: Sequence[GivenArray],
    written: int,
    launches: Sequence[SourceLaunch],
) -> str:
    """The text of a PrimFunc that launches a kernel's functions, one after the other, on arrays of
    which they write the last ones."""
    taken = ", ".join(f"{a.name}: T.Buffer({a.extents!r}, {a.dtype!r})" for a in arrays)
    regions = [f"{a.name}[{', '.join(f'0:{n}' for n in a.extents)}]" for a in arrays]
    given = [f"{a.name}.data" for a in arrays]
    shared = [kernel.shared] if kernel.shared else []
    lines = [
        "@T.prim_func(s_tir=True, private=True)",
        f"def {kernel.name}({taken}):",
        '    with T.sblock("root"):',
        f"        T.reads({', '.join(regions[:-written])})",
        f"        T.writes({', '.join(regions[-written:])})",
    ]
    for one in launches:
        words = ", ".join([*given, *map(str, (one.threads, *one.blocks, *shared))])
        lines.append(f'        T.call_packed("{one.function}", {words})')
    return "\n".join([*lines, ""])
