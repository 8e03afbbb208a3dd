"""Whole numbers in a kernel: sums of what is known there by name, and a number."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Position:
    """A number plus variables, each with its factor; a variable is never negative."""

    terms: tuple[tuple[str, int], ...] = ()
    number: int = 0

    def plus(self, other: Position, times: int = 1) -> Position:
        """This and so many times the other."""
        found = dict(self.terms)
        for name, factor in other.terms:
            found[name] = found.get(name, 0) + times * factor
        terms = tuple((name, factor) for name, factor in found.items() if factor)
        return Position(terms, self.number + times * other.number)

    @property
    def natural(self) -> bool:
        """It is not negative, whatever the variables are."""
        return self.number >= 0 and all(factor > 0 for _, factor in self.terms)

    def __str__(self) -> str:
        ordered = sorted(self.terms, key=lambda term: term[1] < 0)
        parts = [name if abs(f) == 1 else f"{abs(f)} * {name}" for name, f in ordered]
        signs = ["+" if f > 0 else "-" for _, f in ordered]
        if self.number or not parts:
            first = bool(signs) and signs[0] == "-"
            parts.insert(0 if first else len(parts), str(abs(self.number)))
            signs.insert(0 if first else len(signs), "+" if self.number >= 0 else "-")
        head = f"-{parts[0]}" if signs[0] == "-" else parts[0]
        return " ".join([head, *(f"{s} {p}" for s, p in zip(signs[1:], parts[1:], strict=True))])


ONE = Position(number=1)
