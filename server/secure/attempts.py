"""Attempts at secure aggregation, driven beside their rounds.

Like the driver of rounds it holds no state that a restart could lose: each look at the rows starts what is due, and
what is due is either one conditional transaction or a numeric job whose result is stored durably before the transaction
that mentions it. An attempt begins when its round has all the clients that reported *trained*; each phase ends when
everybody has answered, or at its deadline with those who have; sums are opened when every attempt of the round is ready
or over.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import structlog

from coterie.errors import CoterieError, InternalError
from coterie.privacy.secagg.server import Advertised
from coterie.protocol.device import Task
from coterie.protocol.secagg import AdvertiseKeys
from coterie.server.clock import now_ms
from coterie.server.secure.failing import fail, moved, named
from coterie.server.secure.machine import Failed, Machine, begin
from coterie.server.secure.parts import Parts, summed_now
from coterie.server.secure.sums import forget_over, open_sums
from coterie.server.store import attempts, devices, events, experiments, mailbox
from coterie.server.store.attempts import Standing
from coterie.server.store.experiments import OpenRound

RETRY_S = 1.0
CLOCK_SLACK_MS = 5000.0
"""The wall clock may move by so much against the monotonic one between two looks before it was set."""
BEFORE_SURVIVORS = "masked"
"""As this phase ends the survivors are told, and with what they answer the sum can be opened."""
SUM_AT_ONCE = 8
"""So many masked vectors that are not in the running sum yet are worth a job, before the phase ends."""
log = structlog.get_logger("coterie.server.attempts")


class Attempts:
    """Starts what is due; `look` is called at every pass of the driver, and `close` at the end."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._jobs: dict[str, asyncio.Task[None]] = {}
        self._seen: dict[str, int] = {}
        self._held: dict[str, int] = {}
        self._offset: float | None = None

    async def look(self, opened: Sequence[OpenRound], standings: Sequence[Standing]) -> None:
        """Wake who waits for an attempt that has moved, and start whatever is due: of the rounds and the attempts that
        were just read, in one transaction.
        """
        offset = now_ms() - time.monotonic() * 1000
        jumped = self._offset is None or abs(offset - self._offset) > CLOCK_SLACK_MS
        if jumped and await self._resume(standings):
            self._offset = offset
            return  # they have other deadlines now: the commit has rung for another look
        self._offset = offset
        self._wake(standings)
        # By the clock as it was compared above: one that is set from here on is seen at the next look, before it can
        # end a phase.
        now = int(offset + time.monotonic() * 1000)
        by_round: dict[tuple[str, int, str], list[Standing]] = {}
        for standing in standings:
            by_round.setdefault((standing.experiment, standing.round, standing.kind), []).append(standing)
            if standing.phase in (attempts.GATHERING, attempts.UNMASKING):
                continue
            if standing.due(now):
                self._start(standing.id, self._advance, standing)
            elif standing.phase == "masked" and standing.arrived - self._held.get(standing.id, 0) >= SUM_AT_ONCE:
                self._start(f"{standing.id}/sum", self._sum, standing)
        for found in opened:
            kind = summed_now(found)
            if kind is None:
                continue
            key = (found.row.experiment, found.row.number, kind)
            mine = by_round.get(key, [])
            for standing in mine:
                if standing.phase == attempts.GATHERING:
                    self._start(standing.id, self._begin, standing)
            if all(standing.phase == attempts.UNMASKING for standing in mine):
                self._start("/".join(map(str, key)), open_sums, self._parts, found, kind)

    async def _resume(self, standings: Sequence[Standing]) -> bool:
        """Give every phase its whole time again, after a restart, and when somebody has set the clock. While there was
        no coordinator nobody could answer, and in the time that a clock jumps over nobody works: an attempt that
        counted it would lose clients that are well, and one that waited for it to pass again might wait for days.
        Returns whether any phase has another deadline now.
        """
        timed = [each for each in standings if each.deadline_at is not None]
        async with self._parts.database.read() as session:
            states = {each.id: await attempts.state_of(session, each.id) for each in timed}
        any_moved = False
        for standing in timed:
            kept = states[standing.id]
            if kept is None:
                continue
            machine = await asyncio.to_thread(Machine.from_json, kept[1])
            deadline = now_ms() + machine.state.terms.phase_ms
            async with self._parts.database.write("attempt") as session:
                changed = await attempts.move(session, standing.id, standing.version, {"deadline_at": deadline})
            any_moved = any_moved or changed
        return any_moved

    async def close(self) -> None:
        """Leave what is under way; a restart does it again."""
        for job in self._jobs.values():
            job.cancel()
        await asyncio.gather(*self._jobs.values(), return_exceptions=True)

    def forget(self, attempt: str) -> None:
        """Delete what is kept of an attempt that is over beside its rows."""
        self._parts.opening.forget(attempt)

    def _wake(self, standings: Sequence[Standing]) -> None:
        now = {standing.id: standing.version for standing in standings}
        moved = {attempt for attempt, version in self._seen.items() if now.get(attempt) != version}
        for attempt in moved | (self._parts.turns.waited_for() - now.keys()):
            self._parts.turns.turned(attempt)
        self._seen = now
        self._held = {attempt: count for attempt, count in self._held.items() if attempt in now}

    def _start(self, key: str, act: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        if key in self._jobs:
            return

        async def job() -> None:
            try:
                await act(*arguments)
            except CoterieError as error:
                log.error("attempt cannot go on yet", attempt=key, why=error.message)
                await asyncio.sleep(RETRY_S)
            except Exception as error:
                log.error("attempt cannot go on yet", attempt=key, exc_info=error)
                await asyncio.sleep(RETRY_S)
            finally:
                self._jobs.pop(key, None)
                self._parts.bell.ring()

        self._jobs[key] = asyncio.create_task(job(), name=f"attempt {key}")

    async def _begin(self, standing: Standing) -> None:
        """Make the roster of those who reported *trained*."""
        async with self._parts.database.read() as session:
            row = await attempts.find(session, standing.id)
            members = await attempts.members(session, standing.id)
            keys = await mailbox.bundles(session, standing.id, attempts.KEYS)
            identities = await devices.publics(session, [member.device for member in members])
        if row is None or row.version != standing.version:
            return
        advertised = [
            Advertised(member.device, identities[member.device], AdvertiseKeys.model_validate_json(keys[member.id]))
            for member in members
            if member.id in keys
        ]
        if not members:
            await fail(self._parts, standing, Failed("too_few_clients", "nobody reported that it has trained"))
            return
        task = Task.model_validate_json(members[0].message)
        if task.secure is None:
            raise InternalError(f"The task {task.id} has an attempt and no terms of one.")
        machine = await asyncio.to_thread(begin, task.secure, task, advertised)
        if isinstance(machine, Failed):
            await fail(self._parts, standing, machine)
            return
        parameters = machine.state.parameters
        told = {
            "clients": machine.state.clients,
            "mode": parameters.mode,
            "neighbours": parameters.neighbours,
            "threshold": parameters.threshold,
        }
        await self._move(standing, machine, "attempt.began", told)

    async def _advance(self, standing: Standing) -> None:
        """End a phase: everybody has answered, or its time is over."""
        async with self._parts.database.read() as session:
            row = await attempts.find(session, standing.id)
            machine = None if row is None else await self._parts.machines.of(session, row)
            said = await mailbox.bundles(session, standing.id, standing.phase)
            places = await attempts.devices_of(session, standing.id)
        if row is None or machine is None or row.version != standing.version:
            return
        by_place = {machine.places[places[task]]: bundle for task, bundle in said.items()}
        if standing.phase == "reveal":
            # Whether the answers open the sum is found out where it is opened.
            await self._ready(standing, machine, len(said))
            return
        after = await asyncio.to_thread(machine.close, by_place)
        if isinstance(after, Failed):
            await fail(self._parts, standing, after, heard=len(said))
            return
        await self._move(standing, after, "attempt.phase", {"answered": len(said)}, heard=len(said))

    async def _move(
        self,
        standing: Standing,
        machine: Machine,
        event: str,
        told: Mapping[str, Any],
        heard: int | None = None,
    ) -> None:
        """Write an attempt's next phase, unless something has come since its messages were read. heard: how many."""
        changes = {
            "phase": machine.phase,
            "state": machine.to_json(),
            "awaited": len(machine.awaited),
            "clients": machine.state.clients,
            "survivors": len(machine.state.arrived),
            "deadline_at": now_ms() + machine.state.terms.phase_ms,
        }
        tells_survivors = standing.phase == BEFORE_SURVIVORS
        async with self._parts.database.write("survivors" if tells_survivors else "attempt") as session:
            if not await moved(session, standing, changes, heard):
                return
            if tells_survivors and standing.kind == "train":
                experiment = await experiments.locked(session, standing.experiment)
                await self._parts.rounds.spending.pay_for_sums(session, experiment, standing.round)
            data = named(standing) | {"phase": machine.phase, "awaited": len(machine.awaited)} | dict(told)
            events.append(session, event, data, standing.experiment)
        self._parts.machines.keep(standing.id, standing.version + 1, machine)

    async def _ready(self, standing: Standing, machine: Machine, heard: int) -> None:
        """Everything that opens the sum is here, or will never be."""
        changes = {"phase": attempts.UNMASKING, "deadline_at": None, "awaited": 0}
        async with self._parts.database.write("attempt") as session:
            if not await moved(session, standing, changes, heard):
                return
            data = named(standing) | {"phase": attempts.UNMASKING, "answered": heard}
            events.append(session, "attempt.phase", data, standing.experiment)
        self._parts.machines.keep(standing.id, standing.version + 1, machine)

    async def _sum(self, standing: Standing) -> None:
        """Add the masked vectors that are here to the running sum, ahead of the phase's end."""
        async with self._parts.database.read() as session:
            members = await attempts.members(session, standing.id)
        here = [member for member in members if member.upload is not None]
        try:
            self._held[standing.id] = await self._parts.opening.add(here)
        finally:
            await forget_over(self._parts, standing.experiment, standing.round)
