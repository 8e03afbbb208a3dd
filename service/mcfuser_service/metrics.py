"""The metrics for Prometheus. Each application has a registry of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from mcfuser_db import Storage


class Metrics:
    """The counters of this process, and gauges whose values are read from the database on
    request."""

    def __init__(self, store: Storage, alive: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "mcfuser_http_requests",
            "Requests answered.",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self.seconds = Histogram(
            "mcfuser_http_request_seconds",
            "Time to answer.",
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
        self.registry.register(_Kept(store, alive))

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _Kept:
    """A collector of prometheus_client, which computes its values when they are read."""

    def __init__(self, store: Storage, alive: Callable[[], int]) -> None:
        self._store = store
        self._alive = alive

    def describe(self) -> Iterable[Metric]:
        return ()  # called at registration, before the database can be read

    def collect(self) -> Iterable[Metric]:
        jobs = GaugeMetricFamily("mcfuser_jobs", "Jobs by state.", labels=["state"])
        for state, number in self._store.counts().items():
            jobs.add_metric([state], number)
        yield jobs
        kernels = self._store.kernel_count()
        yield GaugeMetricFamily("mcfuser_kernels", "Tuned kernels kept.", value=kernels)
        yield GaugeMetricFamily(
            "mcfuser_workers", "Worker processes of this server alive.", value=self._alive()
        )
