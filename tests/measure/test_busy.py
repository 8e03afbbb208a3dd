"""A machine that does something else meanwhile is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcfuser.measure import busy
from mcfuser.measure.busy import watched


@pytest.mark.parametrize(("own", "told"), [(1.0, False), (0.963, False), (0.6, True)])
def test_a_thread_that_waits_for_a_core_tells(own: float, told: bool) -> None:
    wall, work = iter((5.0, 7.0)), iter((1.0, 1.0 + 2.0 * own))
    with watched(lambda: next(wall), lambda: next(work)) as state:
        assert not state
    assert (state["share"], state["busy"]) == (own, told)
    assert state["cores"] >= 1


def test_pressure_is_told_where_there_is_any(monkeypatch, tmp_path: Path) -> None:
    path = tmp_path / "cpu"
    monkeypatch.setattr(busy, "PRESSURE", path)
    for words, told in ((None, None), ("no such form", None),
                        ("some avg10=97.73 avg60=1 avg300=2 total=3", 97.73)):  # fmt: skip
        if words is not None:
            path.write_text(words)
        with watched() as state:
            pass
        assert state.get("pressure") == told
