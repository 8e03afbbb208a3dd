"""Values of inputs as users write them."""

from __future__ import annotations

import pytest

from mcfuser.arguments.values import input_values
from mcfuser.errors import InputError


def test_each_input_has_a_value() -> None:
    assert input_values(["use=true", "a=b=0.5,2"]) == {"use": "true", "a=b": "0.5,2"}


@pytest.mark.parametrize("word", ["use", "=true", "use=", ""])
def test_other_words_are_named(word: str) -> None:
    with pytest.raises(InputError, match=rf"'{word}' does not give an input a value"):
        input_values([word])


def test_an_input_has_one_value() -> None:
    with pytest.raises(InputError, match="input 'use' is given a value twice"):
        input_values(["use=true", "use=false"])
