"""Fills a database of revision 0008 with many rows, for benchmarks/store_scale.py.

Kernels are copies of a few that were really tuned, under other keys, chains and devices. Each
document and each binary has the size of a real one, and a checksum that fits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Engine

from mcfuser.tune.tried import Tried, to_json
from mcfuser.tune.tuned import Tuned

START = datetime(2026, 1, 1, tzinfo=UTC)
POPULAR = "MatMul_0_MatMul_3"
"""The name of a chain of one kernel, and of one use, in a hundred."""
RARE = "nvidia/l4"
"""The device of one kernel in a thousand."""
DEVICES = ("nvidia/a100", "nvidia/h200", "cpu", "cpu", "cpu", "cpu", "cpu", "cpu", "cpu", "cpu")
KEYS = 8
"""API keys; the first one has posted every second job and may keep files of a limited size."""
LINES = 10
"""Lines of each job's log."""
EVENTS = 60
"""Events of each job that is over."""
_RUNNING = (
    '{"state":"running","stage":"measure chain 3 of 12","done":%d,"total":96,"attempts":1,'
    '"priority":0,"progress":{"stage":"measure","done":%d,"total":96,"compiled":70,"failed":3,'
    '"best":0.0000125,"chain":{"number":3,"of":12,"name":"attention_3"},"left":20.5},'
    '"started":"2026-01-01T00:00:00+00:00","expected":"2026-01-01T00:01:00+00:00"}'
)
_LAST = '{"state":"cancelled","stage":"","done":96,"total":96,"attempts":1,"priority":0}'
CHUNK = 1000
"""Kernels that are kept at the same moment, as those of an import are."""
Row = tuple[Any, ...]


@dataclass(frozen=True)
class Amounts:
    """How many kernels there are, how many jobs that are over, and how many that wait.

    Of every `whole` tens of kernels, and of reports, one ten has the size of real ones; the others
    are short.
    """

    kernels: int
    over: int
    queued: int
    whole: int = 1


@dataclass(frozen=True)
class Template:
    """A tuned kernel as text, in which a key is to be put in two places: the document as it is
    kept, and what its checksum is taken of."""

    kept: str
    summed: str
    binary: bytes
    made: str
    expression: str
    measured: float | None
    predicted: float

    @classmethod
    def of(cls, tuned: Tuned) -> Template:
        document = tuned.to_json()
        document["key"], document["checksum"] = "@key@", "@sum@"
        binary = document.pop("binary")
        summed = {k: v for k, v in document.items() if k != "checksum"}
        return cls(
            json.dumps(document), json.dumps(summed, sort_keys=True), tuned.binary,
            json.dumps(document["made"]), tuned.expression, tuned.measured, tuned.predicted,
        )._with(binary)  # fmt: skip

    def _with(self, binary: str) -> Template:
        # the checksum is of the sorted document followed by the binary in base64
        return Template(**{**self.__dict__, "summed": self.summed + binary})

    def document(self, key: str) -> str:
        digest = hashlib.sha256(self.summed.replace("@key@", key, 1).encode()).hexdigest()
        return self.kept.replace("@key@", key, 1).replace("@sum@", digest, 1)


def digest(words: str) -> str:
    return hashlib.sha256(words.encode()).hexdigest()


def kernel_key(i: int) -> str:
    return digest(f"kernel {i}")


def chain_key(i: int, amounts: Amounts) -> str:
    """The key of the chain of kernel i: four kernels have each."""
    return digest(f"chain {i % max(1, amounts.kernels // 4)}")


def chain_name(i: int, amounts: Amounts) -> str:
    number = i % max(1, amounts.kernels // 4)
    return POPULAR if i % 100 == 7 else f"model_{number // 24}/attention_{number % 24}"


def device_of(i: int) -> str:
    return RARE if i % 1000 == 999 else DEVICES[i % len(DEVICES)]


def job_id(i: int) -> UUID:
    return UUID(digest(f"job {i}")[:32])


def key_id(i: int) -> str:
    return f"{i:012x}"


def poster(i: int) -> str:
    return key_id(0 if i % 2 else i // 2 % KEYS)


def kernel_moment(i: int) -> datetime:
    return START + timedelta(seconds=20 * (i // CHUNK * CHUNK))


def tried(count: int) -> Sequence[Tried]:
    return [
        Tried("a0a1a3(a2)", {"a0": 16 * (i % 8 + 1), "a1": 64, "a2": 16 << i % 4}, None, 1, True,
              {"rows": i % 16, "unrolled": i // 16}, 1e-5 * (1 + i % 7), 1e-7)
        for i in range(count)
    ]  # fmt: skip


def fill(engine: Engine, amounts: Amounts, templates: Sequence[Template]) -> None:
    """Inserts all rows; the database is at revision 0008 and empty."""
    table = _Inserter(engine)
    table("kernels", "key chain chain_key device expression measured predicted created document "
          "binary made", _kernels(table, amounts, templates))  # fmt: skip
    table("candidates", "key chain_key device created count document", _batches(table, amounts))
    table("kernel_uses", "chain_key place kernel", _uses(amounts))
    table("api_keys", "id name hash scopes queued disk created", _keys(table))
    table("jobs", "id work model model_bytes device options name priority version state stage done "
          "total attempts created started finished module module_bytes report problem api_key "
          "interrupted shared", _jobs(table, amounts, templates))  # fmt: skip
    table("job_lines", "job number moment words", _lines(table, amounts))
    table("idempotency_keys", "key request job created", _idempotency(table, amounts))
    table("webhooks", "id job url state attempts due created", _webhooks(table, amounts))
    table.end()


class _Inserter:
    """Inserts rows as fast as a database takes them."""

    def __init__(self, engine: Engine) -> None:
        self._raw = engine.raw_connection()
        self._is_sqlite = engine.dialect.name == "sqlite"
        if self._is_sqlite:
            cursor = self._raw.cursor()
            for pragma in ("synchronous = OFF", "cache_size = -1000000", "journal_mode = OFF"):
                cursor.execute(f"PRAGMA {pragma}")

    def moment(self, moment: datetime) -> Any:
        return f"{moment:%Y-%m-%d %H:%M:%S.%f}" if self._is_sqlite else moment

    def uuid(self, id: UUID) -> Any:
        return id.hex if self._is_sqlite else id

    def __call__(self, table: str, words: str, rows: Iterator[Row]) -> None:
        columns = [f'"{word}"' for word in words.split()]
        cursor: Any = self._raw.cursor()
        if self._is_sqlite:
            marks = ", ".join("?" * len(columns))
            cursor.execute("BEGIN")
            cursor.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", rows)
        else:
            with cursor.copy(f"COPY {table} ({', '.join(columns)}) FROM STDIN") as copy:
                for row in rows:
                    copy.write_row(row)
        self._raw.commit()

    def end(self) -> None:
        """Does what a server's autovacuum would have done by now."""
        cursor = self._raw.cursor()
        if self._is_sqlite:
            cursor.execute("PRAGMA journal_mode = WAL")
        else:
            self._raw.driver_connection.autocommit = True  # type: ignore[union-attr]
            cursor.execute("VACUUM ANALYZE")
            cursor.execute("CHECKPOINT")
        self._raw.invalidate()


def _kernels(table: _Inserter, amounts: Amounts, templates: Sequence[Template]) -> Iterator[Row]:
    for i in range(amounts.kernels):
        key, chain = kernel_key(i), chain_key(i, amounts)
        device = device_of(i)
        template = templates[i % (len(templates) - 1)] if device == "cpu" else templates[-1]
        yield (
            key, chain_name(i, amounts), chain, device, template.expression,
            template.measured and template.measured * (1 + i % 97), template.predicted,
            table.moment(kernel_moment(i)), *_body(i, key, template, amounts), template.made,
        )  # fmt: skip


def _body(i: int, key: str, template: Template, amounts: Amounts) -> tuple[str, bytes]:
    if i // 10 % amounts.whole:
        return '{"short": true}', b""
    return template.document(key), template.binary


def _batches(table: _Inserter, amounts: Amounts) -> Iterator[Row]:
    """A batch of each kernel's search, a large one of every thousandth, and one in a thousand of a
    search that was interrupted."""
    few, many = (json.dumps(to_json(tried(n))) for n in (16, 300))
    for i in range(amounts.kernels):
        large = i % 1000 == 0
        yield (kernel_key(i), chain_key(i, amounts), device_of(i), table.moment(kernel_moment(i)),
               300 if large else 16, many if large else few)  # fmt: skip
        if i % 1000 == 500:
            yield (digest(f"interrupted {i}"), chain_key(i, amounts), device_of(i),
                   table.moment(kernel_moment(i)), 16, few)  # fmt: skip


def _uses(amounts: Amounts) -> Iterator[Row]:
    for i in range(amounts.kernels):
        place = POPULAR if i % 100 == 11 else f"zoo_{i // 24}/chain_{i % 24}"
        yield digest(f"whole {i // 2}"), digest(place), kernel_key(i)


def _keys(table: _Inserter) -> Iterator[Row]:
    for i in range(KEYS):
        disk = 10**15 if i == 0 else None
        scopes = '["submit", "read"]'
        yield key_id(i), f"key {i}", "0" * 64, scopes, None, disk, table.moment(START)


def _jobs(table: _Inserter, amounts: Amounts, templates: Sequence[Template]) -> Iterator[Row]:
    chains = [json.loads(templates[i % len(templates)].kept) for i in range(4)]
    report = json.dumps({"model": "model.onnx", "chains": chains})
    problem = json.dumps({"status": 422, "title": "the model is refused", "detail": "no"})
    options = json.dumps({"shape": ["x=1x128"], "seed": 0, "trials": None})
    for i in range(amounts.over + amounts.queued):
        state = "queued"
        if i < amounts.over:
            state = ("failed", "cancelled")[i % 2] if i % 10 < 2 else "done"
        over, done = state != "queued", state == "done"
        created = START + timedelta(seconds=60 * i)
        end = table.moment(created + timedelta(seconds=50)) if over else None
        yield (
            table.uuid(job_id(i)), digest(f"work {i}"), digest(f"file {i // 2}"), 1_000_000 + i,
            device_of(i), options, f"model {i % 500}", i % 3, EVENTS if over else 1, state, "", 10,
            10, int(over),
            table.moment(created), table.moment(created) if over else None, end,
            digest(f"file m{i}") if done else None, 2_000_000 if done else None,
            (report if i // 10 % amounts.whole == 0 else '{"chains": []}') if done else None,
            problem if state == "failed" else None, poster(i), 0,
            0 if table._is_sqlite else False,
        )  # fmt: skip


def _lines(table: _Inserter, amounts: Amounts) -> Iterator[Row]:
    words = "chain 3 of 12 'attention_3': 48 candidates measured, the best takes 12.5 us"
    for i in range(amounts.over):
        for number in range(1, LINES + 1):
            moment = table.moment(START + timedelta(seconds=60 * i + number))
            yield table.uuid(job_id(i)), number, moment, f"{number} {words}"


def fill_events(engine: Engine, amounts: Amounts) -> None:
    """Inserts EVENTS events of each job that is over; the database is at its newest revision."""
    table = _Inserter(engine)
    table("job_events", "job version moment total document", _events(table, amounts))
    table.end()


def _events(table: _Inserter, amounts: Amounts) -> Iterator[Row]:
    for i in range(amounts.over):
        total = 0
        for version in range(1, EVENTS + 1):
            document = _LAST if version == EVENTS else _RUNNING % (version, version)
            total += len(document)
            moment = table.moment(START + timedelta(seconds=60 * i + version / 2))
            yield table.uuid(job_id(i)), version, moment, total, document


def _idempotency(table: _Inserter, amounts: Amounts) -> Iterator[Row]:
    for i in range(amounts.over):
        moment = table.moment(START + timedelta(seconds=60 * i))
        yield digest(f"idempotent {i}"), digest(f"request {i}"), table.uuid(job_id(i)), moment


def _webhooks(table: _Inserter, amounts: Amounts) -> Iterator[Row]:
    for i in range(amounts.over):
        moment = table.moment(START + timedelta(seconds=60 * i))
        yield (table.uuid(UUID(digest(f"webhook {i}")[:32])), table.uuid(job_id(i)),
               "https://ci.example/hook", "delivered", 1, moment, moment)  # fmt: skip
