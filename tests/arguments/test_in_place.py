"""Which outputs are written into the memory of inputs, in words."""

from __future__ import annotations

import pytest

from mcfuser.arguments.in_place import check_in_place, in_place_pairs
from mcfuser.errors import InputError


def test_pairs_have_the_input_first() -> None:
    words = ["past.0.key=present.0.key", "past.0.value=a=b"]
    assert in_place_pairs(words) == {"past.0.key": "present.0.key", "past.0.value": "a=b"}
    assert in_place_pairs([]) == {}


def test_words_are_kept_in_one_order() -> None:
    assert check_in_place(["b=c", "a=d"]) == ["a=d", "b=c"]


@pytest.mark.parametrize("word", ["", "past", "=present", "past=", "x" * 500])
def test_other_words_are_refused(word: str) -> None:
    with pytest.raises(InputError, match="does not say what is updated in place") as told:
        in_place_pairs([word])
    assert len(str(told.value)) < 200


@pytest.mark.parametrize(
    ("words", "told"), [(["a=b", "a=c"], "input 'a'"), (["a=b", "c=b"], "output 'b'")]
)
def test_nothing_is_updated_twice(words: list[str], told: str) -> None:
    with pytest.raises(InputError, match=f"{told} is updated in place twice"):
        check_in_place(words)
