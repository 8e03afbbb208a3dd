"""The two languages of a kernel for Triton's compiler, and which operations each has."""

from __future__ import annotations

from dataclasses import dataclass

from mcfuser.lowering.triton.hopper.movement import MOVED
from mcfuser.space.statement import Illegal


@dataclass(frozen=True, slots=True)
class Dialect:
    """A language: the `name` under which its module is imported, and whether its compiler moves
    values among threads where an operation needs them elsewhere.

    Triton's does. In Gluon a kernel says itself which thread has which value, and nothing moves.
    """

    name: str
    moves: bool

    def word(self, operation: str) -> str:
        """The call of an operation that both languages have, which moves nothing."""
        return f"{self.name}.{operation}"

    def moving(self, operation: str) -> str:
        """The call of an operation that may move values among threads. Raises Illegal where
        nothing moves them."""
        if not self.moves:
            raise Illegal(MOVED)
        return self.word(operation)

    def full(self, shape: str, value: str, dtype: str, layout: str = "") -> str:
        """A tile of one value, in a layout if one is named (`, TILE`). Raises Illegal where the
        language wants a layout and none is named."""
        call = self.word("full") if layout else self.moving("full")
        return f"{call}({shape}, {value}, {self.word(dtype)}{layout})"


TRITON = Dialect("tl", moves=True)
GLUON = Dialect("gl", moves=False)
