"""The metrics for Prometheus. Each application has a registry of its own.

What is read from the database is the same at every server of that database, and what workers have
counted outlives them: do not add it up over servers.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from mcfuser_db import Storage, StorageError
from mcfuser_db.beats import backlog, living_workers
from mcfuser_db.figures import BOUND_NAMES, Figure, figures
from mcfuser_service.figures import ATTEMPTS, JOBS, LOOKUPS, QUEUED, STAGES
from mcfuser_service.outage import Outage

log = logging.getLogger(__name__)

_COUNTERS = {
    ATTEMPTS: ("mcfuser_attempts", "Attempts at jobs, by how they ended.", "ended"),
    LOOKUPS: (
        "mcfuser_kernel_lookups",
        "Kernels that jobs needed: kept (hit), a team's (team), or searched for (miss).",
        "answer",
    ),
}
_HISTOGRAMS = {
    STAGES: ("mcfuser_job_stage_seconds", "Stages of jobs that are done.", "stage"),
    JOBS: ("mcfuser_job_seconds", "Last attempts at jobs that are done.", "device"),
    QUEUED: ("mcfuser_job_queued_seconds", "Time of jobs that are done in the queue.", ""),
}


class Metrics:
    """The counters of this process, and figures that are read from the database on request.

    `alive` gives the number of this server's workers; `data` is the folder whose disk is told.
    """

    def __init__(self, store: Storage, alive: Callable[[], int], data: Path) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "mcfuser_http_requests",
            "Requests answered.",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self.seconds = Histogram(
            "mcfuser_http_request_seconds",
            "Time to answer; without requests that wait for a job.",
            ("method", "route"),
            registry=self.registry,
        )
        self.submissions = Counter(
            "mcfuser_submissions",
            "Models posted, by whether the work was new, shared with a "
            "job not yet done, or cached.",
            ("answer",),
            registry=self.registry,
        )
        ProcessCollector(registry=self.registry)
        self.registry.register(_Kept(store, alive, data))

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _Kept:
    """A collector of prometheus_client, which computes its values when they are read."""

    def __init__(self, store: Storage, alive: Callable[[], int], data: Path) -> None:
        self._store = store
        self._alive = alive
        self._data = data
        self._outage = Outage(log, "metrics")

    def describe(self) -> Iterable[Metric]:
        return ()  # called at registration, before the database can be read

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            "mcfuser_workers", "Worker processes of this server alive.", value=self._alive()
        )
        yield from _disk(self._data)
        try:
            told = [*_stored(self._store), *_counted(figures(self._store))]
        except StorageError as error:
            self._outage.failed(error)
            told = []
        else:
            self._outage.over()
        up = float(bool(told))
        yield GaugeMetricFamily("mcfuser_database_up", "Whether the database answers.", value=up)
        yield from told


def _stored(store: Storage) -> Iterator[Metric]:
    jobs = GaugeMetricFamily("mcfuser_jobs", "Jobs by state.", labels=["state"])
    for state, number in store.counts().items():
        jobs.add_metric([state], number)
    yield jobs
    oldest = GaugeMetricFamily(
        "mcfuser_oldest_job_seconds",
        "Age of the oldest queued job since it was posted, and of the oldest running one since it "
        "was started; 0 where there is none.",
        labels=["state"],
    )
    ages = backlog(store)
    oldest.add_metric(["queued"], ages.queued)
    oldest.add_metric(["running"], ages.running)
    yield oldest
    kernels = store.kernel_count()
    yield GaugeMetricFamily("mcfuser_kernels", "Tuned kernels kept.", value=kernels)
    everywhere = len(living_workers(store))
    yield GaugeMetricFamily(
        "mcfuser_workers_everywhere", "Workers alive on all machines.", value=everywhere
    )


def _counted(some: Sequence[Figure]) -> Iterator[Metric]:
    """What workers have counted; families without a count are there, too."""
    named = {name: list(group) for name, group in groupby(some, lambda t: t.name)}
    for name, (metric, words, label) in _COUNTERS.items():
        counter = CounterMetricFamily(metric, words, labels=[label])
        for one in named.get(name, ()):
            counter.add_metric([one.label], one.count)
        yield counter
    for name, (metric, words, label) in _HISTOGRAMS.items():
        histogram = HistogramMetricFamily(metric, words, labels=[label] if label else [])
        for value, group in groupby(named.get(name, ()), lambda t: t.label):
            buckets, total = _buckets(list(group))
            histogram.add_metric([value] if label else [], buckets, total)
        yield histogram


def _buckets(some: Sequence[Figure]) -> tuple[list[tuple[str, float]], float]:
    """The cumulative buckets of a histogram, and the sum of what was observed."""
    counts = {t.bound: t.count for t in some}
    buckets: list[tuple[str, float]] = []
    below = 0.0
    for bound in BOUND_NAMES:
        below += counts.get(bound, 0)
        buckets.append((bound, below))
    return buckets, sum(t.total for t in some)


def _disk(data: Path) -> Iterator[Metric]:
    """The file system of the data folder; nothing where that is not there."""
    try:
        usage = shutil.disk_usage(data)
    except OSError:
        return
    for name, value in (("free", usage.free), ("size", usage.total)):
        words = f"Bytes of the file system with the data folder: {name}."
        yield GaugeMetricFamily(f"mcfuser_data_{name}_bytes", words, value=value)
