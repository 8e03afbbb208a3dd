"""The constants of the model that were fitted to a device's own candidates, in versions.

They are a row beside those of probes, under a name that no device has: its `readings` are the
constants in use, and its `conditions` say what they were fitted to, and what was in use before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy.orm import Session

from mcfuser_db.models import Probed

if TYPE_CHECKING:
    from mcfuser_db.store import Storage

MOST = 20
"""Earlier versions that are kept of a device's constants."""


@dataclass(frozen=True, slots=True)
class KeptConstants:
    """Constants by name, their version, which counts from 1, and what is told of their fit."""

    version: int
    constants: Mapping[str, float]
    report: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "constants": dict(self.constants),
            "report": dict(self.report),
        }


def constants_of(session: Session, device: str) -> KeptConstants | None:
    """The constants in use of the device with a name; None where those of the catalogue are."""
    row = session.get(Probed, _name(device))
    if row is None:
        return None
    return KeptConstants(row.conditions["version"], row.readings, row.conditions["report"])


def keep_constants(
    store: Storage, device: str, constants: Mapping[str, float], report: Mapping[str, Any]
) -> int:
    """Puts constants in use, over those that were before; gives their version."""
    with store.writing() as session:
        last = constants_of(session, device)
        earlier = session.get_one(Probed, _name(device)).conditions["earlier"] if last else []
        kept = [*earlier, last.to_json()] if last is not None else []
        version = 1 + (last.version if last is not None else 0)
        session.merge(
            Probed(
                device=_name(device), readings=dict(constants), created=store.now(),
                conditions={
                    "version": version, "report": dict(report), "earlier": kept[-MOST:]
                },
            )
        )  # fmt: skip
    return version


def reset_constants(store: Storage, device: str) -> int | None:
    """Takes the constants in use back, for those before them; gives the version that is in use
    then, 0 for the catalogue's; None where those were in use already."""
    with store.writing() as session:
        row = session.get(Probed, _name(device))
        if row is None:
            return None
        *rest, last = row.conditions["earlier"] or [None]
        if last is None:
            session.delete(row)
            return 0
        row.readings, row.created = last["constants"], store.now()
        row.conditions = {"version": last["version"], "report": last["report"], "earlier": rest}
        version: int = last["version"]
        return version


def _name(device: str) -> str:
    return f"constants of {device}"
