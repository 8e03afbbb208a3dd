"""How fast a server answers 200 clients while it tunes four models.

    python benchmarks/service_load.py [--label WORDS] [--seconds 60] [--clients 200] [--jobs 4]
        [--pause 1] [--root CHECKOUT] [--results FILE] [--first]

Starts `mcfuser serve` (of another checkout with --root) on two cores and an empty folder, compiles
a small model for some kernels, copies their rows to KERNELS, and has as many workers tune BERT-like
models as there are --jobs. Meanwhile processes of cheap clients (service_clients.py), each in a
session of its own, do as real ones: they poll a job every --pause seconds (Retry-After says 1),
list kernels and fetch them whole, wait with `?wait=20`, and listen to events.

With --first (root only) the server, the clients and the tuning are less nice than all else on this
machine by 10, so that others' work disturbs as more tuning would. Without it the figures are those
of a machine that others use.

Prints for each kind of request how many were answered, p50, p99 and the longest, in milliseconds;
for a long poll that is the time beyond what it waits for, for a stream the time to its beginning.
Below that: errors, how late the clients themselves were, and for how long the web process ran and
waited for a core. A line of JSON with all this is added to the results.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sqlalchemy import insert, select

from mcfuser_db import KernelRow, Storage

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "service-load.jsonl"
KERNELS = 1000
"""Rows of kernels that are queried."""
SHARES = {"poll": 0.3, "list": 0.1, "kernel": 0.1, "health": 0.01, "metrics": 0.01,
          "wait": 0.24, "events": 0.24}  # fmt: skip
"""Of the clients, by what they do."""
PROCESSES = 2
"""Processes of clients."""
GOAL = 0.1
"""Seconds within which 99 of 100 requests of each kind are to be answered."""


def model(path: Path, root: Path, hidden: int, layers: int = 2) -> bytes:
    """A BERT-like model."""
    script = root / "examples" / "bert.py"
    words = ["--hidden", str(hidden), "--layers", str(layers), "--vocabulary", "50"]
    subprocess.run([sys.executable, str(script), str(path), *words], check=True,
                   stdout=subprocess.DEVNULL)  # fmt: skip
    return path.read_bytes()


def put_first(session: int) -> None:
    """Gives a session the niceness of its leader (sched(7), autogroups)."""
    niceness = os.getpriority(os.PRIO_PROCESS, session)
    if niceness < 0:
        Path(f"/proc/{session}/autogroup").write_text(str(niceness))


@contextmanager
def served(folder: Path, root: Path, workers: int) -> Iterator[tuple[int, int]]:
    """A server on a free port: that, and the process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    places = os.pathsep.join(str(root / part) for part in ("", "db", "service"))
    environment = {**os.environ, "PYTHONPATH": places, "MCFUSER_WORKERS": str(workers),
                   "MCFUSER_DATA": str(folder), "MCFUSER_INSPECT_WAIT": "60"}  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "mcfuser.cli", "serve", "--port", str(port)],
            env=environment, stderr=log, start_new_session=True, cwd=folder,
        )  # fmt: skip
    try:
        put_first(process.pid)
        while True:
            try:
                asked(port, "/healthz")
                break
            except OSError:
                assert process.poll() is None, (folder / "log").read_text()
                time.sleep(0.2)
        yield port, process.pid
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def asked(port: int, path: str, body: bytes | None = None) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", data=body, timeout=120) as found:
        return json.load(found)


def prepared(port: int, folder: Path, root: Path) -> tuple[list[str], list[str]]:
    """The keys of KERNELS kernels, and the names of their chains."""
    job = asked(port, "/v1/jobs?trials=1", model(folder / "small.onnx", root, 64, 1))["id"]
    while asked(port, f"/v1/jobs/{job}?wait=20")["state"] != "done":
        pass
    store = Storage(f"sqlite:///{folder / 'mcfuser.db'}")
    columns = KernelRow.__table__.columns.keys()
    with store.reading() as session:
        rows = [{c: getattr(r, c) for c in columns} for r in session.scalars(select(KernelRow))]
    copies = [
        {**rows[i % len(rows)], "key": f"{i:064x}", "chain": f"chain {i % 50}"}
        for i in range(KERNELS)
    ]
    with store.writing() as session:
        session.execute(insert(KernelRow), copies)
    store.close()
    return [row["key"] for row in copies], [f"chain%20{i}" for i in range(50)]


def tuning(port: int, folder: Path, root: Path, jobs: int) -> list[str]:
    """Jobs that tune for ten minutes, once they all run; as many again wait behind each."""
    ids = []
    for i in range(2 * jobs):
        data = model(folder / f"{i}.onnx", root, 128 + 32 * i)
        query = f"/v1/jobs?retune=true&timeout=10m&seed={i}"
        ids.append(str(asked(port, query, data)["id"]))
    while any(asked(port, f"/v1/jobs/{id}")["state"] == "queued" for id in ids[:jobs]):
        time.sleep(0.2)
    while not all(asked(port, f"/v1/jobs/{id}")["candidates"]["done"] > 0 for id in ids[:jobs]):
        time.sleep(0.5)
    return ids[:jobs]


def measured(given: dict[str, Any], clients: int) -> dict[str, Any]:
    """What the clients have found, together."""
    counts = {kind: round(share * clients) for kind, share in SHARES.items()}
    counts["poll"] += clients - sum(counts.values())
    parts = [
        {kind: n // PROCESSES + (i < n % PROCESSES) for kind, n in counts.items()}
        for i in range(PROCESSES)
    ]
    running = [
        subprocess.Popen([sys.executable, str(HERE / "service_clients.py")], text=True,
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        for _ in parts
    ]  # fmt: skip
    for process, of_kind in zip(running, parts, strict=True):
        assert process.stdin is not None
        put_first(process.pid)
        json.dump({**given, "of_kind": of_kind}, process.stdin)
        process.stdin.close()
    times: dict[str, list[float]] = {}
    together: dict[str, Any] = {"errors": Counter(), "late": [], "events": 0, "processor": 0.0}
    for process in running:
        assert process.stdout is not None
        found = json.load(process.stdout)
        process.wait()
        for kind, some in found["times"].items():
            times.setdefault(kind, []).extend(some)
        together["errors"] += Counter(found["errors"])
        for name in ("late", "events", "processor"):
            together[name] += found[name]
    return {**together, "times": times}


def ran(process: int) -> tuple[float, float]:
    """The seconds that all threads of a process ran, and that they waited for a core."""
    lines = [p.read_text().split() for p in Path(f"/proc/{process}/task").glob("*/schedstat")]
    return sum(int(x[0]) for x in lines) / 1e9, sum(int(x[1]) for x in lines) / 1e9


def quantile(times: Sequence[float], share: float) -> float:
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def figures(times: Sequence[float]) -> dict[str, float]:
    """In milliseconds."""
    return {
        "count": len(times),
        "p50": round(1e3 * quantile(times, 0.5), 1),
        "p99": round(1e3 * quantile(times, 0.99), 1),
        "max": round(1e3 * max(times), 1),
    }


def bench(options: argparse.Namespace) -> dict[str, Any]:
    if options.first:
        os.nice(-10)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    with TemporaryDirectory(prefix="mcfuser-load-") as name:
        folder = Path(name)
        with served(folder, options.root, options.jobs) as (port, process):
            kernels, chains = prepared(port, folder, options.root)
            jobs = tuning(port, folder, options.root, options.jobs)
            before, load = ran(process), os.getloadavg()[0]
            given = {"port": port, "jobs": jobs, "kernels": kernels, "chains": chains,
                     "pause": options.pause, "seconds": options.seconds}  # fmt: skip
            found = measured(given, options.clients)
            after = ran(process)
            states = Counter(asked(port, f"/v1/jobs/{id}")["state"] for id in jobs)
    ordinary = [t for kind in ("poll", "list", "kernel", "health", "metrics")
                for t in found["times"].get(kind, [])]  # fmt: skip
    return {
        "label": options.label, "when": f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
        "clients": options.clients, "jobs": options.jobs, "seconds": options.seconds,
        "load_before": round(load, 1), "first": options.first,
        "answers": {kind: figures(times) for kind, times in sorted(found["times"].items())},
        "requests": figures(ordinary), "events": found["events"], "errors": dict(found["errors"]),
        "clients_late": figures(found["late"]),
        "clients_processor": round(found["processor"], 1),
        "web_ran": round(after[0] - before[0], 1), "web_waited": round(after[1] - before[1], 1),
        "states": dict(states),
    }  # fmt: skip


def show(result: dict[str, Any]) -> None:
    print(f"{result['label'] or 'this checkout'}: {result['clients']} clients, {result['jobs']} "
          f"jobs tuning, {result['seconds']:g} s; load before {result['load_before']}")  # fmt: skip
    print(f"{'':12}{'answers':>9}{'p50 ms':>9}{'p99 ms':>9}{'max ms':>9}")
    rows = {**result["answers"], "requests": result["requests"]}
    rows["late"] = result["clients_late"]
    for kind, row in rows.items():
        print(f"{kind:12}{row['count']:9}{row['p50']:9}{row['p99']:9}{row['max']:9}")
    print(
        f"errors {result['errors'] or 'none'}; {result['events']} events; jobs {result['states']}"
    )
    print(f"the web process ran {result['web_ran']} s and waited {result['web_waited']} s for a "
          f"core; the clients ran {result['clients_processor']} s")  # fmt: skip
    slow = [k for k, row in result["answers"].items() if row["p99"] > 1e3 * GOAL]
    print(f"beyond {1e3 * GOAL:g} ms: {', '.join(slow) or 'nothing'}")


def main() -> None:
    parser = argparse.ArgumentParser(description="200 clients beside four jobs")
    parser.add_argument("--label", default="")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--pause", type=float, default=1.0)
    parser.add_argument("--root", type=Path, default=HERE.parent)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--first", action="store_true")
    options = parser.parse_args()
    options.root = options.root.resolve()
    result = bench(options)
    show(result)
    with options.results.open("a") as file:
        file.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
