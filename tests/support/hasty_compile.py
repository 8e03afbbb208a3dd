"""The process in which a model is compiled, with few rounds of timing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mcfuser_service import compile_child
from tests.support import forked_birth
from tests.support.hasty import hasten

hasten()


def answer(request: Mapping[str, Any], tell: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    forked_birth.install()
    return compile_child.answer(request, tell)
