"""How large a model may be. Everything is counted before anything is expanded or allocated."""

from __future__ import annotations

from dataclasses import dataclass, fields

from mcfuser.errors import ModelError

SETTING = "MCFUSER_MAX_"
"""A limit is raised by the environment variable of this prefix and the limit's name."""


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """The most of each thing that a model may have; beyond it the model is refused.

    The defaults let models of tens of thousands of nodes and tensors of several GB pass.
    """

    nodes: int = 50_000
    """Nodes, those of branches and of function bodies too, with every call written out."""
    fields: int = 2_000_000
    """Messages and names in the file: nodes, attributes, names of inputs, dimensions."""
    nesting: int = 32
    """Graphs inside graphs, and calls of functions inside functions."""
    rank: int = 32
    """Dimensions of one tensor."""
    elements: int = 3 << 28
    """Elements of one tensor: 3 GiB of float32."""
    total_bytes: int = 1 << 40
    """Bytes of all values of the graph together, as if none shared memory."""
    constant_bytes: int = 1 << 30
    """Bytes of constants that are computed and have more elements than what they come from."""
    model_bytes: int = (1 << 31) - 1
    """Bytes of the model with every call of its functions written out; protobuf holds no more."""

    def check(self, limit: str, found: int, what: str, more: bool = False) -> None:
        """Raises ModelError where `found` exceeds the limit of that name.

        `what` begins the sentence: "tensor 'w' has {} elements", with the number in place of the
        braces at its end or in its midst. `more` says that counting stopped early.
        """
        most: int = getattr(self, limit)
        if found > most:
            number = f"at least {found}" if more else _short(found)
            raise ModelError(
                f"{what.replace('{}', number)}; the limit is {most}: make the model smaller or "
                f"raise {SETTING}{limit.upper()}"
            )


DEFAULTS = ModelLimits()
LIMITS = tuple(f.name for f in fields(ModelLimits))
"""The names of the limits."""


def _short(number: int) -> str:
    """Digits, or the power of ten where there would be very many."""
    return str(number) if number < 10**30 else f"more than 10^{(number.bit_length() - 1) * 3 // 10}"
