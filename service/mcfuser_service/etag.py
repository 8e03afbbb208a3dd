"""Entity tags: whether a client has what it asks for already."""

from __future__ import annotations


def is_known(header: str | None, digest: str) -> bool:
    """Whether If-None-Match names an entity tag that is a digest (RFC 9110's weak comparison);
    `header` is None where the request has none."""
    tags = (tag.strip().removeprefix("W/") for tag in (header or "").split(","))
    return any(tag in ("*", f'"{digest}"') for tag in tags)
