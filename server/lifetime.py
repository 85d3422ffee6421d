"""How a coordinator is opened, what it does in the background, and how it is closed."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

import structlog

from coterie.client_sdk.http import Link
from coterie.errors import ConfigurationError, StorageError
from coterie.privacy.ledger.accountant import epsilon
from coterie.protocol.ids import RUNNER, new_id
from coterie.protocol.private_files import make_private_folder
from coterie.server.bell import Bell
from coterie.server.board import Board
from coterie.server.clock import now_ms
from coterie.server.coordinator import Coordinator
from coterie.server.credentials.identity import Identity
from coterie.server.credentials.nonces import Nonces
from coterie.server.credentials.tokens import parse_token
from coterie.server.downloads.compression import Compression
from coterie.server.downloads.deltas import Deltas
from coterie.server.downloads.downloads import Downloads
from coterie.server.driver import Driver
from coterie.server.edge.edge import Edge
from coterie.server.edge.membership import token_missing
from coterie.server.faults import CoordinatorFaults
from coterie.server.fleet import Fleet
from coterie.server.incoming import IncomingBodies
from coterie.server.jobs.kinds import KINDS
from coterie.server.jobs.runner import JobRunner
from coterie.server.metrics import Metrics
from coterie.server.pace import Pacer
from coterie.server.plans import Plans
from coterie.server.presence import Presence
from coterie.server.rounds import retention
from coterie.server.rounds.spending import Spending
from coterie.server.rounds.transitions import Rounds
from coterie.server.secure.attempts import Attempts
from coterie.server.secure.context import RoundContext
from coterie.server.secure.machines import Machines
from coterie.server.settings import Settings
from coterie.server.signals import Signals
from coterie.server.storage import Storage
from coterie.server.store import housekeeping, jobs, populations, sessions, upstream
from coterie.server.store.blobs import BlobStore
from coterie.server.store.checkpoints import Checkpoints
from coterie.server.store.devices import DeviceCache
from coterie.server.store.dialect import database_url, prepare
from coterie.server.store.engine import Database
from coterie.server.store.housekeeping import Secrets
from coterie.server.store.ledger import Ledger
from coterie.server.store.lock import lock_database, lock_folder
from coterie.server.store.migrate import migrate
from coterie.server.store.objects import open_objects
from coterie.server.store.session_end import clear, end_overdue
from coterie.server.store.sessions import PartyCache
from coterie.server.turns import PhaseTurns
from coterie.server.worker.workers import Workers

TIDY_EVERY_S = 300.0
SWEEP_EVERY_S = 3600.0
DELTA_S = 120.0
DELTA_NICENESS = 10
log = structlog.get_logger("coterie.server")


@asynccontextmanager
async def open_coordinator(
    settings: Settings, faults: CoordinatorFaults | None = None
) -> AsyncGenerator[Coordinator, None]:
    """Take the folder, bring the database up to date, sweep what a crash left, start the worker and the driver; undo it
    all at the end.

    Raises ConfigurationError: the folder or the database is in use or cannot be written, or the database is of a kind
    that is not supported, or newer than this code.
    """
    faults = faults or CoordinatorFaults.from_environment()
    folder = settings.folder.resolve()
    url = database_url(settings.database_url, folder)
    with ExitStack() as locks:
        _lock(locks, folder, url)
        await asyncio.to_thread(migrate, url)
        bell = Bell()
        database = Database(url, faults, bell)
        blobs = BlobStore(open_objects((folder / "blobs").as_uri()), folder / "blobs", faults)
        storage = Storage(database=database, blobs=blobs, plans=Plans(blobs))
        try:
            async with _opened(settings, storage, Signals(bell=bell)) as coordinator:
                yield coordinator
        finally:
            await database.close()


def _lock(locks: ExitStack, folder: Path, url: str) -> None:
    """Take the folder and the database, until the stack is closed."""
    try:
        make_private_folder(folder)
        locks.callback(lock_folder(folder).release)
    except (OSError, StorageError) as error:
        why = error.strerror if isinstance(error, OSError) else error.message
        raise ConfigurationError(
            f"The folder {folder} cannot be used: {str(why).rstrip('.')}.",
            hint="Give the coordinator a folder it may write to (COTERIE_FOLDER).",
        ) from error
    locks.callback(lock_database(prepare(url)).release)


@asynccontextmanager
async def _opened(settings: Settings, storage: Storage, signals: Signals) -> AsyncGenerator[Coordinator, None]:
    await _check_upstream(settings, storage.database)
    secrets = await housekeeping.first_start(storage.database, settings.folder.resolve())
    await retention.forget_unused(storage.database, settings.retention_days)
    storage.blobs.clear_scratch()
    coordinator = await _coordinator(settings, storage, signals, secrets)
    workers = Workers(
        attempts=settings.aggregate_attempts,
        timeout_s=settings.aggregate_timeout_s,
        silence_s=settings.worker_silence_s,
    )
    driver = _driver(coordinator, workers)
    await _release_jobs(storage.database)
    background = [
        asyncio.create_task(driver.run(), name="driver"),
        asyncio.create_task(_tidy(coordinator), name="tidy"),
        asyncio.create_task(_sweep(storage), name="sweep"),
        asyncio.create_task(coordinator.board.follow(signals.bell), name="board"),
    ]
    above = None if settings.upstream is None else Link(settings.upstream, ca=settings.upstream_ca)
    if above is not None:
        edge = Edge(settings=settings, storage=storage, rounds=coordinator.rounds, bell=signals.bell, link=above)
        background.append(asyncio.create_task(edge.run(), name="edge"))
    if settings.prestart:
        background.append(asyncio.create_task(workers.start(), name="warm the worker"))
    log.info("coordinator open", folder=str(settings.folder), experiments=coordinator.board.count)
    try:
        yield coordinator
    finally:
        signals.hang_up()
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        await workers.close()
        await coordinator.downloads.deltas.close()
        if above is not None:
            await above.close()
        with suppress(Exception):  # closing must go on: when devices were last seen is worth no failure
            await _write_down_who_was_here(coordinator)


async def _coordinator(settings: Settings, storage: Storage, signals: Signals, secrets: Secrets) -> Coordinator:
    """The value, of parts that do nothing by themselves yet."""
    checkpoints = (
        None
        if settings.ledger_checkpoints is None
        else Checkpoints.of(settings.ledger_checkpoints, inside=settings.folder, public=secrets.key.public)
    )
    ledger, fleet = Ledger(secrets.key, epsilon, checkpoints), Fleet()
    rounds = Rounds(fleet=fleet, spending=Spending(ledger, storage.plans))
    await _check_ledgers(storage.database, ledger)
    board = Board(storage, rounds)
    await board.refresh()
    made_beside = Workers(attempts=1, timeout_s=DELTA_S, niceness=DELTA_NICENESS)
    return Coordinator(
        settings=settings,
        storage=storage,
        identity=Identity(
            key=secrets.key,
            nonces=Nonces(secrets.nonces, settings.nonce_window_s),
            first_token=secrets.token,
        ),
        presence=Presence(
            devices=DeviceCache(storage.database),
            parties=PartyCache(storage.database),
            fleet=fleet,
            guests=Fleet(),
            pacer=Pacer(settings, fleet),
        ),
        signals=signals,
        downloads=Downloads(
            compression=Compression(storage.blobs), deltas=Deltas(storage.blobs, made_beside, board.hands_out)
        ),
        incoming=IncomingBodies(storage.blobs),
        rounds=rounds,
        board=board,
        machines=Machines(),
        metrics=Metrics(),
    )


def _driver(coordinator: Coordinator, workers: Workers) -> Driver:
    context = RoundContext(
        storage=coordinator.storage,
        rounds=coordinator.rounds,
        metrics=coordinator.metrics,
        machines=coordinator.machines,
    )
    bell = coordinator.signals.bell
    runner = JobRunner(
        context=context,
        workers=workers,
        kinds=KINDS,
        bell=bell,
        owner=new_id(RUNNER),
        lease_s=coordinator.settings.job_lease_s,
    )
    attempts = Attempts(context=context, signals=coordinator.signals)
    return Driver(context=context, board=coordinator.board, bell=bell, attempts=attempts, runner=runner)


async def _release_jobs(database: Database) -> None:
    """Nobody else works on a folder that is locked: what an earlier process had is taken at once."""
    async with database.read() as session:
        running = await jobs.any_running(session)
    if running:
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


async def _write_down_who_was_here(coordinator: Coordinator) -> None:
    """Write down when devices and parties were last seen, and forget what has expired."""
    presence = coordinator.presence
    await housekeeping.tidy(
        coordinator.storage.database, presence.fleet.take_unwritten(), presence.guests.take_unwritten()
    )


async def _tidy(coordinator: Coordinator) -> None:
    while True:
        try:
            await _write_down_who_was_here(coordinator)
            await _end_overdue(coordinator.storage, coordinator.signals.messages)
            await retention.forget_old(coordinator.storage.database, coordinator.settings.retention_days)
        except Exception as error:
            log.error("housekeeping failed", exc_info=error)
        await asyncio.sleep(TIDY_EVERY_S)


async def _end_overdue(storage: Storage, turns: PhaseTurns) -> None:
    """End sessions of parties whose time is over."""
    async with storage.database.read() as session:
        if not await sessions.overdue(session, now_ms()):
            return
    async with storage.database.write("session") as session:
        ended = await end_overdue(session)
    for identifier in ended:
        await clear(identifier, turns, storage.blobs.parts)


async def _sweep(storage: Storage) -> None:
    while True:
        try:
            if orphans := await housekeeping.sweep_orphans(storage.database, storage.blobs):
                log.info("orphans deleted", blobs=orphans)
        except Exception as error:
            log.error("sweep failed", exc_info=error)
        await asyncio.sleep(SWEEP_EVERY_S)
