"""The migrations lead to the models, from nothing and back."""

import json
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, delete, func, inspect, select, text, update

from mcfuser.devices.catalogue import device_named
from mcfuser.errors import InputError
from mcfuser_db import KeyedRequest, Order, Storage, migrations
from mcfuser_db.api_keys import api_keys
from mcfuser_db.engine import connect, newest_revision, upgrade, writing
from mcfuser_db.engine import migrations as config_of
from mcfuser_db.models import Base, Job, KernelRow, KeyFile
from mcfuser_db.tallies import tallies, tally
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
    engine.dispose()


@pytest.mark.parametrize("kind", ["file", "postgresql"])
def test_migrations_make_what_the_models_make(kind: str, tmp_path: Path) -> None:
    """Defaults, and the columns and conditions of indexes, which Alembic does not compare."""
    with fresh(kind, tmp_path, empty=True) as url:
        engine = connect(url)
        upgrade(engine)
        with engine.begin() as connection:
            migrated = indexes(connection), defaults(connection)
        with engine.begin() as connection:
            Base.metadata.drop_all(connection)
            Base.metadata.create_all(connection)
            assert (indexes(connection), defaults(connection)) == migrated
        engine.dispose()


def defaults(connection: Connection) -> dict[tuple[str, str], str | None]:
    """The default of each column that the database itself fills, as the database tells it."""
    told = inspect(connection)
    return {
        (table, column["name"]): column["default"]
        for table in Base.metadata.tables
        for column in told.get_columns(table)
    }


def indexes(connection: Connection) -> dict[str, str]:
    """The definition of each index, by its name, as the database tells it."""
    query = "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'"
    if connection.dialect.name == "sqlite":
        query = "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
    told = connection.execute(text(query)).all()
    return {name: " ".join(sql.split()) for name, sql in told if not name.startswith("alembic")}


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


def test_a_new_file_that_another_process_writes_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")  # the journal cannot be chosen now, and SQLite says so at once
    with ThreadPoolExecutor(1) as pool:
        opened = pool.submit(Storage, f"sqlite:///{path}")
        assert wait([opened], timeout=0.2).not_done
        other.execute("COMMIT")
        opened.result(timeout=30).close()
    other.close()


def test_every_revision_is_in_the_contract() -> None:
    folder = Path(migrations.__file__).parent / "versions"
    assert {p.name[:4] for p in folder.glob("0*.py")} == set(rows.REVISIONS)


def test_the_newest_revision_is_the_one_that_no_other_follows() -> None:
    scripts = ScriptDirectory(str(Path(migrations.__file__).parent))
    assert newest_revision() == scripts.get_current_head()


def test_a_database_at_the_newest_revision_is_opened_without_alembic(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    Storage(url).close()
    code = (
        "import sys; from mcfuser_db import Storage; "
        f"Storage({url!r}).close(); print('alembic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.thorough
@pytest.mark.parametrize("revision", rows.REVISIONS)
@pytest.mark.parametrize("kind", ["file", "postgresql"])
def test_what_an_earlier_revision_has_kept_is_read_as_before(
    kind: str, revision: str, tmp_path: Path
) -> None:
    with fresh(kind, tmp_path, empty=True) as url:
        engine = connect(url)
        upgrade(engine, revision)
        with engine.begin() as connection:
            rows.insert(connection, revision)
            before = rows.read(connection, revision)
        upgrade(engine)
        with engine.begin() as connection:
            check_rows(connection, revision, before)
        engine.dispose()
        clock = Clock()
        with closing(Storage(url, clock)) as store:
            check_tallies(store)
            check_jobs(store, revision)
            check_kernels(store, revision)
            if revision >= "0005":
                check_what_hangs_on_jobs(store, clock)
            if revision >= "0008":
                (key,) = api_keys(store)
                assert (key.id, key.name, key.scopes, key.queued) == ("0" * 12, "ci", ["read"], 20)
            check_that_work_goes_on(store)
            check_tallies(store)
            check_that_tallies_follow(store)


def test_an_upgraded_postgresql_is_vacuumed(tmp_path: Path) -> None:
    """Its indexes answer alone as soon as it is upgraded."""
    seen = "SELECT relallvisible FROM pg_class WHERE relname = 'jobs'"
    with fresh("postgresql", tmp_path, empty=True) as url:
        engine = connect(url)
        upgrade(engine, "0010")
        with engine.begin() as connection:
            rows.insert(connection, "0010")
            assert connection.scalar(text(seen)) == 0
        upgrade(engine)
        with engine.begin() as connection:
            assert connection.scalar(text(seen)) > 0
        engine.dispose()


def check_rows(connection: Connection, revision: str, before: dict[str, Any]) -> None:
    """No row is lost, no value is another one, and columns that were added have their values."""
    for row in before["jobs"]:
        if row["problem"] is not None:
            row["problem"] = rows.PROBLEM
    assert rows.read(connection, revision) == before
    newest = rows.read(connection, rows.REVISIONS[-1])
    for table, names in rows.columns(revision).items():
        for row in newest[table]:
            found = {n: v for n, v in row.items() if n not in names}
            is_open = row.get("key") == rows.INTERRUPTED
            added = {"open": is_open} | rows.ADDED.get(table, {})
            assert found == {n: added.get(n) for n in found}, table


def check_tallies(store: Storage) -> None:
    """What triggers have counted is what there is."""
    with store.reading() as session:
        jobs = session.execute(select(Job.state, func.count()).group_by(Job.state)).all()
        kernels = session.scalar(select(func.count()).select_from(KernelRow))
        files: dict[tuple[str, str], int] = {}
        for job in session.scalars(select(Job).where(Job.removed.is_(None))):
            if job.api_key is not None:
                files[job.api_key, job.model] = job.model_bytes
                if job.module is not None:
                    files[job.api_key, job.module] = job.module_bytes or 0
        counted = {what: n for what, n in tallies(session).items() if n}
        assert counted == {"kernels": kernels} | {f"jobs.{state}": n for state, n in jobs}
        assert tally(session, "disk." + "0" * 12) == sum(files.values())
        kept = session.execute(select(KeyFile.api_key, KeyFile.file, KeyFile.bytes)).all()
        assert {(key, file): size for key, file, size in kept} == files


def check_that_tallies_follow(store: Storage) -> None:
    """Whatever changes the jobs of a key: a post, the removal of results and of jobs."""
    key = "0" * 12
    for work in "89":
        store.submit(Order(work * 64, work * 64, 100, "cpu", {}, api_key=key))
        store.submit(Order(f"{work}a" * 32, work * 64, 100, "cpu", {}, api_key=key))
    check_tallies(store)
    queued = [job for job in store.jobs("queued") if job.api_key == key]
    with store.writing() as session:
        results = {"removed": store.now(), "module": None}
        for job in (*store.jobs("done"), *queued[:3]):
            session.execute(update(Job).where(Job.id == job.id).values(results))
    check_tallies(store)
    with store.writing() as session:
        session.execute(delete(Job).where(Job.id == queued[3].id))
    check_tallies(store)


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
    with fresh(kind, tmp_path, empty=True) as url:
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
