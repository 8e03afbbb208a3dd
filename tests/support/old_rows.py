"""Rows as earlier revisions of the database have them, with the columns of each revision."""

from __future__ import annotations

import base64
import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy import Connection

from mcfuser.tune.tried import Tried, to_json
from tests.support.kernels import tuned

REVISIONS = tuple(f"{n:04}" for n in range(1, 15))
START = datetime(2026, 1, 1, tzinfo=UTC)
STATES = ("queued", "running", "done", "failed", "cancelled")
JOBS = {state: UUID(int=i) for i, state in enumerate(STATES, 1)}
REPORT = {"b": [0.1 + 0.2, None], "a": {"µ": True}}
PROBLEM = {
    "type": "urn:mcfuser:problem:gave-up", "title": "The job was given up", "status": 422,
    "detail": "no",
}  # fmt: skip
"""Its status was 500 before revision 0013."""
LONG = "model/" + "layer/" * 500
"""The name of a chain in a compiled model."""
KEPT = tuned("1")
PLACE = hashlib.sha256(LONG.encode()).hexdigest()
INTERRUPTED = "2" * 64
"""The key of a search that has kept a candidate and no kernel."""
TRIED = Tried("a0a1", {"a0": 16}, None, 1, True, {"rows": 8}, 1e-6, 1e-7)

_MOMENT, _JSON, _UUID = sa.DateTime(timezone=True), sa.JSON(), sa.Uuid()
# table: the revision that added columns, and their names
COLUMNS: dict[str, dict[str, str]] = {
    "jobs": {
        "0001": """id work model model_bytes device options state stage done total attempts worker
            claim lease created started finished module module_bytes report problem""",
        "0003": "due interrupted",
        "0005": "name priority version progress expected removed",
        "0007": "attestation",
        "0008": "api_key shared",
    },
    "kernels": {
        "0001": """key chain chain_key device expression measured predicted created document
            binary""",
        "0004": "made",
        "0011": "dtype seconds label",
    },
    "probes": {"0002": "device readings conditions created"},
    "kernel_uses": {"0004": "chain_key place kernel", "0009": "created", "0013": "device"},
    "job_lines": {"0005": "job number moment words"},
    "idempotency_keys": {"0005": "key request job created"},
    "webhooks": {"0005": "id job url state attempts due created"},
    "candidates": {"0006": "key chain_key device created count document", "0009": "open"},
    "api_keys": {
        "0008": "id name hash scopes requests period queued disk created expires revoked used",
    },
    "workers": {"0012": "name revision started seen"},
    "figures": {"0012": "name label bound count total"},
    "job_events": {"0014": "job version moment total document"},
}
SEARCHED: dict[str, Any] = {
    "dtype": "float32", "seconds": KEPT.seconds,
    "label": f"{KEPT.chain.name}\x1f{KEPT.device}\x1ffloat32".lower(),
}  # fmt: skip
"""What revision 0011 has added to the kernel."""
ADDED: dict[str, dict[str, Any]] = {
    "jobs": {"interrupted": 0, "priority": 0, "version": 1, "shared": False},
    "kernels": SEARCHED,
    "kernel_uses": {"created": START, "device": KEPT.device},
}
"""What columns that a later revision has added hold of earlier rows; the others hold null, and
`candidates.open` depends on the row."""
_TYPES: dict[str, Any] = {
    **dict.fromkeys(("id", "claim", "job"), _UUID),
    **dict.fromkeys(
        ("options", "report", "problem", "progress", "document", "made", "readings", "conditions",
         "scopes"), _JSON,
    ),
    **dict.fromkeys(
        ("lease", "created", "started", "finished", "due", "expected", "removed", "moment",
         "expires", "revoked", "used", "seen"), _MOMENT,
    ),
}  # fmt: skip


def insert(connection: Connection, revision: str) -> None:
    """Fills the tables of a database that is at a revision."""
    for table, names in columns(revision).items():
        into = _typed(table, names)
        for row in ROWS[table]:
            values = {n: row.get(n, _unset(_kinds(table).get(n))) for n in names}
            if row.get("problem") is not None and revision < "0013":
                values["problem"] = PROBLEM | {"status": 500}
            connection.execute(into.insert().values(values))


def columns(revision: str) -> dict[str, list[str]]:
    """The columns of each table at a revision."""
    found = {
        table: [n for r, words in added.items() if r <= revision for n in words.split()]
        for table, added in COLUMNS.items()
    }
    return {table: names for table, names in found.items() if names}


def read(connection: Connection, revision: str) -> dict[str, list[dict[str, Any]]]:
    """All rows of the tables that there are at a revision, with the columns of that revision, in
    the order of ROWS."""
    found: dict[str, list[dict[str, Any]]] = {}
    for table, names in columns(revision).items():
        query = sa.select(_typed(table, names))
        order = [sa.column(n) for n in ("id", "key", "number", "version", "name") if n in names]
        rows = connection.execute(query.order_by(*order)).mappings()
        found[table] = [{n: _in_utc(v) for n, v in row.items()} for row in rows]
    return found


def _in_utc(value: Any) -> Any:
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) else value


def _typed(table: str, names: list[str]) -> sa.TableClause:
    kinds = _kinds(table)
    return sa.table(table, *(sa.column(n, kinds.get(n)) for n in names))


def _kinds(table: str) -> dict[str, Any]:
    return (
        _TYPES
        | ({"id": sa.String()} if table == "api_keys" else {})
        | ({"started": _MOMENT} if table in ("jobs", "workers") else {})
    )


def _unset(kind: Any) -> Any:
    return sa.null() if kind is _JSON else None


def _job(state: str) -> dict[str, Any]:
    number = STATES.index(state)
    created = START + timedelta(hours=number)
    row: dict[str, Any] = {
        "id": JOBS[state], "work": str(number) * 64, "model": "b" * 64, "model_bytes": 7,
        "device": "cpu", "options": {"seed": 0, "shape": ["x=1x2"]}, "state": state, "stage": "",
        "done": 3, "total": 4, "attempts": int(state != "queued"), "created": created,
        "interrupted": 0, "priority": number, "version": 5, "shared": False,
        "name": f"the {state} one", "api_key": "0" * 12,
    }  # fmt: skip
    if state in ("done", "failed", "cancelled"):
        row |= {"started": created, "finished": created + timedelta(minutes=1)}
    if state == "running":
        row |= {"worker": "w", "claim": UUID(int=99), "lease": START + timedelta(days=9000)}
    if state == "done":
        row |= {"module": "c" * 64, "module_bytes": 3, "report": REPORT, "attestation": "{}\n"}
    if state == "failed":
        row |= {"problem": PROBLEM}
    return row


def _kernel() -> dict[str, Any]:
    document = KEPT.to_json()
    return {
        "key": KEPT.key, "chain": KEPT.chain.name, "chain_key": KEPT.chain.key,
        "device": KEPT.device, "expression": KEPT.expression, "measured": KEPT.measured,
        "predicted": KEPT.predicted, "created": START, "made": document["made"],
        "binary": base64.b64decode(document.pop("binary")), "document": document,
        **SEARCHED,
    }  # fmt: skip


def _batch(key: str) -> dict[str, Any]:
    return {
        "key": key, "chain_key": KEPT.chain.key, "device": "cpu", "created": START, "count": 1,
        "document": to_json([TRIED]), "open": key != KEPT.key,
    }  # fmt: skip


ROWS: dict[str, list[dict[str, Any]]] = {
    "jobs": [_job(state) for state in STATES],
    "kernels": [_kernel()],
    "probes": [{"device": "nvidia/l4", "readings": {"turn": 2e-6}, "conditions": {},
                "created": START}],
    "kernel_uses": [{"chain_key": "d" * 64, "place": PLACE, "kernel": KEPT.key, "created": START,
                     "device": KEPT.device}],
    "job_lines": [{"job": JOBS["done"], "number": n, "moment": START, "words": f"line {n}"}
                  for n in (1, 2)],
    "job_events": [{"job": JOBS["running"], "version": n, "moment": START, "total": 18 * n,
                    "document": '{"state":"running"}'} for n in (4, 5)],
    "idempotency_keys": [{"key": "e" * 64, "request": "f" * 64, "job": JOBS["done"],
                          "created": START}],
    "webhooks": [{"id": UUID(int=7), "job": JOBS["done"], "url": "https://ci.example/hook",
                  "state": "waiting", "attempts": 1, "due": START, "created": START}],
    "candidates": [_batch(KEPT.key), _batch(INTERRUPTED)],
    "api_keys": [{"id": "0" * 12, "name": "ci", "hash": "a" * 64, "scopes": ["read"],
                  "created": START, "queued": 20}],
    "workers": [{"name": "w", "revision": "1", "started": START, "seen": START}],
    "figures": [{"name": "stages", "label": "import", "bound": "2", "count": 3, "total": 4.5}],
}  # fmt: skip
