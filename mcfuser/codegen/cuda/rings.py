"""Reads from Triton's intermediate text whether tiles of a pipelined loop lie in rings that are
large enough for instructions of warp groups.

Such an instruction reads its operands from shared memory after the threads have gone on. At the end
of an iteration, a loop of s stages loads the tile of the one s - 1 later. Where a product of the
iteration is still unfinished then, that tile needs a place of its own: rings have s places. Where
threads read a tile as well, Triton 3.6 to 3.9 makes a ring of s - 1 (its issue 6691), and the
result depends on who is faster.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_RING = re.compile(r"(%\S+) = ttg\.local_alloc .*!ttg\.memdesc<(\d+)x\d+x.*, mutable>")
_PLACE = re.compile(r"(%\S+) = ttg\.memdesc_\w+ (%\w+)")
_PRODUCT = re.compile(r"ttng\.warp_group_dot (%\w+), (%\w+), .*isAsync = true")
_WAIT = re.compile(r"ttng\.warp_group_dot_wait .*pendings = (\d+)")
_COPY = re.compile(r"async_(?:tma_)?copy_global_to_local (?:%\w+|%\w+\[[^\]]*\]),? (%\w+)")


def overwritten(text: str, stages: int) -> bool:
    """Whether a loop in `stages` of a kernel (as TTGIR) may load a tile over one that an unfinished
    product still reads."""
    lines = text.splitlines()
    places = {m[1]: int(m[2]) for line in lines if (m := _RING.search(line)) is not None}
    ring = {name: name for name in places}
    for line in lines:
        if (m := _PLACE.search(line)) is not None:
            ring[m[1]] = ring.get(m[2], m[2])
    small = {name for name, count in places.items() if count < stages}
    return any(_races(body, ring, small) for body in _loops(lines))


def _loops(lines: Sequence[str]) -> Iterator[Sequence[str]]:
    """The lines of every loop."""
    begun: list[tuple[int, int]] = []
    for i, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if "scf.for" in line:
            begun.append((indent, i + 1))
        elif begun and indent == begun[-1][0] and line.lstrip().startswith("}"):
            yield lines[begun.pop()[1] : i]


def _races(body: Sequence[str], ring: dict[str, str], small: set[str]) -> bool:
    """Whether a copy goes to a small ring while a product is unfinished that reads from it, in one
    of two iterations in a row."""
    unfinished: list[set[str]] = []
    for line in [*body, *body]:
        if (m := _PRODUCT.search(line)) is not None:
            unfinished.append({ring.get(name, name) for name in m.groups()})
        elif (m := _WAIT.search(line)) is not None:
            unfinished = unfinished[max(0, len(unfinished) - int(m[1])) :]
        elif (m := _COPY.search(line)) is not None:
            to = ring.get(m[1], m[1])
            if to in small and any(to in reads for reads in unfinished):
                return True
    return False
