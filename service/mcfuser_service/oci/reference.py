"""Where an artefact is: `oci://HOST[:PORT]/REPOSITORY`, with `:TAG` or `@sha256:DIGEST`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mcfuser.errors import InputError
from mcfuser_service.hosts import is_loopback

SCHEME = "oci://"
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_TAG = "latest"

# As the OCI distribution specification has names and tags.
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    r"oci://(?P<host>(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?)"
    rf"/(?P<repository>{_PART}(?:/{_PART})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_LONGEST = 1000  # characters of a reference


@dataclass(frozen=True, slots=True)
class Reference:
    """An artefact in a registry. `host` may have a port; where there is a `digest`, that alone
    decides, and the `tag` says nothing."""

    host: str
    repository: str
    tag: str
    digest: str | None = None

    def __str__(self) -> str:
        end = f"@{self.digest}" if self.digest is not None else f":{self.tag}"
        return f"{SCHEME}{self.host}/{self.repository}{end}"

    @property
    def loopback(self) -> bool:
        """Whether the registry is on this machine."""
        return loopback(self.host)


def loopback(host: str) -> bool:
    """Whether a host, with or without a port, is this machine."""
    name = re.sub(r":[0-9]*$", "", host) if not host.endswith("]") else host
    return is_loopback(name.strip("[]"))


def read_reference(words: str) -> Reference:
    """The reference that is written in `words`; its tag is `latest` where it has none.

    Raises InputError where it is none.
    """
    found = _REFERENCE.fullmatch(words) if len(words) <= _LONGEST else None
    if found is None:
        raise InputError(
            f"'{words[:200]}' names no artefact of a registry; write oci://HOST/REPOSITORY:TAG or "
            "oci://HOST/REPOSITORY@sha256:DIGEST, the repository in small letters"
        )
    return Reference(found["host"], found["repository"], found["tag"] or _TAG, found["digest"])
