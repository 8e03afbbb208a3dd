"""Kernels of chains that have the structure of another one (mcfuser.tune.related)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from sqlalchemy import select
from sqlalchemy.orm import Session

from mcfuser_db import candidates
from mcfuser_db.models import KernelRow

if TYPE_CHECKING:
    from mcfuser.chain import Chain
    from mcfuser.tune.related import Relative

_NEWEST = 200  # kernels of a device that are looked at


def related(session: Session, chain: Chain, device: str) -> list[Relative]:
    """The chains of the same structure among a device's newest measured kernels, the nearest in
    extents first, with their best candidates."""
    from mcfuser.chain import from_json
    from mcfuser.tune.related import Relative, fastest, nearest

    query = (
        select(KernelRow.key, KernelRow.chain_key, KernelRow.document["chain"])
        .where(KernelRow.device == device, KernelRow.measured.is_not(None))
        .order_by(KernelRow.created.desc())
        .limit(_NEWEST)
    )
    keys: dict[str, str] = {}
    others: list[Chain] = []
    for key, chain_key, document in session.execute(query):
        if chain_key in keys or not _alike(document, chain):
            continue
        keys[chain_key] = key
        with suppress(KeyError, TypeError, ValueError, AttributeError):  # it cannot be read
            others.append(from_json(document))
    found = []
    for other in nearest(chain, others):
        if other.key in keys and (best := fastest(candidates.read(session, keys[other.key]))):
            found.append(Relative(other, best))
    return found


def _alike(document: object, chain: Chain) -> bool:
    """Whether a chain's document has as many axes and reductions as a chain, which is soon found
    out."""
    from mcfuser.chain import reduces

    if not isinstance(document, Mapping):
        return False
    axes, operators = document.get("axes"), document.get("operators")
    if not isinstance(axes, (Mapping, list)) or not isinstance(operators, list):
        return False
    reductions = sum(o.reduce != "none" for o in chain.operators)
    if sum(reduces(str(o)) for o in operators) != reductions or len(axes) != len(chain.axes):
        return False
    return reductions > 0 or len(operators) == len(chain.operators)
