"""Tells webhooks of the ends of jobs. What is to be told is in the database: a restart loses none.

An attempt succeeds where the answer's status is 2xx. Otherwise it is made again, WAITS apart, and
then given up; 410 gives up at once. Whoever is told may be told twice, under the same webhook-id:
where a server dies after an attempt and before it has noted how that ended.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

import httpx

from mcfuser_db import Job, Storage, StorageError
from mcfuser_db.models import Webhook
from mcfuser_db.webhooks import WebhookState, settle, take_due
from mcfuser_service.background import in_background
from mcfuser_service.outage import Outage
from mcfuser_service.settings import ServiceSettings
from mcfuser_service.webhooks import headers, message, unusable

log = logging.getLogger(__name__)

WAITS = (5.0, 30.0, 300.0, 1800.0, 7200.0, 18000.0, 36000.0)
"""Seconds between an attempt that failed and the next one; after the last one it is given up."""
TIMEOUT = 15.0
"""Seconds of an attempt in all."""
_LEASE = 60.0  # seconds after which another server makes an attempt that this one has taken
_LOOK = 0.5  # seconds between two looks for what is due
_TOGETHER = 8  # attempts at once


@contextmanager
def delivering(settings: ServiceSettings, store: Storage) -> Iterator[None]:
    """Tells webhooks while the block runs; does nothing where the settings have no secret or no
    hosts."""
    if settings.webhook_key is None or not settings.webhook_hosts:
        yield
        return
    deliverer = Deliverer(settings.webhook_hosts, settings.webhook_key, store)
    with in_background("webhooks", lambda over: asyncio.run(deliverer.deliver(over))):
        yield


class Deliverer:
    """Tells webhooks on some `hosts` of the jobs that are over, signed with a `secret`."""

    def __init__(self, hosts: Sequence[str], secret: bytes, store: Storage) -> None:
        self._hosts = hosts
        self._secret = secret
        self._store = store
        self._outage = Outage(log, "webhooks")

    async def deliver(self, over: threading.Event) -> None:
        """Makes every attempt that is due, until the event is set."""
        under_way: set[asyncio.Task[None]] = set()
        verify = ssl.create_default_context()
        async with httpx.AsyncClient(
            verify=verify, trust_env=False, follow_redirects=False, timeout=TIMEOUT
        ) as client:
            while not over.is_set():
                for webhook, job in await self._due(_TOGETHER - len(under_way)):
                    task = asyncio.create_task(self._attempt(client, webhook, job))
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)
                await asyncio.sleep(_LOOK)
            for task in under_way:  # they are made again once their lease has run out
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    async def _due(self, free: int) -> list[tuple[Webhook, Job]]:
        if free <= 0:
            return []
        try:
            due = list(await asyncio.to_thread(take_due, self._store, free, _LEASE))
        except StorageError as error:
            self._outage.failed(error)
            return []
        self._outage.over()
        return due

    async def _attempt(self, client: httpx.AsyncClient, webhook: Webhook, job: Job) -> None:
        """One attempt, and a note of how it ended."""
        failed, final = await self._failure(client, webhook, job)
        told = f"webhook to {httpx.URL(webhook.url).host}, attempt {webhook.attempts}"
        try:
            if failed is None:
                await self._settle(webhook, "delivered", f"{told}: delivered")
            elif final or webhook.attempts > len(WAITS):
                log.warning("webhook given up: %s", failed, extra={"job": job.id})
                await self._settle(webhook, "given up", f"{told}: {failed}; given up")
            else:
                wait = WAITS[webhook.attempts - 1]
                words = f"{told}: {failed}; tried again in {wait:g} s"
                await self._settle(webhook, "waiting", words, wait)
        except StorageError as error:  # it is told again once the lease has run out
            log.warning("webhook's attempt not noted: %s", error, extra={"job": job.id})

    async def _settle(
        self, webhook: Webhook, state: WebhookState, words: str, wait: float = 0.0
    ) -> None:
        await asyncio.to_thread(settle, self._store, webhook, state, words, wait)

    async def _failure(
        self, client: httpx.AsyncClient, webhook: Webhook, job: Job
    ) -> tuple[str | None, bool]:
        """Why an attempt failed, None where it did not; and whether another one is of no use."""
        why = unusable(webhook.url, self._hosts)
        if why is not None:  # the settings have changed since it was posted
            return why, True
        body = message(job)
        signed = headers(webhook.id, body, datetime.now(UTC), self._secret)
        try:
            async with (
                asyncio.timeout(TIMEOUT),
                client.stream("POST", webhook.url, content=body, headers=dict(signed)) as answer,
            ):
                status = answer.status_code  # what else it says is not read
        except TimeoutError:
            return f"no answer within {TIMEOUT:g} s", False
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            return str(error) or type(error).__name__, False
        return (None, False) if 200 <= status < 300 else (f"status {status}", status == 410)
