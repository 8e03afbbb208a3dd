"""The migrations lead to the models, from nothing and back."""

import json
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect, text

from mcfuser.devices.catalogue import device_named
from mcfuser.errors import InputError
from mcfuser_db import KeyedRequest, Storage, migrations
from mcfuser_db.api_keys import api_keys
from mcfuser_db.engine import connect, upgrade, writing
from mcfuser_db.engine import migrations as config_of
from mcfuser_db.models import Base
from mcfuser_db.webhooks import take_due
from tests.support import old_rows as rows
from tests.support.clock import Clock
from tests.support.db_storages import fresh
from tests.support.kernels import tuned


def test_models_and_migrations_agree(url: str) -> None:
    engine = connect(url)
    upgrade(engine)
    with engine.begin() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
        found = {i["name"] for i in inspect(connection).get_indexes("jobs")}
        assert found == {i.name for i in Base.metadata.tables["jobs"].indexes}
    engine.dispose()


def test_upgrading_twice_changes_nothing(tmp_path: Path) -> None:
    engine = connect(f"sqlite:///{tmp_path / 'x.db'}")
    upgrade(engine)
    upgrade(engine)
    with engine.begin() as connection:
        assert connection.scalar(text("SELECT count(*) FROM alembic_version")) == 1
    engine.dispose()


def test_a_newer_database_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    engine = connect(url)
    upgrade(engine)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'future'"))
    engine.dispose()
    with pytest.raises(InputError, match="newer mcfuser"):
        Storage(url)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite:////nowhere/at/all.db", "unable to open"),
        ("no url", "cannot be read"),
        ("oracle+nodriver://x", "cannot be read"),
        ("sqlite:////proc/version", "cannot be used"),
    ],
)
def test_a_database_that_cannot_be_used_is_one_sentence(url: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        Storage(url)
    assert "\n" not in str(caught.value)


def test_sqlite_is_set_up_for_many_processes(tmp_path: Path) -> None:
    engine = connect(f"sqlite:///{tmp_path / 'x.db'}")
    with engine.begin() as connection:
        told = {p: connection.scalar(text(f"PRAGMA {p}"))
                for p in ("journal_mode", "foreign_keys", "busy_timeout")}  # fmt: skip
    assert told == {"journal_mode": "wal", "foreign_keys": 1, "busy_timeout": 30000}
    engine.dispose()


def test_every_revision_is_in_the_contract() -> None:
    folder = Path(migrations.__file__).parent / "versions"
    assert {p.name[:4] for p in folder.glob("0*.py")} == set(rows.REVISIONS)


@pytest.mark.parametrize("revision", rows.REVISIONS)
@pytest.mark.parametrize("kind", ["file", "postgresql"])
def test_what_an_earlier_revision_has_kept_is_read_as_before(
    kind: str, revision: str, tmp_path: Path
) -> None:
    with fresh(kind, tmp_path) as url:
        engine = connect(url)
        upgrade(engine, revision)
        with engine.begin() as connection:
            rows.insert(connection, revision)
        engine.dispose()
        clock = Clock()
        with closing(Storage(url, clock)) as store:
            check_jobs(store, revision)
            check_kernels(store, revision)
            if revision >= "0005":
                check_what_hangs_on_jobs(store, clock)
            if revision >= "0008":
                (key,) = api_keys(store)
                assert (key.id, key.name, key.scopes, key.queued) == ("0" * 12, "ci", ["read"], 20)
            check_that_work_goes_on(store)


def check_jobs(store: Storage, revision: str) -> None:
    assert store.counts() == dict.fromkeys(rows.STATES, 1)
    assert [j.id for j in store.jobs()] == [rows.JOBS[s] for s in reversed(rows.STATES)]
    found = {state: store.job(id) for state, id in rows.JOBS.items()}
    for state, job in found.items():
        assert job is not None and (job.state, job.model_bytes, job.done) == (state, 7, 3)
        assert job.options == {"seed": 0, "shape": ["x=1x2"]} and job.removed is None
        named = (f"the {state} one", rows.STATES.index(state), 5)
        assert (job.name, job.priority, job.version) == (
            named if revision >= "0005" else (None, 0, 1)
        )
        assert job.api_key == ("0" * 12 if revision >= "0008" else None)
    done, failed = found["done"], found["failed"]
    assert done is not None and json.dumps(done.report) == json.dumps(rows.REPORT)
    assert done.module == "c" * 64 and done.finished == done.created + timedelta(minutes=1)
    assert failed is not None and failed.problem == rows.PROBLEM
    assert store.attestation(done.id) == ("{}\n" if revision >= "0007" else None)
    assert (live := store.live("2" * 64)) is not None and live.id == done.id


def check_kernels(store: Storage, revision: str) -> None:
    kept = rows.KEPT
    assert store.kernel_count() == 1 and store.get(kept.key) == kept
    for device, chain in ((None, None), ("cpu", None), (None, kept.chain.name),
                          ("cpu", kept.chain.key)):  # fmt: skip
        assert [k.key for k in store.kernels(device, chain)] == [kept.key]
    assert store.keys_of(kept.chain.key) == ([kept.made] if revision >= "0004" else [])
    used = [kept.key] if revision >= "0004" else []
    for chain in (rows.LONG, "d" * 64):
        assert [k.key for k in store.kernels(chain=chain)] == used
    tried = [rows.TRIED] if revision >= "0006" else []
    assert store.tried(kept.key) == store.tried(rows.INTERRUPTED) == tried
    assert [u.key for u in store.unfinished()] == ([rows.INTERRUPTED] if tried else [])
    l4 = device_named("l4")
    probed = replace(l4, readings=(("turn", 2e-6),)) if revision >= "0002" else l4
    assert store.probed(l4) == probed


def check_what_hangs_on_jobs(store: Storage, clock: Clock) -> None:
    done = rows.JOBS["done"]
    assert [line.words for line in store.log(done).lines] == ["line 1", "line 2"]
    same = store.keyed(KeyedRequest("e" * 64, "f" * 64, 60.0))
    assert same is not None and same.id == done
    clock.wait(1)
    ((webhook, job),) = take_due(store, 10, 60)
    assert (webhook.url, webhook.attempts, job.id) == ("https://ci.example/hook", 2, done)


def check_that_work_goes_on(store: Storage) -> None:
    assert store.held(UUID(int=99)) and store.cancel(rows.JOBS["running"])
    job = store.claim("w", 60)
    assert job is not None and job.id == rows.JOBS["queued"]
    assert store.finish(job.claim, "d" * 64, 1, {})
    assert store.counts() == {"queued": 0, "running": 0, "done": 2, "failed": 1, "cancelled": 2}
    store.put(rows.KEPT)
    store.put(tuned("3"))
    assert store.kernel_count() == 2 and store.prune([rows.KEPT.key]) == 1
    assert store.kernel_count() == 1 and store.kernels(chain=rows.LONG) == []


@pytest.mark.parametrize("kind", ["file", "postgresql"])
def test_downgrades_lead_back(kind: str, tmp_path: Path) -> None:
    with fresh(kind, tmp_path) as url:
        engine = connect(url)
        upgrade(engine)
        with engine.begin() as connection:
            rows.insert(connection, rows.REVISIONS[-1])
        for revision in reversed(rows.REVISIONS[:-1]):
            with writing(engine).begin() as connection:
                command.downgrade(config_of(connection), revision)
        with engine.begin() as connection:
            assert connection.scalar(text("SELECT count(*) FROM jobs")) == len(rows.STATES)
        upgrade(engine)
        engine.dispose()
        with closing(Storage(url)) as store:
            check_jobs(store, "0001")
