"""What a compilation tells is the same after it went through a pipe."""

from __future__ import annotations

import json

import pytest

from mcfuser.tune.progress import ChainPlace, Progress


@pytest.mark.parametrize(
    "progress",
    [
        Progress("import"),
        Progress("measure", 3, 9, 4, 1, 2e-6, ChainPlace(2, 5, "attention"), 12.5),
    ],
)
def test_progress_comes_back_as_it_was_told(progress: Progress) -> None:
    assert Progress.from_json(json.loads(json.dumps(progress.to_json()))) == progress


def test_it_says_which_chain_is_searched() -> None:
    assert str(Progress("build")) == "build"
    assert str(Progress("measure", chain=ChainPlace(2, 5, "attention"))) == "measure chain 2 of 5"
