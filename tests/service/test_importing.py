"""A file of kernels that others wrote is imported, whatever is in it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from mcfuser.errors import InputError
from mcfuser_db import Storage
from mcfuser_service import importing
from mcfuser_service.import_child import answer
from mcfuser_service.importing import Imported, import_kernels
from tests.support.records import line, searched, write

MEMORY = 8 << 30


@pytest.mark.thorough
def test_kernels_are_built_and_checked_here_and_others_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a process of its own, which measures on the CPU at hand."""
    monkeypatch.setattr(importing, "_MODULE", "tests.support.hasty_import")
    one = searched()
    lines = [line(one), "garbage", line(one, tiles={"m": 3, "n": 3, "k": 3, "h": 3}), line(one)]
    url = f"sqlite:///{tmp_path / 'x.db'}"
    done = import_kernels(write(tmp_path / "x.jsonl", *lines), url, MEMORY, 120.0)
    assert (done.kept, done.known) == (1, 2) and list(done.refused) == [3]
    with closing(Storage(url)) as store:
        kept = store.get(one.key)
    assert kept is not None and kept.source == one.source and kept.budget == one.budget
    assert kept.measured not in (None, one.measured) and kept.error is not None


def test_a_file_of_another_format_is_refused_as_a_whole(tmp_path: Path) -> None:
    file = write(tmp_path / "x.jsonl", line(searched()), first={"format": "mcfuser-kernels"})
    request = {"file": str(file), "after": 0, "store": "sqlite://", "seconds": 1.0}
    with pytest.raises(InputError, match="version None of the format"):
        answer(request, lambda message: None)


class TestDeaths:
    @pytest.fixture(autouse=True)
    def stand_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importing, "_MODULE", "tests.support.import_dies")
        monkeypatch.setattr(importing, "_START", 3.0)

    def imported(self, folder: Path, words: str) -> Imported:
        (folder / "x").write_text(words)
        return import_kernels(folder / "x", "", MEMORY, 0.0)

    @pytest.mark.thorough
    def test_a_line_that_ends_its_process_or_hangs_costs_no_other_line(
        self, tmp_path: Path
    ) -> None:
        done = self.imported(tmp_path, "kept dies kept hangs known refused kept")
        assert (done.kept, done.known) == (3, 1)
        assert list(done.refused) == [3, 5, 7] and done.refused[7] == "a reason"
        assert done.refused[3].startswith("it ends the process that builds it")
        assert done.refused[5] == "it took longer than 0 s"
        assert done.to_json()["refused"][0]["line"] == 3

    def test_too_many_deaths_end_the_import(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(importing, "DEATHS", 2)
        with pytest.raises(InputError, match="was given up at line 4: 2 lines have ended"):
            self.imported(tmp_path, "kept dies dies kept")

    @pytest.mark.parametrize("words", ["before", "unreadable"])
    def test_a_file_that_cannot_be_read_is_one_sentence(self, tmp_path: Path, words: str) -> None:
        with pytest.raises(InputError):
            self.imported(tmp_path, words)
