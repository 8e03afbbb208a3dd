"""Options of the test run, and what all tests share."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew")
    parser.addoption("--cases", type=int, help="how many random chains the oracle looks at")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(autouse=True)
def no_steady_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests ask a compiled module whether it is right; steady times would take seconds each."""
    for name, value in (("_ROUNDS", 1), ("_REST", 0.0), ("_WARM", 0.0), ("_COUNTED", 0.0)):
        monkeypatch.setattr(f"mcfuser.graph.check.{name}", value)
