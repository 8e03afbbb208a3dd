"""What users wrote, in messages about it."""

from __future__ import annotations

import pytest

from mcfuser.arguments.words import LONGEST, shortened


@pytest.mark.parametrize("words", ["", "fp8", "x" * LONGEST])
def test_a_few_words_are_shown_as_they_are(words: str) -> None:
    assert shortened(words) == words


def test_many_are_cut() -> None:
    assert shortened("x" * LONGEST + "y") == "x" * LONGEST + ".."
