"""What Prometheus is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from mcfuser_db import Blobs, Order, Storage
from mcfuser_db.beats import note_beat
from mcfuser_db.figures import BOUND_NAMES, Figure, add_figures, timed
from mcfuser_service.app import create_app
from mcfuser_service.settings import ServiceSettings


class Told:
    def __init__(self, folder: Path) -> None:
        settings = ServiceSettings(data=folder)
        self.store = Storage(settings.database_url)
        app = create_app(settings, self.store, Blobs(settings.blobs), lambda: 2)
        self.client = TestClient(app, base_url="http://localhost")

    def samples(self) -> dict[tuple[str, ...], float]:
        """Every value, by its name and the values of its labels."""
        families = text_string_to_metric_families(self.client.get("/metrics").text)
        return {
            (s.name, *s.labels.values()): s.value for family in families for s in family.samples
        }


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    told = Told(tmp_path)
    yield told
    told.store.close()


def test_a_service_without_work_tells_zeros(told: Told) -> None:
    samples = told.samples()
    assert samples["mcfuser_database_up",] == 1
    assert samples["mcfuser_workers",] == 2 and samples["mcfuser_workers_everywhere",] == 0
    assert samples["mcfuser_jobs", "queued"] == 0 and samples["mcfuser_kernels",] == 0
    assert samples["mcfuser_oldest_job_seconds", "queued"] == 0
    assert 0 < samples["mcfuser_data_free_bytes",] < samples["mcfuser_data_size_bytes",]
    assert samples["process_resident_memory_bytes",] > 0


def test_what_workers_count_is_told_by_every_server(told: Told) -> None:
    note_beat(told.store, "elsewhere", "1", told.store.now())
    told.store.submit(Order("a" * 64, "b" * 64, 5, "cpu", {}))
    counted = [Figure("attempts", "done", count=3), Figure("lookups", "hit", count=9)]
    seconds = [timed("stages", "measure", s) for s in (0.05, 4.0, 4.5, 9999.0)]
    add_figures(told.store, [*counted, *seconds, timed("queued", "", 0.4)])
    samples = told.samples()
    assert samples["mcfuser_workers_everywhere",] == 1
    assert samples["mcfuser_oldest_job_seconds", "queued"] > 0
    assert samples["mcfuser_attempts_total", "done"] == 3
    assert samples["mcfuser_kernel_lookups_total", "hit"] == 9
    bucket = "mcfuser_job_stage_seconds_bucket"
    found = [v for k, v in samples.items() if k[0] == bucket]
    assert found == [1, 1, 1, 1, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 4]
    assert len(found) == len(BOUND_NAMES)
    assert samples["mcfuser_job_stage_seconds_count", "measure"] == 4
    assert samples["mcfuser_job_stage_seconds_sum", "measure"] == pytest.approx(10007.55)
    assert samples["mcfuser_job_queued_seconds_count",] == 1


def test_the_time_of_requests_that_wait_for_a_job_is_not_the_server_s(told: Told) -> None:
    job, _ = told.store.submit(Order("a" * 64, "b" * 64, 5, "cpu", {}))
    for query in ("", "?wait=0", "?wait=0.1"):
        assert told.client.get(f"/v1/jobs/{job.id}{query}").status_code == 200
    samples = told.samples()
    assert samples["mcfuser_http_requests_total", "GET", "/v1/jobs/{id}", "200"] == 3
    assert samples["mcfuser_http_request_seconds_count", "GET", "/v1/jobs/{id}"] == 2


def test_a_silent_database_leaves_what_the_server_knows_itself(told: Told) -> None:
    with told.store._engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE figures")
    samples = told.samples()
    assert samples["mcfuser_database_up",] == 0 and samples["mcfuser_workers",] == 2
    assert not any(name[0] == "mcfuser_jobs" for name in samples)
