"""Tunes one chain: builds and prunes its space, searches it, and keeps the kernel in a cache."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from mcfuser.algebra.hoist import shifted
from mcfuser.backend import Backend, Kernel, Names
from mcfuser.backends import backend_of
from mcfuser.chain import Chain
from mcfuser.device import Device
from mcfuser.errors import ChainError
from mcfuser.measure.rounds import Interleaved
from mcfuser.measure.worker import Worker, interleaved
from mcfuser.process.child import NO_TIME
from mcfuser.tune import choice
from mcfuser.tune.expected import listed
from mcfuser.tune.key import CacheKey, driver, key_here
from mcfuser.tune.progress import Listener, unheard
from mcfuser.tune.rebuild import vetted
from mcfuser.tune.recall import better, recall, serves
from mcfuser.tune.related import carried
from mcfuser.tune.search import FIRST
from mcfuser.tune.tuned import (
    Cache,
    NoCandidate,
    RetuneCache,
    Tuned,
    TuneOptions,
    kernel_name,
    names_of,
)
from mcfuser.tune.tuning import Tuning


def tune(
    chain: Chain,
    device: Device,
    cache: Cache,
    options: TuneOptions,
    listener: Listener = unheard,
    worker: Worker | None = None,
    deadline: float | None = None,
    give_up: float = math.inf,
) -> Tuned:
    """The best kernel for a chain on a device: from the cache, or found by a search and kept there.

    A kept kernel is used unless its search was given less than `options` give (Budget.covers). Then
    the chain is searched again, and the faster of both kernels is kept. One that is `stale` is used
    too, but a search does not compare itself with it.

    Where no kernel is kept, one that others offer (Cache.offered) is built and checked here, and
    then kept.

    A search goes on from one that was cut short or interrupted: what was measured under the same
    key is not measured again, but for the candidates between which it chooses in the end.

    The search ends at the `deadline` (time.monotonic; `options.timeout` from now if None) with the
    best candidate measured so far. Where none was, or the device is not at hand, the model chooses:
    the kernel's `measured` is None, and a later search on the device replaces it, or a choice with
    other constants of the model. After `give_up`
    (time.monotonic) there is no time for that either. `options.timeout` is this chain's nominal
    share of the time, by which its kernel's budget is compared with later ones.

    Where a shift was hoisted out of a sum and every candidate loses too many digits on data far
    from zero, the space without shifts is searched. Raises NoCandidate where no candidate is legal
    and right, or no time was left.
    """
    backend = worker.backend if worker is not None else backend_of(device)
    key = key_of(chain, device, options, backend)
    cache = RetuneCache(cache) if options.retune else cache
    known, missed = recall(
        cache, key, chain, partial(kernel_of, backend), backend.soft, partial(driver, backend)
    )
    if known is not None and serves(known, options):
        return known
    if known is not None and time.monotonic() > min(give_up, deadline or math.inf):
        return known
    if time.monotonic() > give_up:
        raise NoCandidate(f"chain '{chain.name}' has no kernel: no time was left to choose one")
    deadline = deadline if deadline is not None else time.monotonic() + options.timeout
    with ExitStack() as stack:
        if worker is None:
            worker = Worker(backend, device)
            stack.callback(worker.stop)
        worker.warm()
        if known is None:
            known, refused = _offered(key, cache, device, worker, deadline)
            missed = refused or missed
            if known is not None and serves(known, options):
                return known
        if known is not None and _predicted_again(known, options, worker, deadline):
            return known
        try:
            tuned = _searched(key, chain, device, cache, options, listener, worker, deadline)
        except NoCandidate:
            if known is None:
                raise
            return known

        def interleaved_times(kernels: Sequence[Tuned]) -> Interleaved:
            return compare(
                worker, chain, [[(t, chain)] for t in kernels], options.seed, deadline, 0
            )

        if known is not None and tuned.measured is None and not known.chosen_by(device):
            missed = "the model chose the kept kernel with other constants"
        elif known is not None and known.key == tuned.key:
            tuned = better(replace(known, stale=""), tuned, interleaved_times)
        elif known is not None:
            missed = f"the kept kernel's search was shorter, and it is stale: {known.stale}"
    tuned = replace(tuned, missed=missed)
    cache.put(tuned)
    return tuned


def begin_ahead(
    chain: Chain, device: Device, cache: Cache, options: TuneOptions, worker: Worker
) -> None:
    """Begins to build the kernel that the model will choose for a chain, where none is kept or
    under way, and where the back end builds several kernels at a time."""
    backend = worker.backend
    key = key_of(chain, device, options, backend)
    name = kernel_name(key.digest)
    if worker.builder.workers < 2 or worker.builder.foreseen(name):
        return
    if cache.get(key.digest) is not None:
        return
    try:
        every = listed(chain, device, options, backend, measured=False)
    except ChainError:
        return  # one kernel cannot compute it
    relatives = cache.related(chain, device.name)
    first = carried(chain, every, options.shifts, relatives, FIRST, worker.tiled)
    choice.begin_ahead(chain, every, first, worker, name)


def key_of(
    chain: Chain, device: Device, options: TuneOptions, backend: Backend | None = None
) -> CacheKey:
    """The cache key of a chain's kernel on a device.

    Keys are equal for chains that differ only in names, on equal devices, with the same space,
    knobs, compilers and sources.
    """
    backend = backend or backend_of(device)
    return key_here(chain.key, device, options.space, options.shifts, backend)


def _predicted_again(known: Tuned, options: TuneOptions, worker: Worker, deadline: float) -> bool:
    """Whether the device is not at hand and the model would choose nothing better than the kept
    kernel: that one was measured, or chosen under as large a budget and with equal constants."""
    measured = known.measured is not None
    enough = measured or known.budget.covers(known.trials, options.trials, options.timeout)
    enough = enough and known.chosen_by(worker.device)
    return enough and worker.refused(deadline) is not None


def _offered(
    key: CacheKey, cache: Cache, device: Device, worker: Worker, deadline: float
) -> tuple[Tuned | None, str]:
    """The kernel of the tuning record that others offer for a key, built, checked and kept here;
    or None and, where there is a record, why its kernel is refused."""
    record = cache.offered(key)
    if record is None:
        return None, ""
    try:
        made = vetted(record, device, worker, deadline)
    except NoCandidate as error:
        return None, f"the team's kernel is refused: {error}"
    cache.put(made)
    return made, ""


def _searched(
    key: CacheKey,
    chain: Chain,
    device: Device,
    cache: Cache,
    options: TuneOptions,
    listener: Listener,
    worker: Worker,
    deadline: float,
) -> Tuned:
    try:
        return Tuning(key, chain, device, cache, options, listener, worker, deadline).run()
    except ChainError as error:
        raise NoCandidate(f"chain '{chain.name}' fits no kernel: {error}") from None
    except NoCandidate:
        if not options.shifts or not shifted(chain):
            raise
        plain = replace(options, shifts=False)
        return Tuning(key, chain, device, cache, plain, listener, worker, deadline).run()


def compare(
    worker: Worker,
    chain: Chain,
    programs: Sequence[Sequence[tuple[Tuned, Chain]]],
    seed: int,
    deadline: float = math.inf,
    baseline: int | None = None,
) -> Interleaved:
    """The times of several covers of a chain, each given as its kernels with their pieces.

    They are timed, interleaved, in one process, until it is sure whether one of them is faster than
    the `baseline` (a number). The times are predicted where the device is not at hand, and those of
    the searches where this is not done by the `deadline` (time.monotonic).
    """
    predicted = Interleaved(tuple(sum(t.predicted for t, _ in pairs) for pairs in programs))
    searched = Interleaved(tuple(sum(t.seconds for t, _ in pairs) for pairs in programs))
    if time.monotonic() >= deadline:
        return searched
    if worker.refused(deadline) is not None:
        return predicted
    kernels = [[kernel_of(worker.backend, *pair) for pair in pairs] for pairs in programs]
    results = worker.measure(
        chain, kernels, seed + 2, together=True, deadline=deadline, baseline=baseline
    )
    unmeasured = all(t.measured is None for pairs in programs for t, _ in pairs)
    if unmeasured and any(m.unusable for m in results):
        return predicted
    return searched if any(m.failed == NO_TIME for m in results) else interleaved(results)


def kernel_of(backend: Backend, tuned: Tuned, chain: Chain) -> Kernel:
    """The tuned kernel for a chain that differs from the tuned one only in names.

    Raises KeyError, TypeError or ValueError where the kept record cannot be read.
    """
    names = Names(*names_of(tuned, chain))
    return backend.renamed(kept_kernel(tuned), chain, names)


def kept_kernel(tuned: Tuned) -> Kernel:
    """The tuned kernel with the names of the chain that it was tuned for."""
    return Kernel(tuned.chain, tuned.source, tuned.launch, tuned.binary, tuned.resources)
