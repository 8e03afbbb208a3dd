"""`mcfuser devices` lists the known devices, `mcfuser device` shows or measures a GPU's
readings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from mcfuser.cli.console import err, out
from mcfuser.cli.documents import print_document
from mcfuser.cli.kept import opened_store
from mcfuser.cli.options import JsonOption, among
from mcfuser.devices.catalogue import CATALOGUE, HOST, device_named
from mcfuser.errors import InputError

if TYPE_CHECKING:
    from mcfuser.device import Device


def devices(as_json: JsonOption = False) -> None:
    """List the devices that kernels can be tuned for."""
    from mcfuser.report import show_devices

    known = [device_named(HOST), *CATALOGUE.values()]
    if as_json:
        print_document({"devices": [_document(d) for d in known]})
        return
    show_devices(known, out)


def device(
    name: Annotated[
        str,
        typer.Argument(
            metavar="DEVICE", help="a GPU of the catalogue", autocompletion=among(*CATALOGUE)
        ),
    ],
    probe: Annotated[
        bool, typer.Option("--probe", help="measure the GPU at hand and keep what is found")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show a GPU's readings, or measure them, in 10 s.

    The model scales its constants by them.
    """
    from mcfuser.report import show_readings

    target = device_named(name)
    if target.name == HOST:
        raise InputError(f"device '{name}' is no GPU; the CPU is measured whenever it is used")
    with opened_store() as store:
        if probe:
            from rich.status import Status

            from mcfuser.backends import backend_of
            from mcfuser.backends.cuda.probe import probe as measure
            from mcfuser.measure.worker import Worker

            with Worker(backend_of(target), target) as worker, Status("probing", console=err):
                result = measure(target, worker)
            store.keep_probe(target.name, result.readings, result.conditions)
        target = store.probed(target)
    if as_json:
        print_document({"device": target.name, "readings": dict(target.readings)})
        return
    show_readings(target, out)


def _document(device: Device) -> dict[str, Any]:
    """A device's rates (flops and bytes per second) and sizes (bytes)."""
    return {
        "name": device.name,
        "arch": device.arch,
        "units": device.units,
        "flops": dict(device.peak),
        "bandwidth": device.bandwidth,
        "fast_memory": device.fast,
    }
