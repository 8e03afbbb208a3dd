"""What is sent to a webhook, how it is signed (Standard Webhooks), and which addresses may have it.

A server that sends requests wherever it is told to can be led to addresses that only it can reach.
So only hosts that the settings name are told anything.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Collection, Mapping
from datetime import datetime
from uuid import UUID

import httpx

from mcfuser_db import Job
from mcfuser_service.problems import ProblemError, error
from mcfuser_service.schemas import JobOut
from mcfuser_service.settings import ServiceSettings

_PORTS = {"http": 80, "https": 443}


def check_target(address: str, settings: ServiceSettings) -> None:
    """Raises ProblemError where the settings do not allow that an address is told of a job."""
    if settings.webhook_secret is None or not settings.webhook_hosts:
        raise _refused(
            "this server tells no webhooks; set MCFUSER_WEBHOOK_SECRET and MCFUSER_WEBHOOK_HOSTS, "
            "or follow the job at /v1/jobs/{id}/events"
        )
    why = unusable(address, settings.webhook_hosts)
    if why is not None:
        raise _refused(f"webhook '{address[:100]}': {why}")


def unusable(address: str, hosts: Collection[str]) -> str | None:
    """Why an address may not be told, in a clause; None where it may.

    `hosts` are names, or names with ports; a name alone stands for the ports of http and https.
    """
    try:
        url = httpx.URL(address)
        host = url.raw_host.decode("ascii").lower().rstrip(".")
    except (httpx.InvalidURL, ValueError):
        return "it is no URL; give one as https://ci.example/hooks/mcfuser"
    if url.scheme not in _PORTS or not host:
        return "it begins with neither http:// nor https://"
    if url.userinfo or url.fragment:
        return "it has a user, a password or a fragment; leave them away"
    port = url.port if url.port is not None else _PORTS[url.scheme]
    named = f"[{host}]" if ":" in host else host
    if f"{named}:{port}" in hosts or (named in hosts and port == _PORTS[url.scheme]):
        return None
    return f"MCFUSER_WEBHOOK_HOSTS does not name '{named}:{port}'"


def message(job: Job) -> bytes:
    """The body that a webhook is sent: the job, without its report, as JSON."""
    ended = job.finished or job.created
    data = JobOut.of(job, whole=False).model_dump(mode="json")
    told = {"type": f"job.{job.state}", "timestamp": ended.isoformat(), "data": data}
    return json.dumps(told, separators=(",", ":")).encode()


def headers(id: UUID, body: bytes, moment: datetime, secret: bytes) -> Mapping[str, str]:
    """The headers of an attempt at a `moment`, among them its signature with the secret."""
    seconds = str(int(moment.timestamp()))
    signed = b".".join((str(id).encode(), seconds.encode(), body))
    signature = base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()
    return {
        "Content-Type": "application/json",
        "User-Agent": "mcfuser",
        "webhook-id": str(id),
        "webhook-timestamp": seconds,
        "webhook-signature": f"v1,{signature}",
    }


def _refused(detail: str) -> ProblemError:
    return error("webhook-refused", detail)
