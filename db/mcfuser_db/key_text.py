"""The text of API keys: `mcfuser_`, an id, `_`, a secret, and a checksum of all before it.

The id finds the key's row. The secret is 256 random bits, of which the database has the SHA-256
alone. A slow hash would gain nothing: it protects passwords, which can be guessed, and would cost
processor time at every request. The prefix and the checksum let scanners of repositories and logs
know a key when they see one, and a key that was not copied whole is told from one that is unknown.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import zlib
from dataclasses import dataclass
from typing import Self

PREFIX = "mcfuser_"
ID_DIGITS = 12
PATTERN = rf"{PREFIX}([0-9a-f]{{{ID_DIGITS}}})_[0-9a-f]{{64}}([0-9a-f]{{8}})"
"""A regular expression of all keys, for scanners; its groups are the id and the checksum."""


@dataclass(frozen=True)
class KeyText:
    """A key as its owner has it. It is never kept, and not shown in messages."""

    id: str
    words: str

    def __repr__(self) -> str:
        return f"KeyText({self.id!r})"

    @classmethod
    def new(cls) -> Self:
        id = secrets.token_hex(ID_DIGITS // 2)
        head = f"{PREFIX}{id}_{secrets.token_hex(32)}"
        return cls(id, head + _checksum(head))

    @classmethod
    def parsed(cls, words: str) -> Self | None:
        """The key; None where the words have another form, or the checksum of other words."""
        match = re.fullmatch(PATTERN, words, re.ASCII)
        if match is None or _checksum(words[: match.start(2)]) != match[2]:
            return None
        return cls(match[1], words)

    @property
    def hash(self) -> str:
        """The SHA-256 that is kept of the key, in hexadecimal."""
        return hashlib.sha256(self.words.encode()).hexdigest()

    def matches(self, kept: str) -> bool:
        """Whether a kept hash is that of this key; takes as long where it is not."""
        return hmac.compare_digest(self.hash, kept)


def _checksum(head: str) -> str:
    return f"{zlib.crc32(head.encode()):08x}"
