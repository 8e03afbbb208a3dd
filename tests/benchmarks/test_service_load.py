"""The load benchmark: its figures, and its clients against a server that has jobs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import service_load
from mcfuser_db import Order
from service_clients import Clients, Given
from tests.support.served import serving


async def inspect(model: Path, shapes: object) -> None: ...


def test_quantiles_and_figures() -> None:
    times = [i / 1000 for i in range(1, 101)]
    assert service_load.figures(times) == {"count": 100, "p50": 51.0, "p99": 100.0, "max": 100.0}
    assert service_load.quantile([3.0], 0.99) == 3.0
    assert sum(service_load.SHARES.values()) <= 1.0


def test_every_kind_of_client_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service_clients.ARRIVING", 0.1)
    with serving(tmp_path, inspect) as server:
        job, _ = server.store.submit(Order("a" * 64, "b" * 64, 1, "cpu", {}))
        kinds = dict.fromkeys(service_load.SHARES, 1)
        given = Given(server.port, kinds, [str(job.id)], ["0" * 64], ["x"], 0.05, 1.5)
        found = asyncio.run(Clients(given).run())
    assert set(found.times) == set(kinds)
    assert found.errors.keys() == {"kernel: 404"}, "there is no kernel, and nothing else is wrong"
    assert found.events >= 1 and len(found.times["poll"]) > 3
    assert all(0 <= t < 30 for some in found.times.values() for t in some)


def test_a_server_that_is_gone_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service_clients.ARRIVING", 0.0)
    given = Given(1, {"poll": 1, "events": 1, "wait": 1}, ["x"], [], [], 0.05, 0.3)
    errors = asyncio.run(Clients(given).run()).errors
    assert set(errors) == {f"{k}: ConnectionRefusedError" for k in ("poll", "events", "wait")}
    assert max(errors.values()) <= 7, "who is refused comes again after a pause"
