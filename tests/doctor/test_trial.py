"""A model is compiled in a process that may die; tests/cli/test_doctor.py lets it live."""

from __future__ import annotations

import pytest

from mcfuser.doctor.trial import trial
from tests.support.doctor_dies import HOW


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("crash", "its process died of signal SIGSEGV"),
        ("hang", "it took longer than 3 s"),
        ("refuse", "TVM cannot build the module: no linker"),
        ("import", "ImportError: libtvm_ffi.so: undefined symbol"),
    ],
)
def test_a_trial_that_dies_is_a_problem(
    how: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOW, how)
    (found,) = trial("tests.support.doctor_dies", seconds=3.0)
    assert found.level == "problem" and words in found.sentence
    assert "\n" not in found.sentence and len(found.sentence) < 400
