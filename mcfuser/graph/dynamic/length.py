"""Run-time extents as expressions over those of the inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never


@dataclass(frozen=True, slots=True)
class Symbol:
    """An extent of an input, or one that elements decide."""

    name: str


@dataclass(frozen=True, slots=True)
class LengthSum:
    """A sum of multiples of lengths, and a constant."""

    terms: tuple[tuple[Length, int], ...]
    constant: int = 0


@dataclass(frozen=True, slots=True)
class Quotient:
    """A length divided by a positive number, rounded down."""

    length: Length
    divisor: int


@dataclass(frozen=True, slots=True)
class LengthProduct:
    """A length times another one."""

    one: Length
    other: Length


@dataclass(frozen=True, slots=True)
class Least:
    """The smaller one of a length and a number."""

    length: Length
    most: int


Length = Symbol | LengthSum | LengthProduct | Quotient | Least


def number(value: int) -> Length:
    """A length that is the same at every shape."""
    return LengthSum((), value)


def plus(length: Length, constant: int) -> Length:
    """A length and a constant."""
    if isinstance(length, LengthSum):
        return LengthSum(length.terms, length.constant + constant)
    return LengthSum(((length, 1),), constant) if constant else length


def quotient(length: Length, divisor: int) -> Length:
    """A length divided, rounded down."""
    return length if divisor == 1 else Quotient(length, divisor)


def product(lengths: Sequence[Length | None]) -> Length | None:
    """A product of lengths; None where one is not known."""
    whole: Length | None = None
    times = 1
    for one in lengths:
        if one is None:
            return None
        if isinstance(one, LengthSum) and not one.terms:
            times *= one.constant
        else:
            whole = one if whole is None else LengthProduct(whole, one)
    return LengthSum(((whole, times),)) if whole is not None else number(times)


def symbols(length: Length) -> frozenset[str]:
    """The names of the extents that a length depends on."""
    match length:
        case Symbol(name):
            return frozenset((name,))
        case LengthSum(terms, _):
            return frozenset().union(*(symbols(one) for one, _ in terms))
        case LengthProduct(one, other):
            return symbols(one) | symbols(other)
        case Quotient(divided, _):
            return symbols(divided)
        case Least(bounded, _):
            return symbols(bounded)
        case _:
            assert_never(length)


def evaluate(length: Length, at: Mapping[str, int]) -> int:
    """The number that a length is where the inputs' extents are `at`."""
    match length:
        case Symbol(name):
            return at[name]
        case LengthSum(terms, constant):
            return sum(evaluate(one, at) * times for one, times in terms) + constant
        case LengthProduct(one, other):
            return evaluate(one, at) * evaluate(other, at)
        case Quotient(divided, divisor):
            return evaluate(divided, at) // divisor
        case Least(bounded, most):
            return min(evaluate(bounded, at), most)
        case _:
            assert_never(length)
