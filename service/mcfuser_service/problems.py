"""The kinds of problems that requests are answered with (RFC 9457)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KINDS: Mapping[str, tuple[int, str]] = {
    "bad-option": (422, "An option is missing, unknown or malformed"),
    "bad-model": (422, "The model cannot be compiled"),
    "empty-body": (422, "The request has no body"),
    "not-raw": (415, "The model is not the request's body"),
    "stalled": (408, "The model did not arrive"),
    "too-large": (413, "The model is too large"),
    "bad-kernels": (422, "The file of kernels cannot be read"),
    "busy": (429, "Too much at once"),
    "malformed": (400, "The request is malformed"),
    "wrong-host": (421, "The request is meant for another host"),
    "cross-origin": (403, "The request comes from another site"),
    "no-key": (401, "The request has no valid key"),
    "not-allowed": (403, "The key may not do this"),
    "too-many-requests": (429, "The key has made too many requests"),
    "too-many-queued": (429, "The key has too many queued jobs"),
    "over-quota": (507, "The key's jobs take too much room"),
    "no-such-key": (404, "There is no such key"),
    "name-taken": (409, "Another key has the name"),
    "no-such-job": (404, "There is no such job"),
    "not-signed": (404, "There is no signature"),
    "no-such-kernel": (404, "There is no such kernel"),
    "not-ready": (409, "The job is not done yet"),
    "cancelled": (410, "The job was cancelled"),
    "over": (409, "The job is over"),
    "not-over": (409, "The job is not over"),
    "nothing-to-reuse": (404, "There is no such work"),
    "webhook-refused": (422, "The webhook's address is not allowed"),
    "key-reused": (422, "The idempotency key stands for another request"),
    "lost": (410, "The module is no longer kept"),
    "disk-full": (507, "The disk is full"),
    "timed-out": (422, "The job took too long"),
    "out-of-memory": (413, "The job needs too much memory"),
    "crashed": (422, "The model ends the compiler"),
    "gave-up": (422, "The job was given up"),
    "bug": (500, "The server failed"),
    "storage": (503, "The database does not answer"),
}


def problem(kind: str, detail: str, **more: Any) -> dict[str, Any]:
    """The details of a problem: type, title, status, detail, and `more`."""
    status, title = KINDS[kind]
    name = f"urn:mcfuser:problem:{kind}"
    return {"type": name, "title": title, "status": status, "detail": detail, **more}


class ProblemError(Exception):
    """An error that is answered with a problem."""

    def __init__(
        self, details: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(details["detail"])
        self.details = dict(details)
        self.headers = dict(headers or {})


def error(kind: str, detail: str, **more: Any) -> ProblemError:
    return ProblemError(problem(kind, detail, **more))
