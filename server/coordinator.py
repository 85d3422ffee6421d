"""The coordinator as one value: what every route and the driver work with, and how it is opened and closed."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import structlog

from coterie.client_sdk.http import Link
from coterie.errors import ConfigurationError, StorageError
from coterie.privacy.ledger.accountant import epsilon
from coterie.protocol.ids import RUNNER, new_id
from coterie.protocol.private_files import make_private_database, make_private_folder
from coterie.protocol.signing import SigningKey
from coterie.server.bell import Bell
from coterie.server.board import Board
from coterie.server.clock import now_ms
from coterie.server.credentials.nonces import Nonces
from coterie.server.credentials.tokens import Token, parse_token
from coterie.server.downloads.compression import Compression
from coterie.server.downloads.deltas import Deltas
from coterie.server.driver import Driver
from coterie.server.edge.edge import Edge
from coterie.server.edge.membership import token_missing
from coterie.server.faults import Faults
from coterie.server.fleet import Fleet
from coterie.server.incoming import Incoming
from coterie.server.jobs.kind import JobContext
from coterie.server.jobs.kinds import KINDS
from coterie.server.jobs.runner import Runner
from coterie.server.metrics import Metrics
from coterie.server.pace import Pacer
from coterie.server.plans import Plans
from coterie.server.rounds import retention
from coterie.server.rounds.spending import Spending
from coterie.server.rounds.transitions import Rounds
from coterie.server.secure.attempts import Attempts
from coterie.server.secure.machines import Machines
from coterie.server.settings import Settings
from coterie.server.store import housekeeping, jobs, populations, sessions, upstream
from coterie.server.store.blobs import BlobStore
from coterie.server.store.checkpoints import Checkpoints
from coterie.server.store.devices import DeviceCache
from coterie.server.store.engine import Database, sqlite_url
from coterie.server.store.ledger import Ledger
from coterie.server.store.lock import FolderLock
from coterie.server.store.migrate import migrate
from coterie.server.store.objects import open_objects
from coterie.server.store.session_end import clear, end_overdue
from coterie.server.store.sessions import PartyCache
from coterie.server.turns import Turns
from coterie.server.worker.workers import Workers

TIDY_EVERY_S = 300.0
SWEEP_EVERY_S = 3600.0
DELTA_S = 120.0
DELTA_NICENESS = 10
log = structlog.get_logger("coterie.server")


@dataclass(frozen=True, kw_only=True)
class Coordinator:
    """An open coordinator. Rows and blobs are the state; everything else here can be rebuilt from them."""

    settings: Settings
    database: Database
    blobs: BlobStore
    compression: Compression
    deltas: Deltas
    key: SigningKey
    nonces: Nonces
    devices: DeviceCache
    plans: Plans
    board: Board
    rounds: Rounds
    workers: Workers
    metrics: Metrics
    bell: Bell
    machines: Machines
    turns: Turns
    fleet: Fleet
    parties: PartyCache
    guests: Fleet
    """When parties of sessions were last seen."""
    pacer: Pacer
    incoming: Incoming
    first_token: Token | None
    closing: asyncio.Event = field(default_factory=asyncio.Event)

    def hang_up(self) -> None:
        """End whatever waits for news: event streams and the long polls of attempts are answered now."""
        self.closing.set()
        self.bell.ring()
        self.turns.turned_all()


@asynccontextmanager
async def open_coordinator(settings: Settings, faults: Faults | None = None) -> AsyncGenerator[Coordinator, None]:
    """Take the folder, bring the database up to date, sweep what a crash left, start the worker and the driver; undo it
    all at the end.

    Raises ConfigurationError: the folder is in use or cannot be written, or the database is newer than this code.
    """
    faults = faults or Faults.from_environment()
    folder = settings.folder.resolve()
    try:
        make_private_folder(folder)
        lock = FolderLock(folder)
    except (OSError, StorageError) as error:
        why = error.strerror if isinstance(error, OSError) else error.message
        raise ConfigurationError(
            f"The folder {folder} cannot be used: {str(why).rstrip('.')}.",
            hint="Give the coordinator a folder it may write to (COTERIE_FOLDER).",
        ) from error
    try:
        make_private_database(folder / "coterie.db")
        url = sqlite_url(folder / "coterie.db")
        await asyncio.to_thread(migrate, url)
        bell = Bell()
        database = Database(url, faults, bell)
        store = BlobStore(open_objects((folder / "blobs").as_uri()), folder / "blobs", faults)
        try:
            async with _opened(settings, faults, database, store, bell) as coordinator:
                yield coordinator
        finally:
            await database.close()
    finally:
        lock.release()


@asynccontextmanager
async def _opened(
    settings: Settings, faults: Faults, database: Database, blobs: BlobStore, bell: Bell
) -> AsyncGenerator[Coordinator, None]:
    await _check_upstream(settings, database)
    secrets = await housekeeping.first_start(database, settings.folder.resolve())
    await retention.forget_unused(database, settings.retention_days)
    blobs.clear_scratch()
    fleet = Fleet()
    plans = Plans(blobs)
    checkpoints = (
        None
        if settings.ledger_checkpoints is None
        else Checkpoints.of(settings.ledger_checkpoints, inside=settings.folder, public=secrets.key.public)
    )
    rounds = Rounds(fleet=fleet, spending=Spending(Ledger(secrets.key, epsilon, checkpoints), plans))
    await _check_ledgers(database, rounds.spending.ledger)
    board = Board(database, plans, rounds)
    await board.refresh()
    coordinator = Coordinator(
        settings=settings,
        database=database,
        blobs=blobs,
        compression=Compression(blobs),
        deltas=Deltas(blobs, Workers(attempts=1, timeout_s=DELTA_S, niceness=DELTA_NICENESS), board.hands_out),
        key=secrets.key,
        nonces=Nonces(secrets.nonces, settings.nonce_window_s),
        devices=DeviceCache(database),
        plans=plans,
        board=board,
        rounds=rounds,
        workers=Workers(
            attempts=settings.aggregate_attempts,
            timeout_s=settings.aggregate_timeout_s,
            silence_s=settings.worker_silence_s,
        ),
        metrics=Metrics(),
        bell=bell,
        machines=Machines(),
        turns=Turns(),
        fleet=fleet,
        parties=PartyCache(database),
        guests=Fleet(),
        pacer=Pacer(settings, fleet),
        incoming=Incoming(blobs),
        first_token=secrets.token,
    )
    driver = _driver(coordinator)
    await _release_jobs(database)
    background = [
        asyncio.create_task(driver.run(), name="driver"),
        asyncio.create_task(_tidy(coordinator), name="tidy"),
        asyncio.create_task(_sweep(coordinator), name="sweep"),
        asyncio.create_task(board.follow(bell), name="board"),
    ]
    above = None if settings.upstream is None else Link(settings.upstream, ca=settings.upstream_ca)
    if above is not None:
        edge = Edge(
            settings=settings,
            database=database,
            blobs=blobs,
            rounds=coordinator.rounds,
            plans=plans,
            bell=bell,
            link=above,
        )
        background.append(asyncio.create_task(edge.run(), name="edge"))
    if settings.prestart:
        background.append(asyncio.create_task(coordinator.workers.start(), name="warm the worker"))
    log.info("coordinator open", folder=str(settings.folder), experiments=board.count)
    try:
        yield coordinator
    finally:
        coordinator.hang_up()
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        await coordinator.workers.close()
        await coordinator.deltas.close()
        if above is not None:
            await above.close()
        with suppress(Exception):  # closing must go on: when devices were last seen is worth no failure
            await housekeeping.tidy(database, coordinator.fleet.take_unwritten(), coordinator.guests.take_unwritten())


def _driver(coordinator: Coordinator) -> Driver:
    context = JobContext(
        database=coordinator.database,
        blobs=coordinator.blobs,
        rounds=coordinator.rounds,
        plans=coordinator.plans,
        machines=coordinator.machines,
        metrics=coordinator.metrics,
    )
    attempts = Attempts(
        database=coordinator.database,
        rounds=coordinator.rounds,
        machines=coordinator.machines,
        turns=coordinator.turns,
        metrics=coordinator.metrics,
        bell=coordinator.bell,
    )
    runner = Runner(
        context=context,
        workers=coordinator.workers,
        kinds=KINDS,
        bell=coordinator.bell,
        owner=new_id(RUNNER),
        lease_s=coordinator.settings.job_lease_s,
    )
    return Driver(
        database=coordinator.database,
        blobs=coordinator.blobs,
        rounds=coordinator.rounds,
        board=coordinator.board,
        metrics=coordinator.metrics,
        bell=coordinator.bell,
        attempts=attempts,
        runner=runner,
    )


async def _release_jobs(database: Database) -> None:
    """Nobody else works on a folder that is locked: what an earlier process had is taken at once."""
    async with database.read() as session:
        held = await jobs.held(session)
    if held:
        async with database.write("job") as session:
            await jobs.release(session, now_ms())


async def _check_upstream(settings: Settings, database: Database) -> None:
    """Refuse at once what an edge aggregator could never do."""
    async with database.read() as session:
        joined = await upstream.membership(session)
    if settings.upstream is None:
        if joined is not None:
            log.warning(
                "this edge aggregator was started without --upstream: no round comes from above", url=joined.url
            )
        return
    if settings.upstream_token and parse_token(settings.upstream_token).kind != "edge":
        raise ConfigurationError(
            "The token for the coordinator above is not of the kind edge, so it cannot act for clients.",
            hint='Ask the operator above for one: POST /v1/tokens with {"kind": "edge", …}.',
            code="token_kind",
        )
    if joined is None and not settings.upstream_token:
        raise token_missing()
    if joined is not None and not settings.upstream_token and joined.url != settings.upstream.rstrip("/"):
        log.warning("the coordinator above has another address now", before=joined.url, now=settings.upstream)


async def _check_ledgers(database: Database, ledger: Ledger) -> None:
    """Say at the start which ledgers have lost their end, and keep that of the others. Everything else goes on; those
    that lost it spend nothing.
    """
    if ledger.checkpoints is None:
        return
    async with database.read() as session:
        for population in await populations.names(session):
            try:
                await ledger.keep_end(session, population)
            except StorageError as error:
                log.error("privacy ledger does not hold", population=population, why=error.message, hint=error.hint)


async def _tidy(coordinator: Coordinator) -> None:
    while True:
        try:
            await housekeeping.tidy(
                coordinator.database, coordinator.fleet.take_unwritten(), coordinator.guests.take_unwritten()
            )
            await _end_overdue(coordinator)
            await retention.forget_old(coordinator.database, coordinator.settings.retention_days)
        except Exception as error:
            log.error("housekeeping failed", exc_info=error)
        await asyncio.sleep(TIDY_EVERY_S)


async def _end_overdue(coordinator: Coordinator) -> None:
    """End sessions of parties whose time is over."""
    async with coordinator.database.read() as session:
        if not await sessions.overdue(session, now_ms()):
            return
    async with coordinator.database.write("session") as session:
        ended = await end_overdue(session)
    for identifier in ended:
        await clear(identifier, coordinator.turns, coordinator.blobs.parts)


async def _sweep(coordinator: Coordinator) -> None:
    while True:
        try:
            if orphans := await housekeeping.sweep_orphans(coordinator.database, coordinator.blobs):
                log.info("orphans deleted", blobs=orphans)
        except Exception as error:
            log.error("sweep failed", exc_info=error)
        await asyncio.sleep(SWEEP_EVERY_S)
