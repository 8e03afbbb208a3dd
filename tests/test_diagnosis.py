"""Findings, and checks that fail."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mcfuser.diagnosis import Diagnosis, guarded, one_line


def test_what_a_check_found_before_it_failed_is_kept() -> None:
    def check() -> Iterator[Diagnosis]:
        yield Diagnosis("disk", "ok", "it is there")
        raise OSError(5, "Input/output error\nof the disk")

    first, second = guarded("disk", check)
    assert first.level == "ok" and second.level == "problem"
    assert second.sentence == (
        "it cannot be examined: OSError: [Errno 5] Input/output error of the disk"
    )
    assert second.remedy and second.to_json()["subject"] == "disk"


@pytest.mark.parametrize("error", [ImportError("libtvm.so: no such file"), RuntimeError()])
def test_any_error_is_a_problem(error: Exception) -> None:
    def check() -> Iterator[Diagnosis]:
        raise error
        yield

    (found,) = guarded("TVM", check)
    assert found.level == "problem" and type(error).__name__ in found.sentence


def test_a_path_that_the_system_refuses_is_named() -> None:
    def check() -> Iterator[Diagnosis]:
        raise PermissionError(13, "Permission denied", "/home/other/mcfuser")
        yield

    (found,) = guarded("data folder", check)
    assert found.sentence == "'/home/other/mcfuser' cannot be used: Permission denied"
    assert found.remedy == "let this user read and write it"


def test_a_missing_module_is_named() -> None:
    def check() -> Iterator[Diagnosis]:
        import no_such_module  # type: ignore[import-not-found]

        yield no_such_module

    (found,) = guarded("TVM", check)
    assert found.sentence == "it cannot be examined without the module no_such_module"


def test_long_words_are_one_short_line() -> None:
    assert one_line("a\n\n b\tc") == "a b c"
    assert len(one_line("x" * 1000)) == 300
