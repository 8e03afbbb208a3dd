"""The errors that are the user's to mend: one sentence, no traceback."""

from __future__ import annotations

from typing import Literal


class InputError(ValueError):
    """What the user gave cannot be used.

    The message is one sentence that names the thing, what was found and what to do.
    The command prints it and exits with 2; the service answers with a 4xx.
    """


class ChainError(InputError):
    """A chain whose operators do not fit together."""


class DeviceError(InputError):
    """A device that is unknown or cannot be used."""


class ModelError(InputError):
    """A model that cannot be imported."""


class LimitError(InputError):
    """What was asked for takes more time or memory (`what`) than it may."""

    def __init__(self, sentence: str, what: Literal["time", "memory"] = "time") -> None:
        super().__init__(sentence)
        self.what = what
