"""A measuring process that outlives its Worker: its start takes longer than what many tests ask."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from mcfuser.process.child import Child
from mcfuser.process.limits import UNLIMITED, Limits
from mcfuser.process.supervised import Supervised

_idle: dict[object, tuple[Supervised, dict[str, Any]]] = {}
"""Processes that have answered all that they were asked, and their greetings, by what they were
started with."""


class KeptChild(Child):
    """A Child whose process, once stopped, serves the next one that is started with the same
    module, arguments, environment and limits; unless an answer of it was awaited."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        more: Mapping[str, str] = MappingProxyType({}),
        limits: Limits = UNLIMITED,
    ) -> None:
        super().__init__(module, arguments, more, limits)
        self._greeting: dict[str, Any] | None = None
        self._asked = False

    @property
    def _born_with(self) -> object:
        environment = {**os.environ, **self._environment}
        environment.pop("PYTEST_CURRENT_TEST", None)
        return self._module, *self._arguments, self._limits, *sorted(environment.items())

    def start(self) -> None:
        self.stop()
        kept = _idle.pop(self._born_with, None)
        if kept is None or not kept[0].alive:
            super().start()
            return
        self._process, self._greeting = kept

    def stop(self) -> None:
        process, greeting = self._process, self._greeting
        if process is None or greeting is None or self._asked or not process.alive:
            super().stop()
        else:
            self._process, other = None, _idle.pop(self._born_with, None)
            _idle[self._born_with] = process, greeting
            if other is not None:
                other[0].end()
        self._greeting, self._asked = None, False

    def ask(
        self, request: Mapping[str, Any], count: int, limit: float, deadline: float = math.inf
    ) -> Iterator[dict[str, Any] | str]:
        self._asked = True
        yield from super().ask(request, count, limit, deadline)
        self._asked = False

    def greeting(self, limit: float, deadline: float = math.inf) -> dict[str, Any] | str:
        answer = self._greeting or super().greeting(limit, deadline)
        if isinstance(answer, dict):
            self._greeting = answer
        return answer
