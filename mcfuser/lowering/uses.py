"""Which buffers a statement reads and writes."""

from __future__ import annotations

from typing import assert_never

from mcfuser.expr import Read, reads
from mcfuser.space.statement import (
    Combine,
    Compute,
    Init,
    Load,
    Loop,
    Repair,
    SaveOld,
    Statement,
    Store,
    StorePartial,
)


def reads_of(s: Compute) -> tuple[Read, ...]:
    """What a computation reads, its domain's reads included."""
    return reads(s.body) + (reads(s.domain) if s.domain is not None else ())


def touched(s: Statement) -> tuple[str, ...]:
    """The buffers that a statement reads or writes; none for a loop."""
    if isinstance(s, Compute):
        return (s.buffer, *(r.tensor for r in reads_of(s)))
    if isinstance(s, SaveOld):
        return (s.old, s.buffer)
    if isinstance(s, Repair):
        return (s.buffer, s.old, s.new)
    if isinstance(s, Combine):
        return (s.buffer, *(r.new for r in s.repairs))
    if isinstance(s, (Init, Load, Store, StorePartial)):
        return (s.buffer,)
    if isinstance(s, Loop):
        return ()
    assert_never(s)
