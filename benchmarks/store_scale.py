"""How fast every query of the API is with 1,000,000 kernels and 100,000 jobs.

    python benchmarks/store_scale.py [--kernels 1000000] [--jobs 100000] [--whole 1] [--runs 3]
        [--calls 30] [--folder FOLDER] [--only sqlite|postgresql] [--results FILE]

Fills a SQLite file and a PostgreSQL server of its own (in --folder, about 20 GB each) with rows as
they were at revision 0008: kernels with documents and binaries of real sizes (of --whole tens one;
the others are short), the candidates of their searches, as many jobs that are over as there are
--jobs, and as many that wait. Upgrades it as a server does, has PostgreSQL vacuum it, and times
each query through the store and through the application, and each write: all of them one after
another, --calls of each, for as many --runs. The figures of a query are those of its run with the
lowest median, since others may use the machine. Prints a table and keeps it as JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fastapi.testclient import TestClient
from pydantic import SecretStr
from sqlalchemy import Engine, text

from mcfuser.chain import from_text
from mcfuser.devices.catalogue import HOST, device_named
from mcfuser.tune.tuned import MemoryCache, Tuned, TuneOptions
from mcfuser.tune.tuner import tune
from mcfuser_db import Blobs, Storage
from mcfuser_db.engine import connect, upgrade
from mcfuser_db.migrations import versions
from mcfuser_service.app import create_app
from mcfuser_service.settings import ServiceSettings
from store_queries import Queries, of_http, of_store, of_writers
from store_rows import Amounts, Template, fill, fill_events, kernel_key

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "store-scale.json"
BEFORE = "0008"
"""The revision whose columns are filled."""
GOAL = 50.0
"""Milliseconds within which a query is to be answered."""
CHAINS = (("gemm:1,512,256,64,64", HOST), ("attention:12,512,512,64,64", HOST),
          ("gemm:1,512,256,64,64", "nvidia/h200"))  # fmt: skip
"""What is tuned for the rows to be copied from; the last one has a binary."""


def templates() -> list[Tuned]:
    """Kernels as searches of one trial find them."""
    options = TuneOptions(trials=1)
    return [tune(from_text(c), device_named(d), MemoryCache(), options) for c, d in CHAINS]


@contextmanager
def databases(folder: Path, only: str | None) -> Iterator[dict[str, str]]:
    """The URLs of empty databases by their kinds."""
    sys.path.insert(0, str(HERE.parent))
    from tests.support.db_server import started

    urls = {}
    if only != "postgresql":
        urls["sqlite"] = f"sqlite:///{folder / 'scale.db'}"
    if only != "sqlite":
        urls["postgresql"] = started(folder)
    yield urls


def quantile(times: Sequence[float], share: float) -> float:
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def timed(call: Callable[[int], object], calls: int, first: int) -> list[float]:
    """The milliseconds of each call."""
    times = []
    for i in range(first, first + calls):
        start = time.perf_counter()
        call(i)
        times.append(1e3 * (time.perf_counter() - start))
    return times


def measured(queries: Queries, calls: int, runs: int) -> dict[str, dict[str, float]]:
    """The median and the 99th percentile of each query, in milliseconds, of its best run."""
    best: dict[str, list[float]] = {}
    for run in range(runs):
        for name, call in queries.items():
            times = timed(call, calls, run * calls)
            if name not in best or quantile(times, 0.5) < quantile(best[name], 0.5):
                best[name] = times
    return {
        name: {"p50": round(quantile(t, 0.5), 2), "p99": round(quantile(t, 0.99), 2)}
        for name, t in best.items()
    }


def beside_prune(store: Storage, keys: Sequence[str]) -> dict[str, float]:
    """How long claims take while many kernels are removed, and how long that takes."""
    times: list[float] = []
    thread = threading.Thread(target=store.prune, args=(keys,))
    start = time.perf_counter()
    thread.start()
    while thread.is_alive():
        times += timed(lambda i: store.claim("w", 3600), 1, 0)
        time.sleep(0.005)
    thread.join()
    seconds = round(time.perf_counter() - start, 1)
    return {"kernels": len(keys), "seconds": seconds, "claim p50": round(quantile(times, 0.5), 2),
            "claim p99": round(quantile(times, 0.99), 2)}  # fmt: skip


def bench(kind: str, url: str, folder: Path, amounts: Amounts, options: Any) -> dict[str, Any]:
    """All figures of one database."""
    made = templates()
    engine = connect(url)
    upgrade(engine, BEFORE)
    start = time.perf_counter()
    fill(engine, amounts, [Template.of(t) for t in made])
    filled = time.perf_counter() - start
    size = _bytes(engine, folder)
    print(f"{kind}: filled in {filled:.0f} s, {size / 1e9:.1f} GB", flush=True)
    upgraded = {revision: _upgraded(engine, revision) for revision in revisions()}
    print(f"{kind}: upgraded in {upgraded} s", flush=True)
    fill_events(engine, amounts)
    vacuumed = _vacuumed(engine)
    engine.dispose()
    settings = ServiceSettings(data=folder, workers=0, database=SecretStr(url))
    with closing(Storage(url)) as store:
        app = create_app(settings, store, Blobs(settings.blobs), lambda: 1)
        with TestClient(app, base_url="http://localhost") as client:
            reads = measured(of_store(store, amounts), options.calls, options.runs)
            http = measured(of_http(client, amounts), options.calls, options.runs)
        writes = measured(of_writers(store, amounts, made[0]), options.calls, options.runs)
        some = [kernel_key(i) for i in range(5, amounts.kernels, 10)][:10_000]
        prune = beside_prune(store, some)
    return {
        "fill_s": round(filled, 1), "bytes": size, "upgrade_s": upgraded,
        "vacuum_s": vacuumed, "store": reads, "http": http, "writes": writes, "beside_prune": prune,
    }  # fmt: skip


def revisions() -> list[str]:
    """Those after BEFORE, in their order."""
    folder = Path(versions.__file__).parent
    return sorted(p.name[:4] for p in folder.glob("0*.py") if p.name[:4] > BEFORE)


def _upgraded(engine: Engine, revision: str) -> float:
    """The seconds of an upgrade to the next revision."""
    start = time.perf_counter()
    upgrade(engine, revision)
    return round(time.perf_counter() - start, 1)


def _vacuumed(engine: Engine) -> float:
    """The seconds of what a PostgreSQL server's autovacuum does in the minutes after an upgrade."""
    start = time.perf_counter()
    if engine.dialect.name == "postgresql":
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("VACUUM (ANALYZE)"))
    return round(time.perf_counter() - start, 1)


def _bytes(engine: Any, folder: Path) -> int:
    if engine.dialect.name == "sqlite":
        return sum(p.stat().st_size for p in folder.glob("scale.db*"))
    with engine.connect() as connection:
        return int(connection.scalar(text("SELECT pg_database_size(current_database())")))


def show(result: dict[str, Any]) -> None:
    kinds = list(result["databases"])
    print(f"{'ms':44}" + "".join(f"{k + ' p50':>16}{'p99':>9}" for k in kinds))
    for part in ("store", "http", "writes"):
        print(f"{part}:")
        for name in result["databases"][kinds[0]][part]:
            rows = [result["databases"][k][part][name] for k in kinds]
            slow = "  <- slow" if any(r["p50"] > GOAL for r in rows) else ""
            print(f"  {name:42}" + "".join(f"{r['p50']:16}{r['p99']:9}" for r in rows) + slow)
    for kind in kinds:
        found = result["databases"][kind]
        print(f"{kind}: {found['bytes'] / 1e9:.1f} GB, upgraded from {BEFORE} in "
              f"{found['upgrade_s']} s, vacuumed in {found['vacuum_s']} s; "
              f"beside a prune: {found['beside_prune']}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="the store with a million kernels")
    parser.add_argument("--kernels", type=int, default=1_000_000)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--whole", type=int, default=1)
    parser.add_argument("--calls", type=int, default=30)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--only", choices=("sqlite", "postgresql"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    amounts = Amounts(options.kernels, options.jobs, options.jobs, options.whole)
    result: dict[str, Any] = {
        "when": f"{datetime.now(UTC):%Y-%m-%d}", "kernels": amounts.kernels,
        "jobs_over": amounts.over, "jobs_queued": amounts.queued, "databases": {},
    }  # fmt: skip
    with TemporaryDirectory(
        prefix="mcfuser-scale-", dir=options.folder, ignore_cleanup_errors=True
    ) as name:  # PostgreSQL ends, and removes its folder, after this one
        folder = Path(name)
        folder.chmod(0o755)  # PostgreSQL does not run as root
        with databases(folder, options.only) as urls:
            for kind, url in urls.items():
                result["databases"][kind] = bench(kind, url, folder, amounts, options)
                if kind == "sqlite":
                    for path in folder.glob("scale.db*"):
                        path.unlink()
    show(result)
    options.results.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
