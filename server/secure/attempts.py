"""Attempts at secure aggregation, moved on by the driver of rounds.

Like the driver it holds no state that a restart could lose: what is due (`coterie.aggregation.due`) is one conditional
transaction each. An attempt begins when its round has all the clients that reported *trained*; each phase
ends when everybody has answered, or at its deadline with those who have. Adding up and opening sums are jobs
(`coterie.server.jobs.sums`).
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from coterie.errors import CoterieError, InternalError
from coterie.privacy.secagg.server import Advertised
from coterie.protocol.conversion import to_text
from coterie.protocol.device import Task
from coterie.protocol.secagg import AdvertiseKeys
from coterie.server.clock import now_ms
from coterie.server.rounds.errands import Errands
from coterie.server.secure.context import RoundContext
from coterie.server.secure.failing import change_attempt, end_without_sum, event_fields
from coterie.server.secure.machine import Failed, Machine, begin
from coterie.server.signals import Signals
from coterie.server.store import attempts, devices, events, experiments, mailbox
from coterie.server.store.attempts import AttemptStatus

log = structlog.get_logger("coterie.server.secure")
CLOCK_SLACK_MS = 5000.0
"""The wall clock may move by so much against the monotonic one between two looks before it was set."""
BEFORE_SURVIVORS = "masked"
"""As this phase ends the survivors are told, and with what they answer the sum can be opened."""


@dataclass(kw_only=True)
class Attempts:
    """Does what is due for attempts; `look` is called at every pass of the driver, and `close` at the end."""

    context: RoundContext
    signals: Signals
    _seen: dict[str, int] = field(default_factory=dict[str, int])
    _offset: float | None = None

    def __post_init__(self) -> None:
        self._errands = Errands(self.signals.bell)

    async def look(self, statuses: Sequence[AttemptStatus]) -> int | None:
        """Wake who waits for an attempt that has moved.

        Returns the time by which phases may end, in milliseconds; None where deadlines have just moved, and the commit
        has rung for another look.
        statuses: as they were just read.
        """
        offset = now_ms() - time.monotonic() * 1000
        jumped = self._offset is None or abs(offset - self._offset) > CLOCK_SLACK_MS
        if jumped and await self._resume(statuses):
            self._offset = offset
            return None
        self._offset = offset
        self._wake(statuses)
        # By the clock as it was compared above: one that is set from here on is seen at the next look, before it can
        # end a phase.
        return int(offset + time.monotonic() * 1000)

    def begin(self, status: AttemptStatus) -> None:
        """Begin to make the roster of an attempt, unless somebody is at it."""
        self._errands.start(status.id, self._begin, status)

    def end_phase(self, status: AttemptStatus) -> None:
        """Begin to end the phase of an attempt, unless somebody is at it."""
        self._errands.start(status.id, self._advance, status)

    async def _resume(self, statuses: Sequence[AttemptStatus]) -> bool:
        """Give every phase its whole time again, after a restart, and when somebody has set the clock. While there was
        no coordinator nobody could answer, and in the time that a clock jumps over nobody works: an attempt that
        counted it would lose clients that are well, and one that waited for it to pass again might wait for days.
        Returns whether any phase has another deadline now.
        """
        timed = [each for each in statuses if each.deadline_at is not None]
        async with self.context.storage.database.read() as session:
            states = {each.id: await attempts.state_of(session, each.id) for each in timed}
        any_moved = False
        for status in timed:
            kept = states[status.id]
            if kept is None:
                continue
            try:
                machine = await asyncio.to_thread(Machine.from_text, kept[1])
            except (ValueError, KeyError, TypeError, CoterieError) as error:
                # Its round waits for an operator; no other does.
                log.error("attempt cannot be read", attempt=status.id, experiment=status.experiment, exc_info=error)
                continue
            deadline = now_ms() + machine.state.terms.phase_ms
            async with self.context.storage.database.write("attempt") as session:
                changed = await attempts.move(session, status.id, status.version, {"deadline_at": deadline})
            any_moved = any_moved or changed
        return any_moved

    async def close(self) -> None:
        """Leave what is under way; a restart does it again."""
        await self._errands.close()

    def _wake(self, statuses: Sequence[AttemptStatus]) -> None:
        now = {status.id: status.version for status in statuses}
        moved = {attempt for attempt, version in self._seen.items() if now.get(attempt) != version}
        for attempt in moved | (self.signals.turns.waited_for() - now.keys()):
            self.signals.turns.turned(attempt)
        self._seen = now

    async def _begin(self, status: AttemptStatus) -> None:
        """Make the roster of those who reported *trained*."""
        async with self.context.storage.database.read() as session:
            row = await attempts.find(session, status.id)
            members = await attempts.members(session, status.id)
            keys = await mailbox.bundles(session, status.id, attempts.KEYS)
            identities = await devices.publics(session, [member.device for member in members])
        if row is None or row.version != status.version:
            return
        advertised = [
            Advertised(member.device, identities[member.device], AdvertiseKeys.model_validate_json(keys[member.id]))
            for member in members
            if member.id in keys
        ]
        if not members:
            await self._fail(status, Failed("too_few_clients", "nobody reported that it has trained"))
            return
        task = Task.model_validate_json(members[0].message)
        if task.secure is None:
            raise InternalError(f"The task {task.id} has an attempt and no terms of one.")
        machine = await asyncio.to_thread(begin, task.secure, task, advertised)
        if isinstance(machine, Failed):
            await self._fail(status, machine)
            return
        parameters = machine.state.parameters
        details = {
            "clients": machine.state.clients,
            "mode": parameters.mode,
            "neighbours": parameters.neighbours,
            "threshold": parameters.threshold,
        }
        await self._move(status, machine, "attempt.began", details)

    async def _advance(self, status: AttemptStatus) -> None:
        """End a phase: everybody has answered, or its time is over."""
        async with self.context.storage.database.read() as session:
            row = await attempts.find(session, status.id)
            machine = None if row is None else await self.context.machines.of(session, row.id, row.version)
            bundles = await mailbox.bundles(session, status.id, status.phase)
            places = await attempts.devices_of(session, status.id)
        if row is None or machine is None or row.version != status.version:
            return
        by_place = {machine.places[places[task]]: bundle for task, bundle in bundles.items()}
        if status.phase == "reveal":
            # Whether the answers open the sum is found out where it is opened.
            await self._ready(status, machine, len(bundles))
            return
        after = await asyncio.to_thread(machine.close, by_place)
        if isinstance(after, Failed):
            await self._fail(status, after, messages_read=len(bundles))
            return
        await self._move(status, after, "attempt.phase", {"answered": len(bundles)}, messages_read=len(bundles))

    async def _fail(self, status: AttemptStatus, failed: Failed, messages_read: int | None = None) -> None:
        """End an attempt without a sum.

        messages_read: as in `change_attempt`.
        """
        async with self.context.storage.database.write("attempt") as session:
            locked = await experiments.lock(session, status.experiment)
            ended = await end_without_sum(self.context.rounds, session, locked, status, failed, messages_read)
        if ended:
            self.context.metrics.attempts.labels("failed").inc()

    async def _move(
        self,
        status: AttemptStatus,
        machine: Machine,
        event: str,
        details: Mapping[str, Any],
        messages_read: int | None = None,
    ) -> None:
        """Write an attempt's next phase, unless something has come since its messages were read.

        messages_read: how many.
        """
        changes = {
            "phase": machine.phase,
            "state": to_text(machine.state),
            "awaited": len(machine.awaited),
            "clients": machine.state.clients,
            "survivors": len(machine.state.arrived),
            "deadline_at": now_ms() + machine.state.terms.phase_ms,
        }
        tells_survivors = status.phase == BEFORE_SURVIVORS
        async with self.context.storage.database.write("survivors" if tells_survivors else "attempt") as session:
            paying = tells_survivors and status.kind == "train"
            locked = await experiments.lock(session, status.experiment) if paying else None
            if not await change_attempt(session, status, changes, messages_read):
                return
            if locked is not None:
                await self.context.rounds.spending.pay_for_sums(session, locked.experiment, status.round)
            data = event_fields(status) | {"phase": machine.phase, "awaited": len(machine.awaited)} | dict(details)
            events.append(session, event, data, status.experiment)
        self.context.machines.keep(status.id, status.version + 1, machine)

    async def _ready(self, status: AttemptStatus, machine: Machine, messages_read: int) -> None:
        """Everything that opens the sum is here, or will never be."""
        changes = {"phase": attempts.UNMASKING, "deadline_at": None, "awaited": 0}
        async with self.context.storage.database.write("attempt") as session:
            if not await change_attempt(session, status, changes, messages_read):
                return
            data = event_fields(status) | {"phase": attempts.UNMASKING, "answered": messages_read}
            events.append(session, "attempt.phase", data, status.experiment)
        self.context.machines.keep(status.id, status.version + 1, machine)
