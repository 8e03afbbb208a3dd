"""The process in which a model is compiled, with few rounds of timing."""

from __future__ import annotations

from mcfuser_service.compile_child import answer
from tests.support.hasty import hasten

__all__ = ["answer"]

hasten()
