"""The application: routes, the gate before them, and the coordinator behind them."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from coterie.server import cors, pages, problems
from coterie.server.auth.policy import POLICY
from coterie.server.auth.signatures import check_public_url
from coterie.server.control import audit, blobs, budget, devices, events, experiments, populations, sessions, tokens
from coterie.server.device import blobs as device_blobs
from coterie.server.device import check_in, enrol, lineage, report, secure, upload, withdraw
from coterie.server.faults import CoordinatorFaults
from coterie.server.lifetime import open_coordinator
from coterie.server.middleware import Envelope
from coterie.server.openapi import describe
from coterie.server.sessions import fetching, joining, sending
from coterie.server.settings import Settings
from coterie.version import __version__

# Requests are matched in this order, so those that fleets make most often come first.
ROUTERS = (
    check_in.router,
    report.router,
    upload.router,
    secure.router,
    device_blobs.router,
    fetching.router,
    sending.router,
    pages.router,
    populations.router,
    budget.router,
    tokens.router,
    blobs.router,
    experiments.router,
    devices.router,
    events.router,
    audit.router,
    enrol.router,
    lineage.router,
    withdraw.router,
    joining.router,
    sessions.router,
)


def create_app(settings: Settings | None = None, *, faults: CoordinatorFaults | None = None) -> FastAPI:
    """The coordinator's application. Its lifespan takes the folder, opens the database and starts the driver; nothing
    happens before. Raises ConfigurationError for a setting that cannot be.

    ``app.state.coordinator`` is the open coordinator; its ``first_token`` is the admin token if this start made it.
    """
    chosen = settings or Settings()
    if chosen.public_url is not None:
        check_public_url(chosen.public_url)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
        async with open_coordinator(chosen, faults) as coordinator:
            app.state.coordinator = coordinator
            yield

    app = FastAPI(
        title="coterie coordinator",
        version=__version__,
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    for router in ROUTERS:
        # The routes themselves: to include a router analyses the parameters of each of its routes once more.
        app.router.routes.extend(router.routes)
    problems.install(app)
    cors.allow(app, cors.origins(chosen.cors_origins))
    app.add_middleware(Envelope, stall_s=chosen.body_stall_s, rate=chosen.body_rate)
    describe(app, POLICY)
    return app
