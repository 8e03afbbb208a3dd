"""The routes by which people and orchestrators see how a server is: /livez, /readyz, /healthz."""

from __future__ import annotations

import logging
from collections.abc import Callable

from fastapi import APIRouter, Response

from mcfuser.revision import revision
from mcfuser_db import Storage, StorageError
from mcfuser_db.beats import backlog, living_workers
from mcfuser_service.documents import as_json
from mcfuser_service.openapi import problems, readable
from mcfuser_service.outage import Outage
from mcfuser_service.queries import only
from mcfuser_service.schemas import Alive, Health
from mcfuser_service.settings import ServiceSettings
from mcfuser_service.waiting import LATER, silent_health

log = logging.getLogger(__name__)

_HEALTH = problems()
_HEALTH[503]["content"]["application/json"] = {"schema": {"$ref": "#/components/schemas/Health"}}
_HEALTH[503]["description"] += "; or no worker is alive"


def router(settings: ServiceSettings, store: Storage, alive: Callable[[], int]) -> APIRouter:
    """The routes, given the database; `alive` gives the number of this server's workers."""
    routes, outage = APIRouter(), Outage(log, "health")

    @readable(routes, "/livez", response_model=Alive, responses=problems(), dependencies=[only()])
    async def live() -> Alive:
        """200 as long as the server answers at all; it asks neither database nor disk. One that
        does not answer is to be restarted."""
        return Alive()

    @readable(routes, "/readyz", response_model=Alive, responses=problems(), dependencies=[only()])
    def ready() -> Alive:
        """200 where requests can be answered, and 503 where the database does not answer; workers
        are no matter. A server that is not ready is to be sent none, and not to be restarted."""
        living_workers(store)
        return Alive()

    @readable(routes, "/healthz", response_model=Health, responses=_HEALTH, dependencies=[only()])
    def health() -> Response:
        """How the service is. 503 where the database does not answer, no worker is alive on any
        machine, or none of those that this server should have."""
        lives = alive()
        try:
            found = _health(settings, store, lives)
        except StorageError as error:
            outage.failed(error)
            found = silent_health(settings, lives)
        else:
            outage.over()
        answer = as_json(found)
        if found.status != "ok":
            answer.status_code = 503
            answer.headers.update(LATER)
        return answer

    return routes


def _health(settings: ServiceSettings, store: Storage, alive: int) -> Health:
    # a worker that was just started has not yet noted that it lives
    everywhere = max(alive, len(living_workers(store)))
    ok = everywhere > 0 and (alive > 0 or settings.workers == 0)
    jobs = store.counts()
    return Health(
        status="ok" if ok else "degraded",
        version=revision(),
        database="ok",
        workers={"alive": alive, "wanted": settings.workers, "everywhere": everywhere},
        jobs=jobs,
        oldest_queued_seconds=backlog(store).queued if jobs["queued"] else None,
    )
