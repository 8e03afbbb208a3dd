"""The limits of a model's size. It is counted before anything is expanded or allocated."""

from __future__ import annotations

from dataclasses import dataclass, fields

from mcfuser.errors import ModelError

SETTING = "MCFUSER_MAX_"
"""The prefix of the environment variables that set limits; the limit's name follows."""


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """The largest numbers of parts that a model may have; a model with more is refused.

    The defaults allow models of tens of thousands of nodes, with tensors of several GB.
    """

    nodes: int = 50_000
    """Nodes, including those of branches, with every function call expanded."""
    fields: int = 2_000_000
    """Messages and names in the file: nodes, attributes, names of inputs, dimensions."""
    nesting: int = 32
    """The depth of graphs inside graphs, and of function calls inside functions."""
    rank: int = 32
    """Dimensions of one tensor."""
    elements: int = 3 << 28
    """Elements of one tensor: 3 GiB of float32."""
    total_bytes: int = 1 << 40
    """Bytes of all values of the graph together, as if none shared memory."""
    constant_bytes: int = 1 << 30
    """Bytes by which constants that are computed exceed the constants that they are made from."""
    model_bytes: int = (1 << 31) - 1
    """Bytes of the model with every function call expanded; protobuf holds no more."""
    weight_bytes: int = 1 << 36
    """Bytes of the tensors in external files, as if none shared a place."""
    unpacked_bytes: int = 1 << 33
    """Bytes of all files of an archive."""
    members: int = 10_000
    """Files and folders in an archive."""

    def check(self, limit: str, count: int, what: str, more: bool = False) -> None:
        """Raises ModelError where `count` exceeds the limit of that name.

        `what` begins the message, for example "tensor 'w' has {} elements"; the count replaces the
        braces. `more` says that counting stopped early.
        """
        most: int = getattr(self, limit)
        if count > most:
            number = f"at least {count}" if more else _short(count)
            raise ModelError(
                f"{what.replace('{}', number)}; the limit is {most}: make the model smaller or "
                f"raise {SETTING}{limit.upper()}"
            )


DEFAULTS = ModelLimits()
LIMITS = tuple(f.name for f in fields(ModelLimits))
"""The names of the limits."""


def _short(number: int) -> str:
    """The digits of a number; a power of ten if it has very many."""
    return str(number) if number < 10**30 else f"more than 10^{(number.bit_length() - 1) * 3 // 10}"
