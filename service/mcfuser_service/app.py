"""The HTTP application."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, FastAPI, Response

from mcfuser.devices.catalogue import CATALOGUE, HOST
from mcfuser.revision import revision
from mcfuser_db import Blobs, Storage
from mcfuser_service import attestation, jobs, kernels, keys, page, probes, upkeep
from mcfuser_service.access import Access
from mcfuser_service.explaining import Explainer
from mcfuser_service.http import Gate, add_handlers
from mcfuser_service.inspect import Inspect, Inspector
from mcfuser_service.metrics import Metrics
from mcfuser_service.openapi import describe, problems, readable
from mcfuser_service.queries import only
from mcfuser_service.schemas import DeviceOut
from mcfuser_service.settings import ServiceSettings
from mcfuser_service.watch import JobWatch

DESCRIPTION = (
    "An ONNX model goes in; a compiled TVM module comes out, in which chains of operators that "
    "wait for memory are single tuned kernels."
)


def create_app(
    settings: ServiceSettings,
    store: Storage,
    blobs: Blobs,
    alive: Callable[[], int],
    inspect: Inspect | None = None,
    watch: JobWatch | None = None,
    explain: kernels.Explain | None = None,
) -> FastAPI:
    """The HTTP application of a database and a folder of files; `alive` gives the number of
    workers.

    `inspect` raises InputError for a model that is found to be wrong without compiling it; by
    default a process is started for this (service.inspect). `watch` follows jobs for those who
    wait; closing it ends their requests. `explain` says which kept kernel a chain uses
    (service.explaining).
    """
    metrics, access = Metrics(store, alive, settings.data), Access(settings, store)
    explainer = Explainer(settings, store)
    app = FastAPI(
        title="mcfuser",
        version=revision(),
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    routers = (
        jobs.router(
            settings,
            store,
            blobs,
            inspect or Inspector(settings),
            metrics,
            watch or JobWatch(store),
        ),
        attestation.router(settings, store),
        upkeep.router(settings, store, blobs, explainer),  # first: its path is no kernel's key
        kernels.router(store, explain or explainer, explainer),
        keys.router(store, access),
        page.router(),
        probes.router(settings, store, alive),
        _rest(metrics),
    )
    for router in routers:
        app.include_router(router)
    add_handlers(app, [*app.routes, *(route for router in routers for route in router.routes)])
    describe(app)
    app.add_middleware(
        Gate, metrics=metrics, access=access, host=settings.host, allowed=settings.allowed_hosts
    )
    return app


def _rest(metrics: Metrics) -> APIRouter:
    router = APIRouter()

    @readable(router, "/metrics", include_in_schema=False, dependencies=[only()])
    def prometheus() -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @readable(router, "/v1/devices", responses=problems(), dependencies=[only()])
    def devices() -> list[DeviceOut]:
        known = [
            DeviceOut(
                name=d.name,
                kind=d.kind,
                arch=d.arch,
                units=d.units,
                peak=dict(d.peak),
                bandwidth=d.bandwidth,
                fast=d.fast,
            )
            for d in CATALOGUE.values()
        ]
        return [DeviceOut(name=HOST, kind=HOST), *known]

    return router
