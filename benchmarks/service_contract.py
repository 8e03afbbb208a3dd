"""Does the server answer as its /openapi.json says? Schemathesis asks it.

    python benchmarks/service_contract.py [--seconds 300] [--seed 0] [--results FILE]

Starts `mcfuser serve` on an empty folder, once without and once with API keys, compiles a small
model there, cancels another job, and lets Schemathesis make requests for half of --seconds each:
those at the borders of every parameter (coverage), random ones (fuzzing), and sequences in which
one request uses what another was answered (stateful). Requests that /openapi.json allows must be
accepted, others refused; every answer must have a documented status, content type, schema and
headers, a path must refuse methods that it does not have, with Allow, and nothing may be
answered with a status of 5xx. What was asked and what was wrong is kept; the exit status is 1 where
anything was.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import schemathesis
from hypothesis import strategies as st
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import events, from_schema

from mcfuser_db import KeyGrant, Storage
from mcfuser_db.api_keys import make_key
from service_load import model, served

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "service-contract.json"
PHASES = ("coverage", "fuzzing", "stateful")
UNSEEN = {
    "POST /v1/jobs": "no schema says which bytes are a model, and which inputs it has",
    "POST /v1/keys": "no schema says which rates, sizes and times there are",
    "POST /v1/kernels": "no schema says which bytes are a file of kernels",
    "DELETE /v1/kernels": "no schema says that one condition is needed",
    **{
        f"{method} /v1/kernels": "no schema says that the kernels of one chain have one order"
        for method in ("GET", "HEAD")
    },
    **{
        f"{method} /v1/kernels/explain": "no schema says which chains and devices there are"
        for method in ("GET", "HEAD")
    },
    **{
        f"{method} /v1/jobs/{{id}}/{part}": "a job that failed answers with its own problem"
        for method in ("GET", "HEAD")
        for part in ("module", "report", "attestation")
    },
}
"""Operations that may answer 422 to what their schema allows, and why."""


@dataclass(frozen=True)
class Known:
    """What there is on a server: ids of jobs and keys, keys of kernels, and models that it takes.
    `keep` is the id of the key that requests are sent with, which is not to be revoked."""

    jobs: Sequence[str]
    kernels: Sequence[str]
    keys: Sequence[str]
    models: Sequence[bytes]
    key: str | None = None
    keep: str | None = None


@dataclass(frozen=True)
class Explored:
    """The number of answers by phase and status, what was wrong with some of them, by check and
    operation with the first example, and errors of Schemathesis itself."""

    answers: Mapping[str, int]
    failures: Sequence[Mapping[str, Any]]
    errors: Sequence[str]


def configured(known: Known, seed: int, seconds: int | None, examples: int) -> SchemathesisConfig:
    """The configuration of Schemathesis; without `seconds` every phase runs once."""
    names = {"jobs": "path.id", "keys": "path.id", "kernels": "path.key"}
    given = {"jobs": known.jobs, "keys": known.keys, "kernels": known.kernels}
    operations: list[dict[str, Any]] = [
        {"include-path-regex": f"^/v1/{kind}/",
         "parameters": {name: {"dictionary": kind, "probability": 0.7}}}
        for kind, name in names.items()
    ]  # fmt: skip
    operations += [
        {"include-name": name, "checks": {"positive_data_acceptance": {
            "expected-statuses": ["2xx", "304", "401", "403", "404", "409", "410", "422"]}}}
        for name in UNSEEN
    ]  # fmt: skip
    return SchemathesisConfig.from_dict(
        {
            "seed": seed,
            **({"max-time": seconds} if seconds is not None else {}),
            "max-stream-events": 3,
            "request-timeout": 90,
            "continue-on-failure": True,
            "suppress-health-check": ["all"],
            "generation": {"max-examples": examples, "no-shrink": True, "database": "none",
                           "deterministic": seconds is None},
            "phases": {name: {"enabled": name in PHASES} for name in (*PHASES, "examples")},
            "dictionaries": {kind: {"values": list(values)} for kind, values in given.items()},
            "operations": operations,
            "cache": {"enabled": False},
            "checks": {
                # DELETE cancels a job, and revokes a key: both are still there
                "use_after_free": {"enabled": False},
                "positive_data_acceptance": {
                "expected-statuses": ["2xx", "304", "401", "403", "404", "409", "410"]}},
            **({"auth": {"openapi": {"key": {"bearer": known.key}}}} if known.key else {}),
        }
    )  # fmt: skip


def explored(schema: Any, known: Known) -> Explored:
    """What Schemathesis finds with a schema (schemathesis.openapi.from_…), as configured."""
    bodies = st.sampled_from(list(known.models)) | st.binary(max_size=64)
    for kind in ("application/octet-stream", "application/x-ndjson"):
        schemathesis.openapi.media_type(kind, bodies)

    def filter_case(context: Any, case: Any) -> bool:  # the name is Schemathesis's
        if case.method == "DELETE" and case.path == "/v1/kernels":
            return (case.query or {}).get("dry_run") in (True, "true")  # others need the kernels
        revokes = case.method == "DELETE" and case.path.startswith("/v1/keys/")
        return not (revokes and (case.path_parameters or {}).get("id") == known.keep)

    schema.hook(filter_case)
    answers: Counter[str] = Counter()
    failures: dict[tuple[str, str, str], dict[str, Any]] = {}
    errors = []
    for event in from_schema(schema).execute():
        if isinstance(event, events.ScenarioFinished):
            seen = event.recorder
            for one in seen.interactions.values():
                status = one.response.status_code if one.response is not None else "none"
                answers[f"{event.phase.value} {status}"] += 1
            for id, checks in seen.checks.items():
                for check in checks:
                    if check.failure_info is None:
                        continue
                    told = check.failure_info
                    name = seen.cases[id].value.operation.label
                    example = {
                        "message": told.failure.message[:1000],
                        "request": told.code_sample[:1000],
                    }
                    key = (check.name, name, told.failure.title)
                    failures.setdefault(
                        key,
                        {
                            "check": key[0],
                            "operation": key[1],
                            "what": key[2],
                            **example,
                            "times": 0,
                        },
                    )["times"] += 1
        elif isinstance(event, events.NonFatalError):
            errors.append(repr(event.value))
        elif isinstance(event, events.FatalError):
            errors.append(repr(event.exception))
    return Explored(dict(sorted(answers.items())), list(failures.values()), errors)


def asked(
    port: int, path: str, key: str | None, body: bytes | None = None, method: str | None = None
) -> Any:
    headers = {"Authorization": f"Bearer {key}"} if key is not None else {}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, headers, method=method)
    with urllib.request.urlopen(request, timeout=120) as found:
        return json.loads(found.read() or "null")


def prepared(port: int, folder: Path, key: str | None, keep: str | None) -> Known:
    """A done job with its kernels, and a cancelled one."""
    small = model(folder / "small.onnx", HERE.parent, 64, 1)
    done = asked(port, "/v1/jobs?trials=1&timeout=10m", key, small)["id"]
    cancelled = asked(port, "/v1/jobs?reuse=never", key, small)["id"]
    asked(port, f"/v1/jobs/{cancelled}", key, method="DELETE")
    while asked(port, f"/v1/jobs/{done}?wait=20", key)["state"] not in ("done", "failed"):
        pass
    kernels = [one["key"] for one in asked(port, "/v1/kernels", key)["items"]]
    keys = [one["id"] for one in asked(port, "/v1/keys", key)] if key is not None else []
    return Known([done, cancelled], kernels or ["0" * 64], keys or ["0" * 12], [small], key, keep)


def bench(with_keys: bool, seconds: int, seed: int) -> dict[str, Any]:
    """A server that wants keys, or one that does not, explored for so many seconds."""
    key = keep = None
    with TemporaryDirectory(prefix="mcfuser-contract-") as name:
        folder = Path(name)
        if with_keys:
            store = Storage(f"sqlite:///{folder / 'mcfuser.db'}")
            row, text = make_key(store, KeyGrant("contract", ("admin",)))
            make_key(store, KeyGrant("reader", ("read",)))
            store.close()
            key, keep = text.words, row.id
            os.environ["MCFUSER_REQUIRE_KEY"] = "1"
        try:
            with served(folder, HERE.parent, 1) as (port, _):
                known = prepared(port, folder, key, keep)
                config = configured(known, seed, seconds, 100)
                address = f"http://127.0.0.1:{port}/openapi.json"
                found = explored(schemathesis.openapi.from_url(address, config=config), known)
        finally:
            os.environ.pop("MCFUSER_REQUIRE_KEY", None)
    return {
        "keys": with_keys, "when": f"{datetime.now(UTC):%Y-%m-%d %H:%M}", "seed": seed,
        "seconds": seconds, "schemathesis": schemathesis.__version__,
        "requests": sum(found.answers.values()), "answers": found.answers,
        "failures": found.failures, "errors": found.errors,
    }  # fmt: skip


def show(result: Mapping[str, Any]) -> None:
    words = "with keys" if result["keys"] else "without keys"
    wrong = f"{len(result['failures'])} kinds of failures, {len(result['errors'])} errors"
    print(f"{words}: {result['requests']} requests in {result['seconds']} s, {wrong}")
    print("  " + ", ".join(f"{name}: {count}" for name, count in result["answers"].items()))
    for one in result["failures"]:
        print(f"  {one['check']}, {one['operation']}, {one['times']} times: {one['what']}")
        print(f"    {one['message']}\n    {one['request']}")
    for error in result["errors"]:
        print(f"  {error}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Schemathesis over /openapi.json")
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    results = []
    for with_keys in (False, True):
        results.append(bench(with_keys, options.seconds // 2, options.seed))
        show(results[-1])
    options.results.write_text(json.dumps(results, indent=1) + "\n")
    return 1 if any(r["failures"] or r["errors"] for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
