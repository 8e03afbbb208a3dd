"""Mutants: one change each, the same for the same seed, and none where nothing is evaluated."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("cosmic_ray", reason="mutants need the dev extra's cosmic-ray")

from tests.mutation.__main__ import tests_of as chosen
from tests.mutation.mutants import by_place, sampled
from tests.support.paths import ROOT

SOURCE = '''"""A module."""
from functools import lru_cache


@lru_cache(maxsize=7)
def least(a: int | None, b: int = 3) -> int | None:
    if a is None or b < 2:
        return b + 1
    return a
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "one.py").write_text(SOURCE)
    return tmp_path


def test_a_seed_draws_the_same_mutants(folder: Path) -> None:
    first, again = sampled([folder], 3, 4), sampled([folder], 3, 4)
    assert first == again and len(first) == 4
    assert sampled([folder], 4, 4) != first


def test_a_mutant_differs_in_the_line_that_it_names(folder: Path) -> None:
    for m in sampled([folder], 0, 20):
        old, new = SOURCE.splitlines(), m.text.splitlines()
        changed = [i + 1 for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
        assert changed == [m.line]
        assert m.before == old[m.line - 1].strip() != m.after == new[m.line - 1].strip()


def test_annotations_and_decorators_stay(folder: Path) -> None:
    lines = {line for line, _ in by_place(SOURCE)}
    assert lines and not lines & {5}
    assert all(column > 26 for line, column in by_place(SOURCE) if line == 6)  # the 3 alone


def test_no_more_are_drawn_than_there_are(folder: Path) -> None:
    assert len(sampled([folder], 0, 10_000)) == len(by_place(SOURCE))
    assert sampled([folder], 0, 0) == []


def test_a_modules_own_tests_come_before_those_of_its_room() -> None:
    own, room = chosen(Path("mcfuser/algebra/linear.py"), ROOT)
    assert (own, room) == ("tests/algebra/test_linear.py", "tests/algebra")
    assert chosen(Path("mcfuser/algebra/masks_of_old.py"), ROOT) == ["tests/algebra"]
