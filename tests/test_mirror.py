"""Every module has a test file of its own, or is named in the table of those that have none.

`mcfuser/<room>/<module>.py` is tested by `tests/<room>/test_<module>.py`.
"""

from __future__ import annotations

import re

import pytest

from tests.support.mirror import ELSEWHERE, THROUGH, mirror, modules
from tests.support.paths import ROOT, TESTS

TEST = re.compile(r"^ *def test_", re.MULTILINE)


@pytest.mark.parametrize("module", sorted(modules()))
def test_a_module_has_its_test_file_or_says_which_looks_at_it(module: str) -> None:
    own, named = mirror(module).exists(), module in ELSEWHERE
    assert own or named, f"write {mirror(module).relative_to(ROOT)}"
    assert not (own and named), f"{module} has a test file: take it out of tests/support/mirror.py"


def test_what_looks_at_a_module_exists_and_so_does_the_module() -> None:
    assert not {t for t in THROUGH if not (TESTS / t).exists()}
    assert not set(ELSEWHERE) - set(modules())


def test_no_file_is_thorough_as_a_whole() -> None:
    """`make test`, which leaves out what is thorough, looks at every module."""
    for file in TESTS.rglob("test_*.py"):
        text = file.read_text()
        assert text.count("@pytest.mark.thorough") < len(TEST.findall(text)), file


def test_files_that_share_a_process_exist() -> None:
    scheduling = pytest.importorskip("tests.support.scheduling", exc_type=ImportError)
    named = [path for used in scheduling.SHARING.values() for path in used]
    assert named and not [path for path in named if not (TESTS / path).exists()]
