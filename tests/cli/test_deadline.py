"""The end of a command whose time is limited."""

from __future__ import annotations

import signal
import time

import pytest

from mcfuser.cli.deadline import interrupted, process_start
from mcfuser.errors import LimitError


def test_a_process_was_started_before_it_asks() -> None:
    begun = process_start()
    assert begun < time.monotonic()
    assert process_start() == pytest.approx(begun, abs=0.1)


def test_what_goes_on_past_its_end_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcfuser_service.compilation.grace", lambda limit: 0.05)
    before = signal.getsignal(signal.SIGALRM)
    with (
        pytest.raises(LimitError, match=r"was not tuned within 0\.1 s"),
        interrupted(time.monotonic() + 0.1, 0.1),
    ):
        time.sleep(60)
    assert signal.getsignal(signal.SIGALRM) == before


def test_what_ends_in_time_or_has_no_limit_is_left_alone() -> None:
    for end, limit in ((None, None), (time.monotonic() + 60, 60.0)):
        with interrupted(end, limit):
            pass
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
