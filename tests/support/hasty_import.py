"""In place of mcfuser_service.import_child: it measures with few rounds, and
takes no candidate for faster than a record's, which so few rounds cannot tell."""

from __future__ import annotations

from mcfuser.tune import rebuild
from mcfuser_service.import_child import answer
from tests.support.hasty import hasten

__all__ = ["answer"]

hasten()
vars(rebuild)["EPSILON"] = 1.0
