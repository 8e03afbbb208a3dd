"""Prometheus' configuration and rules, and Grafana's dashboard, beside a server that is scraped."""

from __future__ import annotations

import json
import math
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from mcfuser_db import Order
from mcfuser_db.api_keys import KeyGrant, make_key
from mcfuser_db.beats import note_beat
from mcfuser_db.figures import Figure, add_figures, timed
from mcfuser_service.figures import ATTEMPTS, JOBS, LOOKUPS, QUEUED, STAGES
from tests.support.paths import ROOT
from tests.support.prometheus import Prometheus, program, prometheus
from tests.support.served import Served, serving

DEPLOY = ROOT / "deploy"
CONFIG: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text())
RULES: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus" / "rules.yaml").read_text())
BOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "dashboards" / "mcfuser.json").read_text())
QUERIES = sorted({t["expr"] for panel in BOARD["panels"] for t in panel["targets"]})
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]
WAIT = 120.0


async def inspect(model: Path, shapes: object) -> None:
    """Refuses nothing."""


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus with the deployed configuration, but for the address and the seconds, that has
    scraped a server while jobs were done."""
    program("prometheus")
    folder = tmp_path_factory.mktemp("monitoring")
    (folder / "served").mkdir()
    with serving(folder / "served", inspect, require_key=True) as served:
        _, reading = make_key(served.store, KeyGrant("prometheus", ("read",)))
        _, submitting = make_key(served.store, KeyGrant("ci", ("submit", "read")))
        key = folder / "key"
        key.write_text(f"{reading.words}\n")
        (scrape,) = CONFIG["scrape_configs"]
        own = {k: v for k, v in scrape.items() if k != "dns_sd_configs"} | {
            "authorization": {"credentials_file": str(key)}, "scrape_interval": "250ms",
            "scrape_timeout": "250ms",
            "static_configs": [{"targets": [f"127.0.0.1:{served.port}"]}],
        }  # fmt: skip
        config = CONFIG | {
            "scrape_configs": [own], "rule_files": [str(DEPLOY / "prometheus" / "rules.yaml")],
        }  # fmt: skip
        with prometheus(config, folder) as asked:
            end = time.monotonic() + WAIT
            while asked.query("max(mcfuser_attempts_total) > 40") == []:
                work(served, submitting.words)
                assert time.monotonic() < end, "nothing is scraped"
                time.sleep(0.05)
            yield asked


def work(served: Served, key: str) -> None:
    """One job's worth of what workers and clients leave behind."""
    note_beat(served.store, "worker", "1", served.store.now())
    served.store.submit(Order("a" * 64, "b" * 64, 5, "cpu", {}))
    add_figures(
        served.store,
        [
            Figure(ATTEMPTS, "done"), timed(STAGES, "measure", 3.0), timed(JOBS, "cpu", 4.0),
            timed(QUEUED, "", 0.5), Figure(LOOKUPS, "hit", count=3), Figure(LOOKUPS, "miss"),
        ],
    )  # fmt: skip
    base = f"http://127.0.0.1:{served.port}"
    with httpx.Client(base_url=base, headers={"Authorization": f"Bearer {key}"}) as client:
        assert client.get("/v1/jobs").status_code == 200
        assert client.get("/v1/nowhere").status_code == 404
        assert client.post("/v1/jobs", content=b"model").status_code == 202


@pytest.mark.thorough
@pytest.mark.parametrize("query", QUERIES)
def test_every_query_of_the_dashboard_has_data(scraped: Prometheus, query: str) -> None:
    values = scraped.query(query.replace("$__rate_interval", "30s"))
    assert values and all(math.isfinite(v) for v in values), values


def test_what_the_dashboard_shows_is_what_was_done(scraped: Prometheus) -> None:
    ratio = next(q for q in QUERIES if "lookups" in q).replace("$__rate_interval", "30s")
    assert scraped.query(ratio) == [pytest.approx(0.75)]
    seconds = next(q for q in QUERIES if "stage_seconds" in q).replace("$__rate_interval", "30s")
    assert scraped.query(seconds) == [pytest.approx(3.0)]
    assert scraped.query("max(mcfuser_workers_everywhere)") == [1.0]


@pytest.mark.parametrize("alert", ALERTS, ids=lambda a: a["alert"])
def test_every_alert_asks_for_figures_that_are_there(
    scraped: Prometheus, alert: dict[str, Any]
) -> None:
    """An expression on a figure that nobody tells would never be true."""
    known = set(scraped.client.get("/api/v1/label/__name__/values").json()["data"])
    words = alert["expr"].replace("(", " ").replace("{", " ").replace(")", " ").replace("[", " ")
    named = {w for w in words.split() if w.startswith("mcfuser_") or w == "up"}
    assert named and named <= known
    assert set(alert["annotations"]) == {"summary", "action"}


def test_the_deployed_rules_are_loaded_and_nothing_is_raised(scraped: Prometheus) -> None:
    groups = scraped.client.get("/api/v1/rules").json()["data"]["groups"]
    loaded = {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}
    assert set(loaded) == {a["alert"] for a in ALERTS} and "err" not in loaded.values()


@pytest.mark.parametrize(
    "words",
    [
        ["check", "config", "--syntax-only", "prometheus.yaml"], ["check", "rules", "rules.yaml"],
        ["test", "rules", "rules_test.yaml"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_promtool_finds_nothing_wrong(words: list[str]) -> None:
    done = subprocess.run(
        [program("promtool"), *words],
        cwd=DEPLOY / "prometheus", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_grafana_finds_its_dashboard_and_its_data() -> None:
    provisioning = DEPLOY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())[
        "datasources"
    ]
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "mcfuser.yaml").read_text())[
        "providers"
    ]
    mounts = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["grafana"]["volumes"]
    assert f"./grafana/dashboards:{provider['options']['path']}:ro" in mounts
    assert "./grafana/provisioning:/etc/grafana/provisioning:ro" in mounts
    for panel in BOARD["panels"]:
        assert panel["datasource"]["uid"] == source["uid"]
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    places = [tuple(panel["gridPos"].values()) for panel in BOARD["panels"]]
    assert len(set(places)) == len(places) and all(x + w <= 24 for x, _, w, _ in places)
