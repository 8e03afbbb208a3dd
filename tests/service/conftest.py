"""What the tests of the service, and those of its page, share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mcfuser_service import explaining
from mcfuser_service.here_child import answer
from tests.support.db_storages import upgrade_by_copy


@pytest.fixture(scope="session", autouse=True)
def databases_are_copied(patch: pytest.MonkeyPatch) -> None:
    """The migrations take longer than what most tests ask a database."""
    patch.setattr("mcfuser_db.database.upgrade", upgrade_by_copy)


@pytest.fixture(scope="module")
def asked_here() -> Iterator[None]:
    """What kernels are made with is asked of this process, which has loaded the compilers and
    probed the CPU: no other one does."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(explaining, "run", lambda module, request, limits: answer(request, print))
        yield
