"""The compose file: what refers to what, as an engine would find out when it starts."""

from __future__ import annotations

import re
from typing import Any

import yaml

from tests.support.paths import ROOT

DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def image() -> str:
    return (DEPLOY / "Containerfile").read_text()


def test_every_volume_is_declared_and_every_file_is_there() -> None:
    used = set()
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            source, target, *_ = volume.split(":")
            assert target.startswith("/")
            if source.startswith("."):
                assert (DEPLOY / source).exists(), source
            else:
                used.add(source)
    assert used == set(COMPOSE["volumes"])


def test_what_is_waited_for_can_be_seen() -> None:
    for service in SERVICES.values():
        waits = service.get("depends_on", {})
        for name in waits:
            assert name in SERVICES
        for name, how in waits.items() if isinstance(waits, dict) else ():
            healthy = how["condition"] == "service_healthy"
            own = "HEALTHCHECK" in image() and SERVICES[name].get("image") == "mcfuser"
            assert not healthy or own or "test" in SERVICES[name].get("healthcheck", {})


def test_everything_is_published_on_loopback_alone() -> None:
    ports = [p for s in SERVICES.values() for p in s.get("ports", ())]
    assert len(ports) == 3 and all(p.startswith("127.0.0.1:") for p in ports)


def test_settings_are_settings() -> None:
    from mcfuser_service.settings import ServiceSettings

    known = {f"MCFUSER_{name.upper()}" for name in ServiceSettings.model_fields}
    for service in SERVICES.values():
        given = {n for n in service.get("environment", {}) if n.startswith("MCFUSER_")}
        assert given <= known
    built = set(re.findall(r"\b(MCFUSER_[A-Z_]+)=", image()))
    assert built and built <= known
    web = ServiceSettings(allowed_hosts=SERVICES["web"]["environment"]["MCFUSER_ALLOWED_HOSTS"])
    assert "web" in web.allowed_hosts, "Prometheus asks for it by this name"


def test_targets_are_stages_and_images_name_no_host() -> None:
    cuda = yaml.safe_load((DEPLOY / "compose-cuda.yaml").read_text())["services"]
    assert set(cuda) <= set(SERVICES)
    for service in (*SERVICES.values(), *cuda.values()):
        if "build" in service:
            assert f" AS {service['build']['target']}\n" in image()
        assert "." not in service["image"].split("/")[0].split(":")[0]


def test_prometheus_reads_the_key_that_is_made_for_it() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text())
    (scrape,) = config["scrape_configs"]
    path = scrape["authorization"]["credentials_file"]
    folder = path.rpartition("/")[0]
    assert path in SERVICES["key"]["command"][-1]
    assert f"key:{folder}" in SERVICES["key"]["volumes"]
    assert f"key:{folder}:ro" in SERVICES["prometheus"]["volumes"]
    assert f"--mode=0755 {folder}" in image(), "another user reads it there"
    (discovered,) = scrape["dns_sd_configs"]
    assert discovered["names"] == ["web"] and discovered["port"] == 8642
