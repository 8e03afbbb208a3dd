"""What users wrote, in messages about it."""

from __future__ import annotations

LONGEST = 60
"""Characters of a user's words that a message shows."""


def shortened(words: str) -> str:
    """The words, cut where they are long."""
    return words if len(words) <= LONGEST else f"{words[:LONGEST]}.."
