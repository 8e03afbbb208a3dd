"""Mutants: one change each, the same for the same seed, and none where nothing is evaluated."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("cosmic_ray", reason="mutants need the dev extra's cosmic-ray")

from tests.mutation.__main__ import Unready, copied, judged, passes, summary
from tests.mutation.__main__ import tests_of as chosen
from tests.mutation.equivalents import Equivalent
from tests.mutation.mutants import by_place, places, sampled
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


def test_that_lengths_agree_is_an_assertion_which_stays() -> None:
    assert by_place("pairs = zip(a, b, strict=True)\n") == {}
    assert by_place("pairs = sort(a, other=True)\n")


def test_words_are_compared_and_never_ordered() -> None:
    def names(text: str) -> list[str]:
        return sorted(p.operator.rpartition("/")[2] for p in places(text))

    turned = ["ReplaceComparisonOperator_Eq_NotEq"]
    assert names('same = kind == "sum"\n') == names('same = "sum" == kind\n') == turned
    assert "ReplaceComparisonOperator_Eq_Lt" in names("same = kind == other\n")
    assert "ReplaceComparisonOperator_Lt_GtE" in names("less = 'a' != kind < other\n")


def test_no_more_are_drawn_than_there_are(folder: Path) -> None:
    assert len(sampled([folder], 0, 10_000)) == len(by_place(SOURCE))
    assert sampled([folder], 0, 0) == []


def test_a_modules_own_tests_come_before_those_of_its_room() -> None:
    own, room = chosen(Path("mcfuser/algebra/linear.py"), ROOT)
    assert own == ["tests/algebra/test_linear.py"]
    assert room == ["tests/algebra", "--ignore=tests/algebra/test_linear.py"]
    assert chosen(Path("mcfuser/algebra/masks_of_old.py"), ROOT) == [["tests/algebra"]]
    inside, _ = chosen(Path("mcfuser/lowering/triton/dot.py"), ROOT)
    assert inside == ["tests/lowering/triton/test_dot.py"]


def test_a_module_without_tests_of_its_own_is_judged_by_those_that_look_at_it() -> None:
    looking, room = chosen(Path("mcfuser/lowering/tensorir/knobs.py"), ROOT)
    assert looking == ["tests/backends/test_backends.py"]
    assert room[0] == "tests/lowering"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A room of one module, which its own tests pin down but for one number."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they need none, and load longer
    room, tests = tmp_path / "mcfuser" / "algebra", tmp_path / "tests" / "algebra"
    room.mkdir(parents=True)
    tests.mkdir(parents=True)
    (tmp_path / "tests" / "conftest.py").write_text(
        "def pytest_addoption(parser):\n    parser.addoption('--cases')\n"
    )
    (room / "bound.py").write_text("LOW = 1\nHIGH = 9\n")
    (tests / "test_bound.py").write_text(
        "from mcfuser.algebra.bound import LOW\n\n\ndef test_low():\n    assert LOW == 1\n"
    )
    return tmp_path


@pytest.fixture
def copies(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two copies of that checkout, which the command takes for this one."""
    monkeypatch.setattr("tests.mutation.__main__.ROOT", checkout)
    found = [tmp_path / "copy", tmp_path / "another"]
    for folder in found:
        folder.mkdir()
        copied(folder)
    return found


def test_what_no_test_notices_survives_and_files_are_put_back(
    checkout: Path, copies: list[Path]
) -> None:
    mutants = sampled([checkout / "mcfuser"], 0, 10)
    verdicts = judged(mutants, copies)
    assert [(v.mutant.before, v.fate) for v in verdicts] == [
        ("LOW = 1", "killed"),
        ("HIGH = 9", "survived"),
    ]
    assert summary(verdicts) == "1 of 2 killed: 50%"
    for folder in (checkout, *copies):
        assert (folder / "mcfuser/algebra/bound.py").read_text() == "LOW = 1\nHIGH = 9\n"


def test_what_is_known_to_mean_the_same_is_counted_neither_way(
    checkout: Path, copies: list[Path]
) -> None:
    mutants = sampled([checkout / "mcfuser"], 0, 10)
    high = next(m for m in mutants if m.before == "HIGH = 9")
    same = Equivalent("algebra/bound", "HIGH = 9", (high.after,), "nothing reads it")
    verdicts = judged(mutants, copies, [same])
    assert {v.mutant.before: v.fate for v in verdicts} == {
        "LOW = 1": "killed",
        "HIGH = 9": "the same",
    }
    assert summary(verdicts) == "1 of 1 killed: 100%; 1 that mean the same are left out"
    otherwise = Equivalent("algebra/bound", "HIGH = 9", ("HIGH = 7",), "another mutant")
    elsewhere = Equivalent("algebra/found", "HIGH = 9", (high.after,), "another module")
    assert {v.fate for v in judged([high], copies, [otherwise, elsewhere])} == {"survived"}


def test_a_room_whose_tests_fail_without_a_mutant_is_refused(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.mutation.__main__.ROOT", checkout)
    mutants = sampled([checkout / "mcfuser"], 0, 1)
    (checkout / "tests/algebra/test_bound.py").write_text("def test_low():\n    assert False\n")
    with pytest.raises(Unready, match="tests/algebra fail without any mutant"):
        judged(mutants, [checkout])


def test_no_tests_at_all_notice_nothing_and_hanging_ones_notice(checkout: Path) -> None:
    (checkout / "tests/algebra/test_bound.py").write_text("")
    assert passes(["tests/algebra"], checkout, None)
    (checkout / "tests/algebra/test_bound.py").write_text(
        "import time\n\n\ndef test_it():\n    time.sleep(600)\n"
    )
    assert not passes(["tests/algebra"], checkout, 2.0)
