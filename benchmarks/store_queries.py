"""What the API asks of the store, and what its workers write, for benchmarks/store_scale.py."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from uuid import UUID

from fastapi.testclient import TestClient

from mcfuser.tune.progress import Progress
from mcfuser.tune.tuned import Tuned, Use
from mcfuser_db import KeyedRequest, Order, Storage
from mcfuser_db.api_keys import api_keys, key_names
from mcfuser_db.kernel_search import KernelQuery
from store_rows import (
    POPULAR,
    RARE,
    Amounts,
    chain_key,
    chain_name,
    digest,
    job_id,
    kernel_key,
    key_id,
    tried,
)

Queries = Mapping[str, Callable[[int], object]]
"""By name: each is called with a number that grows, so that it asks for another row each time."""


def kernel_number(i: int, amounts: Amounts) -> int:
    """The number of a kernel that is whole."""
    number = i * 7919 % amounts.kernels
    tens, one = divmod(number, 10)
    return 10 * (tens - tens % amounts.whole) + one


def done_job(i: int, amounts: Amounts) -> UUID:
    """The id of a job that is done."""
    number = i * 7919 % amounts.over
    return job_id(number - number % 10 + 2 + number % 8)


def of_store(store: Storage, a: Amounts) -> Queries:
    """Reading through the store."""
    middle_job, middle_kernel = job_id(a.over // 2), kernel_key(a.kernels // 2)

    def kernel(i: int) -> str:
        return kernel_key(kernel_number(i, a))

    return {
        "counts": lambda i: store.counts(),
        "kernel_count": lambda i: store.kernel_count(),
        "job": lambda i: store.job(done_job(i, a)),
        "jobs": lambda i: store.jobs(),
        "jobs, 500": lambda i: store.jobs(limit=500),
        "jobs done, 500": lambda i: store.jobs("done", 500),
        "jobs running": lambda i: store.jobs("running"),
        "jobs, a middle page": lambda i: store.jobs(after=middle_job),
        "jobs failed, a middle page": lambda i: store.jobs("failed", after=middle_job),
        "versions of 500": lambda i: store.versions([done_job(n, a) for n in range(500)]),
        "snapshots of 50": lambda i: store.snapshots([done_job(n, a) for n in range(50)]),
        "events of a job": lambda i: store.events({done_job(i, a): 0}),
        "the last event of 50": lambda i: store.events({done_job(n, a): 60 for n in range(50)}),
        "log": lambda i: store.log(done_job(i, a)),
        "attestation": lambda i: store.attestation(done_job(i, a)),
        "live": lambda i: store.live(digest(f"work {i}")),
        "keyed": lambda i: store.keyed(KeyedRequest(digest(f"x{i}"), "", 60.0)),
        "api_keys": lambda i: api_keys(store),
        "key_names": lambda i: key_names(store, [key_id(0)]),
        "kernels": lambda i: store.kernels(),
        "kernels, 500": lambda i: store.kernels(limit=500),
        "kernels, a middle page": lambda i: store.kernels(after=middle_kernel),
        "kernels of cpu": lambda i: store.kernels("cpu"),
        "kernels of a rare device": lambda i: store.kernels(RARE),
        "kernels of cpu, a middle page": lambda i: store.kernels("cpu", after=middle_kernel),
        "kernels of a rare device, a middle page": lambda i: store.kernels(
            RARE, after=middle_kernel
        ),
        "kernels by chain": lambda i: store.kernels(chain=chain_name(kernel_number(i, a), a)),
        "kernels by chain's key": lambda i: store.kernels(chain=chain_key(kernel_number(i, a), a)),
        "kernels by use": lambda i: store.kernels(chain=f"zoo_{i}/chain_{i % 24}"),
        "kernels by a popular name": lambda i: store.kernels(chain=POPULAR),
        "kernels by a popular name, a middle page": lambda i: store.kernels(
            chain=POPULAR, after=middle_kernel
        ),
        "kernels by a popular name, rare device": lambda i: store.kernels(RARE, POPULAR),
        "kernels by an unknown chain": lambda i: store.kernels(chain=f"unknown {i}"),
        "search by time": lambda i: store.find_kernels(KernelQuery(order="time")),
        "search by chain, a middle page": lambda i: store.find_kernels(
            KernelQuery(order="chain"), after=middle_kernel
        ),
        "search for a name": lambda i: store.find_kernels(
            KernelQuery(chain_name(kernel_number(i, a), a))
        ),
        "search for what is not there": lambda i: store.find_kernels(
            KernelQuery(f"unknown {i}", order="device")
        ),
        "kernel": lambda i: store.kernel(kernel(i)),
        "get": lambda i: store.get(kernel(i)),
        "keys_of": lambda i: store.keys_of(chain_key(kernel_number(i, a), a)),
        "keys_like": lambda i: store.keys_like(kernel(i)[:8]),
        "tried, 16": lambda i: store.tried(kernel_key((1000 * i + 1) % a.kernels)),
        "tried, 300": lambda i: store.tried(kernel_key(1000 * i % a.kernels)),
        "unfinished": lambda i: store.unfinished(),
    }  # fmt: skip


def of_http(client: TestClient, a: Amounts) -> Queries:
    """Reading through the application."""
    middle_job, middle_kernel = job_id(a.over // 2), kernel_key(a.kernels // 2)

    def path(text: str) -> Callable[[int], object]:
        def ask(i: int) -> object:
            kernel = kernel_number(i, a)
            filled = text.format(
                job=done_job(i, a), kernel=kernel_key(kernel), chain=chain_key(kernel, a)
            )
            answer = client.get(filled)
            assert answer.status_code == 200, (filled, answer.text)
            return answer.content

        return ask

    every = (
        "/healthz", "/metrics", "/v1/jobs", "/v1/jobs?limit=500", "/v1/jobs?state=done&limit=500",
        f"/v1/jobs?after={middle_job}", "/v1/jobs/{job}", "/v1/jobs/{job}/log",
        "/v1/jobs/{job}/events?after=0", "/v1/jobs/{job}/report", "/v1/kernels",
        "/v1/kernels?limit=500",
        f"/v1/kernels?after={middle_kernel}", f"/v1/kernels?device=cpu&after={middle_kernel}",
        "/v1/kernels?q=unknown", "/v1/kernels?q=cpu&sort=time&order=asc",
        f"/v1/kernels?device={RARE}", f"/v1/kernels?chain={POPULAR}", "/v1/kernels?chain={chain}",
        "/v1/kernels/{kernel}", "/v1/kernels/{kernel}/candidates",
        "/v1/kernels/explain?chain={chain}", "/v1/kernels/export?key={kernel}", "/v1/devices",
    )  # fmt: skip
    shown = {middle_job: "{job}", middle_kernel: "{kernel}"}
    named = {}
    for text in every:
        name = text
        for words, short in shown.items():
            name = name.replace(str(words), short)
        named[name] = path(text)
    return named


def of_writers(store: Storage, a: Amounts, tuned: Tuned) -> Queries:
    """Writing: posts, claims, what workers keep, and what is removed."""
    made, chain = tuned.made, tuned.chain
    assert made is not None
    claims: list[UUID] = []
    numbers = itertools.count()
    removed: Iterator[int] = iter(range(3, a.kernels, 7))

    def order(key: str | None) -> Order:
        n = next(numbers)
        return Order(digest(f"posted {n}"), digest(f"file p{n}"), 10, "cpu", {}, api_key=key)

    def claim(i: int) -> None:
        job = store.claim("w", 3600)
        assert job is not None and job.claim is not None
        claims.append(job.claim)

    def some(count: int) -> list[str]:
        return [kernel_key(n) for n in itertools.islice(removed, count)]

    return {
        "submit": lambda i: store.submit(order(None)),
        "submit, a key with a limit of disk": lambda i: store.submit(order(key_id(0))),
        "submit what is there": lambda i: store.submit(
            Order(digest(f"work {a.over + i}"), digest(""), 1, "cpu", {})
        ),
        "claim": claim,
        "renew": lambda i: store.renew(claims[i], 3600, Progress("tuning", i, 999)),
        "finish": lambda i: store.finish(claims[i], digest(f"module {i}"), 3, {"chains": []}),
        "cancel": lambda i: store.cancel(job_id(a.over + a.queued - 1 - i)),
        "put": lambda i: store.put(replace(tuned, key=digest(f"new {i}"))),
        "put again": lambda i: store.put(replace(tuned, key=kernel_key(kernel_number(i, a)))),
        "keep_tried": lambda i: store.keep_tried(made, chain, "cpu", tried(16)),
        "note 24 uses": lambda i: store.note(
            Use(digest(f"noted {n}"), f"new_{i}/chain_{n}", kernel_key(n)) for n in range(24)
        ),
        "prune 1": lambda i: store.prune(some(1)),
    }  # fmt: skip
