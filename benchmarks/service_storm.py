"""Are 500 jobs done, each once, while workers, compilers and the server are killed 50 times?

    python benchmarks/service_storm.py [--jobs 500] [--real 50] [--kills 50] [--workers 2]
        [--seed 0] [--database sqlite] [--database postgresql] [--results FILE]

Posts that many distinct models at once, each with an Idempotency-Key, to a server with an empty
folder. --real of them are chains of two small products, no two with the same extents, and are
compiled by mcfuser; the others only pretend (storm_server.py), in a process of their own as well.
Meanwhile SIGKILL ends, in an order that --seed chooses, a worker, one of the processes that a
worker has started, or the server, which is started again at once. Clients go on as clients do:
they post again with the same key, and take up event streams where they broke off.

A job is `lost` that does not end, `twice` whose log or events tell of two results or that is there
beside another for the same model, `blamed` if it has failed, and `wrong` if its module is not that
of its model. Where the events of a job were not one of each version, in order, they were `skipped`.
`left` are processes, and folders for temporary files, that outlive the server. All
must be 0; the results are kept, and the exit status is 1 where one is not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import numpy as np
import psutil
from onnx import TensorProto, helper, numpy_helper

from storm_server import PRETENDED

HERE = Path(__file__).parent
ROOT = HERE.parent
RESULTS = HERE / "results" / "service-storm.json"
DATABASES = ("sqlite", "postgresql")
WATCHED = 20
"""Jobs whose events are listened to, from their post to their end."""
PATIENCE = 1800.0
"""Seconds after the last kill in which everything must be done."""
KINDS = {"worker": 0.4, "process of a worker": 0.4, "server": 0.2}
"""What is killed, and how often."""


def model(number: int, real: bool) -> bytes:
    """A model unlike those of other numbers: max(x w, 0) v, whose extents are the number's own."""
    rows, inner = 16 + 8 * (number % 8), 16 + 8 * (number // 8 % 8)
    outer, last = 16 + 8 * (number // 64 % 8), 16
    rng = np.random.default_rng(number)
    shapes = {"w": (inner, outer), "v": (outer, last)}
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
            helper.make_node("Relu", ["a"], ["b"], name="cut"),
            helper.make_node("MatMul", ["b", "v"], ["y"], name="second"),
        ],
        f"model {number}",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, inner])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, last])],
        [
            numpy_helper.from_array(rng.standard_normal(shape, np.float32), name)
            for name, shape in shapes.items()
        ],
    )
    made = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9,
        producer_name="storm" if real else PRETENDED,
    )  # fmt: skip
    return bytes(made.SerializeToString())


class Server:
    """One server after another on one folder and one port."""

    def __init__(self, folder: Path, database: str | None, workers: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        data, self.scratch = folder / "data", folder / "scratch"
        self.scratch.mkdir()
        self._settings = {
            "data": str(data), "port": self.port, "workers": workers, "inspect_wait": 300.0,
            "niceness": 0,
            **({"database": database} if database is not None else {}),
        }  # fmt: skip
        self._log = folder / "log"
        self.process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        places = [ROOT, ROOT / "db", ROOT / "service", HERE]
        more = {"PYTHONPATH": os.pathsep.join(map(str, places)), "TMPDIR": str(self.scratch)}
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, str(HERE / "storm_server.py"), json.dumps(self._settings)],
                env={**os.environ, **more}, stderr=log, start_new_session=True, cwd=self.scratch,
            )  # fmt: skip

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process = self._started()

    def workers(self) -> list[psutil.Process]:
        return [
            p
            for p in psutil.Process(self.process.pid).children()
            if any("worker_child" in word for word in p.cmdline())
        ]

    def stop(self) -> int:
        """The exit status after SIGTERM; may be called again."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)


@dataclass
class Client:
    """Asks a server that may be gone for a while; `again` counts how often it had to."""

    port: int
    again: int = 0
    _http: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        limits = httpx.Limits(max_connections=64, max_keepalive_connections=64)
        self._http = httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}", timeout=400, limits=limits
        )

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        """The answer; asked again where the server does not answer, is busy, or says later."""
        while True:
            try:
                answer = self._http.request(method, path, **more)
            except httpx.TransportError:
                self.again += 1
                time.sleep(0.3)
                continue
            if answer.status_code not in (429, 503):
                return answer
            self.again += 1
            time.sleep(1.0)

    def read(self, path: str) -> dict[str, Any]:
        answer = self.ask("GET", path)
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    def events(self, job: str) -> Told:
        """What a job's events tell from the first one on, until it is over, over all broken
        streams."""
        told = Told()
        while True:
            try:
                headers = {"Last-Event-ID": str(told.versions[-1])} if told.versions else {}
                path = f"/v1/jobs/{job}/events?after=0"
                with self._http.stream("GET", path, headers=headers) as stream:
                    if stream.status_code == 204:
                        return told
                    fields: dict[str, str] = {}
                    for line in stream.iter_lines():
                        name, _, value = line.partition(": ")
                        fields[name] = value
                        if not line:
                            told.add(fields)
                            fields = {}
            except httpx.TransportError:
                self.again += 1
                time.sleep(0.3)


@dataclass
class Told:
    """The versions of a job of which there were events, and the states that these tell of."""

    versions: list[int] = field(default_factory=list)
    states: list[str] = field(default_factory=list)

    def add(self, event: Mapping[str, str]) -> None:
        """Notes an event; one without an id is a gap, or says when to connect again."""
        if "id" not in event:
            return
        self.versions.append(int(event["id"]))
        if event["event"] == "state":
            self.states.append(json.loads(event["data"])["state"])

    @property
    def is_whole(self) -> bool:
        """Whether there was one event of each version, in their order."""
        return self.versions == list(range(1, len(self.versions) + 1))


def posted(client: Client, models: Sequence[bytes]) -> list[str]:
    """The ids of the jobs of models that are posted at once; a post that breaks off is repeated."""

    def post(number: int) -> str:
        answer = client.ask(
            "POST", f"/v1/jobs?trials=2&name=storm-{number}", content=models[number],
            headers={"Idempotency-Key": f"storm-{number}"},
        )  # fmt: skip
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(post, range(len(models))))


def victim(server: Server, kind: str, rng: random.Random) -> psutil.Process | None:
    """A process of that kind that lives; None where there is none."""
    try:
        workers = server.workers()
        if kind == "worker":
            return rng.choice(workers) if workers else None
        found = [c for w in workers for c in w.children(recursive=True)]
        return rng.choice(found) if found else None
    except psutil.NoSuchProcess:
        return None


def killed(server: Server, kind: str, rng: random.Random) -> None:
    """Kills one of a kind, as soon as there is one."""
    if kind == "server":
        server.kill()
        return
    while (process := victim(server, kind, rng)) is None:
        time.sleep(0.05)
    try:
        process.kill()
    except psutil.NoSuchProcess:
        killed(server, kind, rng)


def storm(
    server: Server, done: Callable[[], int], jobs: int, kills: int, rng: random.Random
) -> Counter[str]:
    """Kills as often as asked, at moments that are spread over the jobs."""
    moments = sorted(rng.uniform(0, 0.95 * jobs) for _ in range(kills))
    happened: Counter[str] = Counter()
    for moment in moments:
        while done() < moment:
            time.sleep(0.1)
        time.sleep(rng.uniform(0, 1.5))
        (kind,) = rng.choices(list(KINDS), list(KINDS.values()))
        killed(server, kind, rng)
        happened[kind] += 1
    return happened


def judged(
    job: Mapping[str, Any], log: str, digest: str, module: bytes | None
) -> tuple[set[str], int]:
    """What is wrong with a job (`lost`, `twice`, `blamed`, `wrong`), and how often it was begun."""
    wrong = set()
    begun = sum(" begins; worker " in line for line in log.splitlines())
    results = sum(" done: a module of " in line for line in log.splitlines())
    if job["state"] == "failed":
        wrong.add("blamed")
    elif job["state"] != "done" or results < 1:
        wrong.add("lost")
    if results > 1:
        wrong.add("twice")
    if job["state"] == "done":
        same = module is not None and sha256(module).hexdigest() == job["module"]["sha256"]
        if not same or job["report"]["model"]["sha256"] != digest:
            wrong.add("wrong")
    return wrong, begun


def examined(client: Client, ids: Sequence[str], models: Sequence[bytes]) -> dict[str, Any]:
    """All jobs at the end, by what is wrong with them."""
    count: Counter[str] = Counter()
    attempts: Counter[int] = Counter()
    telling = []
    for id, model in zip(ids, models, strict=True):
        job = client.read(f"/v1/jobs/{id}")
        log = client.ask("GET", f"/v1/jobs/{id}/log").text
        module = client.ask("GET", f"/v1/jobs/{id}/module") if job["state"] == "done" else None
        content = module.content if module is not None and module.status_code == 200 else None
        wrong, begun = judged(job, log, sha256(model).hexdigest(), content)
        count.update(wrong)
        count["done"] += job["state"] == "done"
        attempts[begun] += 1
        if wrong:
            telling.append({"id": id, "wrong": sorted(wrong), "log": log.splitlines()[-20:]})
    return {
        **{name: count[name] for name in ("done", "lost", "twice", "blamed", "wrong")},
        "begun": {str(n): attempts[n] for n in sorted(attempts)}, "telling": telling,
    }  # fmt: skip


def listed(client: Client) -> int:
    """The number of jobs that there are."""
    count, path = 0, "/v1/jobs?limit=500"
    while True:
        page = client.read(path)
        count += len(page["items"])
        if page["next"] is None:
            return count
        path = page["next"]


def left(server: Server) -> list[str]:
    """Processes and temporary folders that outlive the server, but for that of the user's lock."""
    end = time.monotonic() + 10
    while True:
        mark = f"TMPDIR={server.scratch}"
        found = [f"process {p.pid}" for p in psutil.process_iter() if mark in environment(p)]
        found += [p.name for p in server.scratch.iterdir() if p.name != f"mcfuser-{os.getuid()}"]
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.2)


def environment(process: psutil.Process) -> list[str]:
    try:
        return [f"{k}={v}" for k, v in process.environ().items()]
    except psutil.Error:
        return []


@contextmanager
def database(kind: str) -> Iterator[str | None]:
    """The URL of an empty PostgreSQL database, None for SQLite in the server's folder."""
    if kind == "sqlite":
        yield None
        return
    sys.path.append(str(ROOT))
    with import_module("tests.support.db_storages").fresh("postgresql", ROOT) as url:
        yield url


def bench(kind: str, options: argparse.Namespace) -> dict[str, Any]:
    """One storm over one kind of database."""
    rng = random.Random(options.seed)
    real = set(rng.sample(range(options.jobs), options.real))
    models = [model(i, i in real) for i in range(options.jobs)]
    begun = time.monotonic()
    with ExitStack() as stack:
        url = stack.enter_context(database(kind))
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="mcfuser-storm-")))
        server = Server(folder, url, options.workers)
        stack.callback(server.stop)
        client = Client(server.port)

        def done() -> int:
            counts: dict[str, int] = client.read("/healthz")["jobs"]
            return counts["done"] + counts["failed"]

        happened: Counter[str] = Counter()
        threads = ThreadPoolExecutor(WATCHED + 1)
        raging = threads.submit(storm, server, done, options.jobs, options.kills, rng)
        ids = posted(client, models)
        watched = sorted(rng.sample(range(len(ids)), min(WATCHED, len(ids))))
        told = [threads.submit(client.events, ids[i]) for i in watched]
        posting = time.monotonic() - begun
        happened = raging.result()
        end = time.monotonic() + PATIENCE
        while done() < options.jobs and time.monotonic() < end:
            time.sleep(0.5)
        seconds = time.monotonic() - begun
        found = examined(client, ids, models)
        heard = [t.result() for t in told if t.done()]
        found["twice"] += sum(one.states.count("done") > 1 for one in heard)
        found["skipped"] = sum(not one.is_whole for one in heard)
        found["twice"] += abs(listed(client) - options.jobs)
        status = server.stop()
        threads.shutdown()
        return {
            "database": kind, "when": f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
            "jobs": options.jobs, "real": options.real, "workers": options.workers,
            "seed": options.seed, "kills": dict(happened), **found, "left": left(server),
            "exit": status, "asked_again": client.again, "posting_seconds": round(posting, 1),
            "seconds": round(seconds, 1),
        }  # fmt: skip


WRONG = ("lost", "twice", "blamed", "wrong", "skipped", "left")


def show(result: Mapping[str, Any]) -> None:
    print(f"{result['database']}: {result['jobs']} jobs, {result['real']} of them compiled, "
          f"{result['workers']} workers, {result['seconds']} s")  # fmt: skip
    print("killed: " + ", ".join(f"{n} x {kind}" for kind, n in result["kills"].items()))
    print(f"done {result['done']}; " + ", ".join(f"{name} {result[name] or 0}" for name in WRONG))
    print("attempts begun: " + ", ".join(f"{n}: {count} jobs" for n, count in
                                         result["begun"].items()))  # fmt: skip
    for one in result["telling"]:
        print(f"{one['id']} {', '.join(one['wrong'])}", *one["log"], sep="\n    ")


def main() -> int:
    parser = argparse.ArgumentParser(description="500 jobs, 50 kills")
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--real", type=int, default=50)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--database", action="append", choices=DATABASES)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    results = []
    for kind in options.database or DATABASES:
        results.append(bench(kind, options))
        show(results[-1])
    options.results.write_text(json.dumps(results, indent=1) + "\n")
    clean = all(r["done"] == r["jobs"] and not any(r[n] for n in WRONG) for r in results)
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
