"""Receives the body of a request into a file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from fastapi import Request
from fastapi.concurrency import run_in_threadpool

from mcfuser.graph.archive import HEAD
from mcfuser_db.blobs import Incoming
from mcfuser_service.problems import ProblemError, error

_CHUNK = 1 << 20


@dataclass(frozen=True)
class RequestBody:
    """What a body is to be, and how it is sent, in words for those who send something else.

    `check_size` is given a number of bytes and the first HEAD of them, which are None while they
    have not all come. It raises ProblemError where that is too much.
    """

    name: str
    how: str
    check_size: Callable[[int, bytes | None], None]

    def check_type(self, request: Request) -> None:
        """Raises ProblemError where a form is sent."""
        if request.headers.get("content-type", "").startswith("multipart/"):
            raise error("not-raw", f"the body is a form; {self.how}")

    async def receive(self, request: Request, incoming: Incoming, stall: float) -> None:
        """Writes the body to disk in chunks. Raises ProblemError where it is too large or empty,
        and where no byte of it comes for `stall` seconds."""
        chunk, parts, head, declared = bytearray(), request.stream(), b"", _declared(request)
        self.check_size(declared, None)
        while True:
            try:
                part = await asyncio.wait_for(anext(parts, None), stall)
            except TimeoutError:
                raise self._stalled(stall) from None
            if len(head) < HEAD:
                head += (part or b"")[: HEAD - len(head)]
            known = part is None or len(head) == HEAD
            size = incoming.size + len(chunk) + len(part or b"")
            self.check_size(max(size, declared), head if known else None)
            if part is None:
                break
            chunk += part
            if len(chunk) >= _CHUNK:
                await run_in_threadpool(incoming.write, bytes(chunk))
                chunk.clear()
        incoming.write(bytes(chunk))
        if incoming.size == 0:
            raise error("empty-body", f"the body is empty; {self.how}")

    def _stalled(self, seconds: float) -> ProblemError:
        words = f"no byte of the {self.name} came for {seconds:g} s; post it again"
        return ProblemError(error("stalled", words).details, {"Connection": "close"})


def _declared(request: Request) -> int:
    """The size that the header gives; 0 where it gives none."""
    length = request.headers.get("content-length", "")
    return int(length[:20]) if length.isascii() and length.isdigit() else 0
