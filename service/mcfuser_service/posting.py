"""Finds or makes the job that compiles a posted model."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from threading import Lock
from typing import Literal

from fastapi.concurrency import run_in_threadpool

from mcfuser.errors import InputError, SpaceError
from mcfuser.graph.archive import is_archive
from mcfuser.graph.limits import SETTING
from mcfuser_db import Blobs, Job, KeyedRequest, KeyReused, Order, Storage
from mcfuser_db.blobs import Incoming
from mcfuser_service.access import Caller
from mcfuser_service.inspect import Inspect
from mcfuser_service.lookup import found
from mcfuser_service.problems import ProblemError, error, problem
from mcfuser_service.schemas import JobOptions, PostQuery
from mcfuser_service.settings import ServiceSettings
from mcfuser_service.work import work_key

LONGEST_KEY = 255
"""The most characters of an Idempotency-Key."""

Answer = Literal["new", "shared", "cached", "repeated"]
"""What a post was answered with: a new job, one that is not yet done, one that is, or the job of an
earlier post with the same key."""


@dataclass(frozen=True)
class Posting:
    """What is needed to answer posts. Those with API keys take turns at `counting` what their
    limits leave."""

    settings: ServiceSettings
    store: Storage
    blobs: Blobs
    inspect: Inspect
    counting: Lock = field(default_factory=Lock)

    async def job(
        self, incoming: Incoming, query: PostQuery, key: str | None, caller: Caller
    ) -> tuple[Job, Answer]:
        """The job for a received model, and how it was found; `key` is the Idempotency-Key, one of
        the caller's own.

        Raises ProblemError where there is to be none: the model is wrong, the key stands for
        another request, or there is no job to share and no new one is wanted. Raises OverQuota
        where the caller's limits leave no room for a new one.
        """
        keyed = None
        if key is not None:
            told = query.model_dump(mode="json") | {"model": incoming.digest}
            named = key if caller.key is None else [caller.key, key]
            keyed = KeyedRequest(_hash(named), _hash(told), self.settings.idempotency_keep)
        try:
            return await self._job(incoming, query, keyed, caller)
        except KeyReused as reused:
            detail = f"Idempotency-Key '{key}': {reused}, with another model or other options"
            raise error("key-reused", f"{detail}; give every request a key of its own") from None

    async def _job(
        self, incoming: Incoming, query: PostQuery, keyed: KeyedRequest | None, caller: Caller
    ) -> tuple[Job, Answer]:
        if keyed is not None:
            known = await run_in_threadpool(self.store.keyed, keyed)
            if known is not None:
                return known, "repeated"
        work = work_key(incoming.digest, query.options, query.reuse == "never")
        live = await run_in_threadpool(self.store.live, work)
        if live is None and query.reuse == "only":
            raise _nothing(incoming)
        if live is None:
            await _inspected(incoming, query.options, self.inspect)
        order = Order(
            work, incoming.digest, incoming.size, query.device,
            query.options.model_dump(mode="json"), query.name, query.priority, query.webhook,
            caller.key,
        )  # fmt: skip
        return await run_in_threadpool(self._counted, incoming, query, order, live, keyed)

    def _counted(
        self,
        incoming: Incoming,
        query: PostQuery,
        order: Order,
        live: Job | None,
        keyed: KeyedRequest | None,
    ) -> tuple[Job, Answer]:
        """The job, where the key's limits leave room for it: this is known before the model is
        kept, which no job would ever remove."""
        if order.api_key is None:
            return self._submitted(incoming, query, order, live, keyed)
        with self.counting:
            if live is None:
                self.store.check_quota(order)
            return self._submitted(incoming, query, order, live, keyed)

    def _submitted(
        self,
        incoming: Incoming,
        query: PostQuery,
        order: Order,
        live: Job | None,
        keyed: KeyedRequest | None,
    ) -> tuple[Job, Answer]:
        """`live` is an earlier job for the same work."""
        store, blobs, digest = self.store, self.blobs, incoming.digest
        if query.reuse == "only":
            shared = store.share(order, keyed) if live is None or self._whole(live) else None
            if shared is None:
                raise _nothing(incoming)
            return shared, "cached" if shared.state == "done" else "shared"
        if live is None or not self._whole(live) or not blobs.sound(digest):
            incoming.keep()  # before there is a job that needs it
        job, new = store.submit(order, keyed)
        if self._whole(job):
            return job, "new" if new else "cached" if job.state == "done" else "shared"
        if not blobs.sound(digest):  # removed since it was looked at
            incoming.keep()
        store.requeue(job.id)
        return found(store, job.id), "shared"

    def _whole(self, job: Job) -> bool:
        """Whether a job's module is kept, or is still to be made."""
        return job.state != "done" or (job.module is not None and self.blobs.sound(job.module))


def key_in(header: str | None) -> str | None:
    """The key in an Idempotency-Key header, which may be in quotes; None where there is none.

    Raises ProblemError where it is malformed.
    """
    if header is None:
        return None
    key = header[1:-1] if len(header) > 1 and header[0] == header[-1] == '"' else header
    if 0 < len(key) <= LONGEST_KEY and key.isascii() and key.isprintable():
        return key
    detail = f"it must have 1 to {LONGEST_KEY} ASCII characters that can be printed"
    raise error(
        "bad-option", f"header 'idempotency-key': {detail}",
        errors=[{"in": "header", "name": "idempotency-key", "detail": detail}],
    )  # fmt: skip


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _nothing(incoming: Incoming) -> ProblemError:
    return error(
        "nothing-to-reuse",
        f"no job with these options is done or under way for model {incoming.digest}; post it "
        "without reuse=only to have one",
    )


def check_size(settings: ServiceSettings, size: int, head: bytes | None) -> None:
    """Raises ProblemError where a body has more bytes than one may have that begins with `head`;
    the larger limit holds while this is not known."""
    limits = {
        "model_bytes": (settings.max_model_bytes, "model"),
        "archive_bytes": (settings.max_archive_bytes, "archive"),
    }
    if head is None:
        name = max(limits, key=lambda n: limits[n][0])
    else:
        name = "archive_bytes" if is_archive(head) else "model_bytes"
    limit, what = limits[name]
    if size > limit:
        raise error(
            "too-large",
            f"the {what} has more than {limit} bytes, which is the limit here; make it smaller or "
            f"raise {SETTING}{name.upper()}",
        )


async def _inspected(incoming: Incoming, options: JobOptions, inspect: Inspect) -> None:
    try:
        await inspect(incoming.flushed(), options.shapes)
    except SpaceError as full:
        raise ProblemError(problem("disk-full", str(full)), {"Retry-After": "60"}) from None
    except InputError as bad:
        raise error("bad-model", str(bad)) from None
