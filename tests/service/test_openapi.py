"""/openapi.json says what is served: documents, problems, HEAD, the names in queries."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from mcfuser.devices.catalogue import device_named
from mcfuser.finite import finite
from mcfuser.tune.tuned import MemoryCache, TuneOptions
from mcfuser_db import Blobs, KeyGrant, Storage
from mcfuser_db.api_keys import make_key
from mcfuser_service.app import create_app
from mcfuser_service.documents import KernelDocument, Problem, Report
from mcfuser_service.problems import KINDS
from mcfuser_service.settings import ServiceSettings
from tests.support.kernels import tuned
from tests.support.paths import FIXTURES

METHODS = ("get", "head", "post", "delete")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    settings = ServiceSettings(data=tmp_path_factory.mktemp("data"))
    store = Storage(settings.database_url)
    app = create_app(settings, store, Blobs(settings.blobs), lambda: 1)
    text = make_key(store, KeyGrant("all", ("admin",)))[1]  # without one, keys are out of reach
    headers = {"Authorization": f"Bearer {text.words}"}
    with TestClient(app, base_url="http://localhost", headers=headers) as client:
        yield client
    store.close()


@pytest.fixture(scope="module")
def told(client: TestClient) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/openapi.json").json()
    return found


def operations(told: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, found in told["paths"].items():
        for method in METHODS:
            if method in found:
                yield path, method, found[method]


def references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def test_every_reference_leads_somewhere(told: dict[str, Any]) -> None:
    known = {f"#/components/schemas/{name}" for name in told["components"]["schemas"]}
    used = set(references(told))
    assert used <= known
    assert {"Problem", "Report", "Kernel", "JobOut"} <= {u.rpartition("/")[2] for u in used}


def test_every_error_is_a_documented_problem(told: dict[str, Any]) -> None:
    for path, method, operation in operations(told):
        found = {int(status) for status in operation["responses"]}
        assert {400, 401, 403, 421, 422, 429, 500, 503, 507} <= found, (path, method)
        for status, response in operation["responses"].items():
            if int(status) < 400 or method == "head":
                continue
            schema = response["content"]["application/problem+json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/Problem"}
    statuses = {p: {int(s) for s in o["responses"]} for p, m, o in operations(told) if m == "get"}
    assert {202, 413, 415} <= {int(s) for s in told["paths"]["/v1/jobs"]["post"]["responses"]}
    assert {404, 409} <= {int(s) for s in told["paths"]["/v1/jobs/{id}"]["delete"]["responses"]}
    assert {404, 409, 410, 422, 206, 304, 416} <= statuses["/v1/jobs/{id}/module"]
    assert {404, 409, 410, 422} <= statuses["/v1/jobs/{id}/report"]
    assert 404 in statuses["/v1/kernels/{key}"]


def test_every_kind_of_problem_is_documented(told: dict[str, Any]) -> None:
    words = json.dumps(told["paths"])
    assert [kind for kind in KINDS if f"`{kind}`" not in words] == []


def test_head_is_documented_wherever_get_is(told: dict[str, Any]) -> None:
    for path, found in told["paths"].items():
        assert ("head" in found) == ("get" in found), path
    ids = [o["operationId"] for _, _, o in operations(told)]
    assert len(ids) == len(set(ids))


def test_names_in_queries_are_those_that_are_taken(
    told: dict[str, Any], client: TestClient
) -> None:
    for path, method, operation in operations(told):
        if method not in ("get", "post"):
            continue
        there = path.replace("{id}", "00000000-0000-4000-8000-000000000000")
        there = there.replace("{key}", "0" * 64)
        body = b'{"name": "x"}' if path == "/v1/keys" else b"x"
        names = [p["name"] for p in operation.get("parameters", ()) if p["in"] == "query"]
        answer = client.request(method, f"{there}?no-such-name=1", content=body)
        assert answer.status_code == 422 and "no-such-name" in answer.json()["detail"], path
        for name in names:
            answer = client.request(method, f"{there}?{name}=%00", content=body)
            assert "is not known" not in answer.json()["detail"] or name == "device", (path, name)


def test_each_operation_says_which_scope_it_needs(told: dict[str, Any]) -> None:
    assert told["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    needs = {(p, m): operation["security"] for p, m, operation in operations(told)}
    assert needs["/healthz", "get"] == []
    assert needs["/v1/jobs", "post"] == [{"key": ["submit"]}, {}]
    assert needs["/v1/jobs/{id}", "head"] == [{"key": ["read"]}, {}]
    assert needs["/v1/keys", "get"] == [{"key": ["admin"]}]


def test_the_precision_of_a_job_is_documented(told: dict[str, Any], client: TestClient) -> None:
    parameters = told["paths"]["/v1/jobs"]["post"]["parameters"]
    (precision,) = (p for p in parameters if p["name"] == "precision")
    assert ["fp16", "bf16", "tf32"] in [one.get("enum") for one in precision["schema"]["anyOf"]]
    answer = client.post("/v1/jobs?precision=fp8", content=b"x")
    assert answer.status_code == 422
    assert [e["name"] for e in answer.json()["errors"]] == ["precision"]


def test_problems_are_as_documented(client: TestClient) -> None:
    for answer in (
        client.get("/v1/jobs?limit=0&state=x"), client.post("/v1/jobs"), client.get("/nowhere"),
        client.put("/v1/jobs"), client.get("/v1/jobs?x=1"), client.get("/", headers={"Host": "["}),
    ):  # fmt: skip
        found = Problem.model_validate(answer.json(), extra="forbid")
        assert found.status == answer.status_code


@pytest.fixture(scope="module")
def compiled() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A real report and the kernels that were tuned for it, as JSON gives them."""
    from mcfuser.compile import compile_model

    cache = MemoryCache()
    model = (FIXTURES / "attention_divide_after.onnx").read_bytes()
    options = TuneOptions(trials=2, timeout=60)
    made = compile_model(model, device_named("cpu"), cache, options, {})
    kernels = [tuned.to_json() for tuned in cache.kept.values()]
    return json.loads(json.dumps(finite(made.report))), json.loads(json.dumps(finite(kernels)))


def test_a_real_report_is_as_documented(
    compiled: tuple[dict[str, Any], list[dict[str, Any]]],
) -> None:
    report, kernels = compiled
    Report.model_validate(report, strict=True)
    ranged = {"extents", "buckets", "padding"}  # of models with run-time extents alone
    # of a job's compilation
    whole = {
        "check", "functions", "shapes", "model", "module", "revision", "built", "cache",
    }  # fmt: skip
    assert set(Report.model_fields) - ranged - whole <= set(report)
    assert report["chains"] and report["products"] and kernels
    for kernel in kernels:
        KernelDocument.model_validate(kernel, strict=True)
        served = {"occupancy"}  # told with the record, and not kept
        assert set(KernelDocument.model_fields) - served <= set(kernel)


def test_a_stored_kernel_is_served_as_documented(tmp_path: Path) -> None:
    settings = ServiceSettings(data=tmp_path)
    store = Storage(settings.database_url)
    app = create_app(settings, store, Blobs(settings.blobs), lambda: 1)
    key = "0" * 64
    store.put(replace(tuned(), key=key, error=float("inf")))
    with TestClient(app, base_url="http://localhost") as client:
        found = client.get(f"/v1/kernels/{key}")
    store.close()
    assert found.status_code == 200
    assert KernelDocument.model_validate(found.json(), strict=True).error is None
    assert set(KernelDocument.model_fields) <= set(found.json())
