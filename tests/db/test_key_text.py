"""The text of API keys: known at sight, whole or not, and compared with what is kept."""

from __future__ import annotations

import re

import pytest

from mcfuser_db.key_text import PATTERN, KeyText


def test_a_new_key_is_known_at_sight_and_is_no_other() -> None:
    made = {KeyText.new().words for _ in range(50)}
    assert len(made) == 50
    for words in made:
        assert re.search(PATTERN, f"export KEY='{words}'") is not None
        parsed = KeyText.parsed(words)
        assert parsed is not None and parsed.words == words and words.startswith("mcfuser_")
        assert parsed.matches(KeyText(parsed.id, words).hash)
        assert words not in repr(parsed) and parsed.hash not in words


def test_a_changed_digit_is_noticed_without_the_database() -> None:
    words = KeyText.new().words
    for place in range(len(words)):
        other = "0" if words[place] != "0" else "1"
        assert KeyText.parsed(words[:place] + other + words[place + 1 :]) is None


@pytest.mark.parametrize("words", ["", "mcfuser_", "x" * 94, "mcfuser_\0", "ghp_abc", "mcfuser_é"])
def test_other_words_are_no_key(words: str) -> None:
    assert KeyText.parsed(words) is None


def test_what_is_around_a_key_is_none_of_it() -> None:
    words = KeyText.new().words
    for other in (words[:-1], words + "0", words.upper(), f" {words}", f"{words}\n"):
        assert KeyText.parsed(other) is None


def test_a_key_matches_its_own_hash_alone() -> None:
    one, other = KeyText.new(), KeyText.new()
    assert one.matches(one.hash) and not one.matches(other.hash) and not one.matches("")
