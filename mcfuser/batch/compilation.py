"""What a batch's page shows of an entry's compilation: its chains, kernels, and what was left out.

It is read from the entry's report.json, which may be a server's: what has another form is not
shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

LARGEST = 64 << 20
"""The largest report that is read, in bytes."""

_Time = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Shown(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class ShownKernel(_Shown):
    """A kernel that the module runs; times are of one run, in seconds."""

    expression: str
    tiles: Mapping[str, int]
    lowering: Mapping[str, Any] = {}
    measured_seconds: _Time | None = None
    predicted_seconds: _Time | None = None

    @property
    def seconds(self) -> float | None:
        """The measured time, else the predicted one."""
        return self.measured_seconds if self.measured_seconds is not None else (
            self.predicted_seconds
        )  # fmt: skip


class ShownChain(_Shown):
    """A chain of the model, the kernels that compute it, and why these."""

    name: str
    places: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    fused: bool
    reason: str = ""
    kernels: tuple[ShownKernel, ...] = ()


class ShownProduct(_Shown):
    """A product of the model; `reason` says why it shares no kernel, if it does not."""

    name: str
    shape: Mapping[str, int] = {}
    dtype: str = ""
    reason: str | None = None


class ShownCompilation(_Shown):
    """A compilation."""

    times: str = ""
    chains: tuple[ShownChain, ...] = ()
    products: tuple[ShownProduct, ...] = ()

    @property
    def left(self) -> dict[str, list[ShownProduct]]:
        """The products that share no kernel, by the reason."""
        found: dict[str, list[ShownProduct]] = {}
        for product in self.products:
            if product.reason is not None:
                found.setdefault(product.reason, []).append(product)
        return found


def read_compilation(folder: Path) -> ShownCompilation | None:
    """The compilation whose report is in a folder; None where there is none, or it has another
    form."""
    try:
        with (folder / "report.json").open("rb") as file:
            data = file.read(LARGEST + 1)
        return ShownCompilation.model_validate_json(data) if len(data) <= LARGEST else None
    except (OSError, ValidationError):
        return None
