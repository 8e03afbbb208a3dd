"""The last check of a search's best candidates: on other inputs, and timed interleaved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import TypeVar

from mcfuser.backend import Kernel
from mcfuser.chain import Chain
from mcfuser.measure.request import Measured, smaller_extents
from mcfuser.measure.worker import Worker
from mcfuser.process.child import NO_TIME

T = TypeVar("T")


def confirmed(
    worker: Worker,
    chain: Chain,
    finalists: Mapping[T, tuple[Kernel, Measured]],
    seed: int,
    deadline: float,
    failed: Counter[str],
) -> list[tuple[T, Measured]]:
    """The finalists that are right on other inputs, with their times, interleaved, on whole
    tensors.

    Each is given with its kernel and its first measurement, which stands where no time is left for
    this, or the device cannot be used any more. The other inputs vary in sign and scale. Where
    extents are known only at run time, smaller ones are checked as well. Reasons for which
    finalists failed are counted in `failed`; `deadline` is on time.monotonic().
    """
    programs = [[kernel] for kernel, _ in finalists.values()]
    ask = partial(worker.measure, chain, programs, seed + 1, deadline=deadline)
    rounds = [ask(varied=True), *(ask(extents=e) for e in smaller_extents(chain))]
    rounds.append(ask(together=True))
    kept = []
    done = all(r.failed != NO_TIME and not r.unusable for r in rounds[-1])
    for (one, (_, first)), *results in zip(finalists.items(), *rounds, strict=True):
        bad = (r for r in results if r.failed not in (None, NO_TIME) and not r.unusable)
        wrong = next(bad, None)
        last = results[-1] if done else first
        if wrong is not None:
            failed[f"as a finalist, {wrong.failed}"] += 1
        elif last.seconds is not None:
            kept.append((one, last))
    return kept
