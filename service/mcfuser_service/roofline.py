"""Where kernels of a device are under its roofline."""

from __future__ import annotations

from collections.abc import Iterator

from mcfuser.chain import from_json
from mcfuser.device import Device
from mcfuser.errors import InputError
from mcfuser.model.work import ChainWork, chain_work
from mcfuser_db import KernelRow, Storage
from mcfuser_service.schemas import RooflineKernel, RooflineOut

SIBLINGS = 40
"""Other kernels of the device, the newest ones."""


def roofline(store: Storage, kernel: KernelRow, device: Device | None) -> RooflineOut:
    """A kernel first, then others of its device, without those whose chains cannot be read. Where
    the device is not known, it has no roof, and nothing else is shown."""
    if device is None:
        return RooflineOut(device=kernel.device, peak=None, bandwidth=None, kernels=[])
    others = store.kernels(kernel.device, limit=SIBLINGS + 1)
    rows = [kernel, *(row for row in others if row.key != kernel.key)][: SIBLINGS + 1]
    placed = list(_placed(store, rows, device))
    own = next((work.peak for row, work in placed if row.key == kernel.key), None)
    return RooflineOut(
        device=kernel.device,
        peak=own,
        bandwidth=device.bandwidth,
        kernels=[
            RooflineKernel(
                key=row.key,
                chain=row.chain,
                operations=work.operations,
                bytes=work.bytes,
                seconds=row.seconds,
                measured=row.measured is not None,
            )
            for row, work in placed
        ],
    )


def _placed(
    store: Storage, rows: list[KernelRow], device: Device
) -> Iterator[tuple[KernelRow, ChainWork]]:
    for row in rows:
        try:
            yield row, chain_work(from_json(store.chain_of(row.key) or {}), device)
        except (InputError, KeyError, TypeError, ValueError, AttributeError):
            continue  # damaged: mcfuser cache verify says so
