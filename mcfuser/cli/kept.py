"""The kernels and readings that are kept in the database under the user's data folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mcfuser.devices.catalogue import HOST
from mcfuser.errors import InputError

if TYPE_CHECKING:
    from mcfuser.device import Device
    from mcfuser.tune.tuned import Cache
    from mcfuser_db import Storage
    from mcfuser_service.settings import ServiceSettings


def make_data_folder(path: Path) -> None:
    """Makes the data folder, for the user alone, if it is missing. Raises InputError."""
    from mcfuser_db.private import make_folder

    try:
        make_folder(path)
    except OSError as error:
        raise InputError(
            f"data folder '{path}' cannot be made: {error.strerror}; set MCFUSER_DATA to another "
            "one"
        ) from None


@contextmanager
def opened_store() -> Iterator[Storage]:
    """The database under the user's data folder. Raises InputError where it cannot be used."""
    from mcfuser_service.settings import read_settings

    settings = read_settings()
    what = f"the database of kernels in '{settings.data}'"
    advice = "free some space, set MCFUSER_DATA to another folder, or say --no-cache"
    with opened_database(settings, what, advice) as store:
        yield store


@contextmanager
def opened_database(settings: ServiceSettings, what: str, advice: str) -> Iterator[Storage]:
    """The database of these settings, in a data folder that is made if it is missing.

    Raises InputError where it cannot be used: `what` names it there, `advice` says what to do.
    """
    from mcfuser_db import Storage, StorageError

    make_data_folder(settings.data)
    store = Storage(settings.database_url)
    try:
        yield store
    except StorageError as error:
        reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        raise InputError(f"{what} cannot be used: {reason}; {advice}") from None
    finally:
        store.close()


@contextmanager
def kernel_cache(wanted: bool, device: Device) -> Iterator[tuple[Cache, Device]]:
    """The cache of kept kernels, over the team's if there is one, and the device with the readings
    of its last probe.

    If it is not `wanted`: an empty cache in memory, and the device as it is.
    """
    from mcfuser.tune.tuned import MemoryCache
    from mcfuser_service.settings import read_settings
    from mcfuser_service.team import layered

    if not wanted:
        yield MemoryCache(), device
        return
    with opened_store() as store:
        settings = read_settings()
        cache = layered(store, settings.team)
        yield cache, device if device.kind == HOST else store.probed(device)
