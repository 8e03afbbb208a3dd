"""What a death is called, by its status and last words."""

from __future__ import annotations

import signal

import pytest

from mcfuser.process.death import Death, death_of


@pytest.mark.parametrize(
    ("status", "manner", "signalled", "fault"),
    [(0, "status 0", False, False), (1, "status 1", False, False),
     (-signal.SIGSEGV, "signal SIGSEGV", True, True),
     (-signal.SIGKILL, "signal SIGKILL", True, False), (-40, "signal 40", True, False)],
)  # fmt: skip
def test_the_manner_of_a_death(status: int, manner: str, signalled: bool, fault: bool) -> None:
    death = Death("death", status)
    assert (death.manner, death.signalled, death.fault) == (manner, signalled, fault)


def test_the_last_line_of_its_words() -> None:
    assert Death("death", 1, "Traceback\n  KeyError: 'x' \n\n").last == "KeyError: 'x'"
    assert Death("death", 1, "nvrtc: error: no half\n\0\n").last == "nvrtc: error: no half"
    assert Death("death", 1).last == ""


def test_what_it_lacked() -> None:
    assert death_of(-signal.SIGXCPU, "", limited=False).why == "processor"
    short = "terminate called after throwing an instance of 'std::bad_alloc'"
    assert death_of(-signal.SIGABRT, short, limited=True).why == "memory"
    assert death_of(-signal.SIGABRT, short, limited=False).why == "death"


def test_a_compiler_s_error_tells_more_than_its_last_line() -> None:
    words = 'mma.h(55): catastrophic error: cannot open source file "x.h"\n\nCompilation ended.\n\0'
    assert Death("death", 1, words).telling.endswith('cannot open source file "x.h"')
    assert Death("death", 1, "k.cu(3): error: a\nk.cu(9): error: b\n").telling.endswith(": a")
    assert Death("death", 1, "k.cu(3): error #20-D: a\nlast").telling.endswith(": a")
    assert Death("death", 1, "ValueError: no error here\n").telling == "ValueError: no error here"
