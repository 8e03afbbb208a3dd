"""The errors that a user can mend; they are shown as one sentence, without a traceback."""

from __future__ import annotations

from typing import Literal


class InputError(ValueError):
    """The user's input cannot be used.

    The message is one sentence: the thing, what is wrong with it, and what to do. The command
    prints it and exits with 2; the service answers with a 4xx. It may quote the input, so control
    characters (line ends, terminal escapes) are escaped, and a very long message is cut.
    """

    def __init__(self, message: str) -> None:
        super().__init__(in_one_line(message))


_LONGEST = 2000  # characters of a sentence


def in_one_line(message: str) -> str:
    """A message whose control characters are escaped, and which is cut where it is very long."""
    cut = message if len(message) <= _LONGEST else f"{message[: _LONGEST - 2]} …"
    if cut.isprintable():
        return cut
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in cut)


class ChainError(InputError):
    """A chain whose operators do not fit together."""


class DeviceError(InputError):
    """A device that is unknown or cannot be used."""


class ModelError(InputError):
    """A model that cannot be read or imported."""


class DisagreementError(InputError):
    """A compiled module computes something else than onnxruntime."""


class SignatureError(InputError):
    """What was signed is not what is there, or nothing trustworthy was signed."""


class RegistryError(InputError):
    """A registry that cannot be reached, fails, or gives something else than it says."""


class KilledError(InputError):
    """A process was killed from outside before it had done its work, which may be tried again."""


class SpaceError(InputError):
    """The disk has no space for what the work writes."""


class LimitError(InputError):
    """The work takes more time or memory (`what`) than it may."""

    def __init__(self, sentence: str, what: Literal["time", "memory"] = "time") -> None:
        super().__init__(sentence)
        self.what = what
