"""The ledger of a population's privacy budget as rows.

Every method works inside its caller's transaction, so what a round does and what it costs become true together. An
entry moves its population's head by one conditional update: of two writers that have seen the same head only one goes
on, and the other decides anew with what the first has written. So nobody overspends, on any number of replicas.
"""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog
from sqlalchemy import delete, event, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from coterie.errors import InternalError, StorageError
from coterie.privacy.ledger.budget import Excess, TotalEpsilon, clock, excess
from coterie.privacy.ledger.chain import Entry, Head, check, commitment, link
from coterie.privacy.ledger.events import Bound, LedgerEvent, Limit, Refund, RefundCause, Reserve, Spend
from coterie.privacy.ledger.state import Charge, CostState, State
from coterie.protocol.canonical import canonical_json
from coterie.protocol.conversion import to_json
from coterie.protocol.signing import SigningKey
from coterie.server.clock import now_ms
from coterie.server.store import chains
from coterie.server.store.checkpoints import Checkpoints
from coterie.server.store.tables import LedgerRow, SecretRow

log = structlog.get_logger("coterie.server.ledger")
SEED_BYTES: Final = 32


@dataclass(frozen=True)
class Ledger:
    """The ledgers of a coordinator.

    key: signs entries.
    accountant: what costs add up to; it may take a second when it has not seen them before, so it runs in a thread.
    folded: of each population, the end of the chain as far as this process has verified it, and what it says; a
        transaction that was rolled back may have left something there that is not in the rows, which shows by its
        digest.
    checkpoints: where the ends of the chains are kept beside the database; None for nowhere.
    """

    key: SigningKey
    accountant: TotalEpsilon
    checkpoints: Checkpoints | None = None
    entropy: Callable[[int], bytes] = os.urandom
    folded: dict[str, tuple[Head, State]] = field(default_factory=dict[str, tuple[Head, State]])

    async def read(self, session: AsyncSession, population: str) -> tuple[Head, State]:
        """The end of a population's chain and its state, every entry's place, digest and signature checked once.

        Raises errors.StorageError where the chain does not hold (``ledger_broken``), or ends before its checkpoint
        (``ledger_cut``; ``ledger_checkpoint_damaged``): then nothing can be reserved or spent any more.
        """
        end = await _head(session, population)
        head, state = self.folded.get(population, (Head(population=population), State()))
        if not await _holds(session, head, end):
            head, state = Head(population=population), State()
        if head.sequence == 0:
            await self._check_end(session, end)
        if head == end:
            return end, state
        added = await entries(session, population, head.sequence, end.sequence - head.sequence)
        # Thousands of signatures at a start: other requests go on meanwhile.
        verdict = await asyncio.to_thread(check, added, head=head, state=state, public=self.key.public)
        if verdict.broken is not None or verdict.head != end:
            place, why = (
                (end.sequence, "entries are missing at its end")
                if verdict.broken is None
                else (verdict.broken.sequence, verdict.broken.why)
            )
            raise StorageError(
                f"The privacy ledger of {population!r} is broken at entry {place}: {why}.",
                hint="`coterie budget verify` shows where; restore the database from a backup. No budget can be spent.",
                code="ledger_broken",
            )
        self.folded[population] = (end, verdict.state)
        return end, verdict.state

    async def keep_end(self, session: AsyncSession, population: str) -> None:
        """Write the checkpoint of a chain that holds, where it is behind or there is none: after a kill between commit
        and file, and when a coordinator begins to keep checkpoints. Raises as `read` does.
        """
        end, _ = await self.read(session, population)
        if self.checkpoints is None or end.sequence == 0:
            return
        cached = await asyncio.to_thread(self.checkpoints.newest, population)
        if cached is not None and cached.sequence == end.sequence:
            return
        if cached is None:
            log.warning(
                "no checkpoint of this privacy ledger",
                population=population,
                entries=end.sequence,
                path=str(self.checkpoints.path(population)),
                hint="Expected the first time only. Otherwise see whether its disk is mounted, and check the ledger by "
                "a receipt.",
            )
        (newest,) = await entries(session, population, end.sequence - 1, 1)
        await asyncio.to_thread(self.checkpoints.write, newest)

    async def _check_end(self, session: AsyncSession, end: Head) -> None:
        """Hold a chain that this process has not seen yet to its checkpoint."""
        if self.checkpoints is None:
            return
        cached = await asyncio.to_thread(self.checkpoints.newest, end.population)
        if cached is None:
            return
        query = select(LedgerRow.digest).where(
            LedgerRow.population == end.population, LedgerRow.sequence == cached.sequence
        )
        if (await session.execute(query)).scalar_one_or_none() == cached.digest:
            return
        raise StorageError(
            f"The privacy ledger of {end.population!r} ends at entry {end.sequence} and lacks entry {cached.sequence},"
            f" which {self.checkpoints.path(end.population)} has: its end was cut off, or the database is an old"
            " backup.",
            hint="Restore the newest backup. If none has the entry, budget that was spent since is forgotten: lower the"
            " population's limits by what may have been released, then remove the checkpoint. Until then no budget of"
            " this population can be spent.",
            code="ledger_cut",
        )

    def _keep_end(self, session: AsyncSession, entry: Entry) -> None:
        """Write the checkpoint of an entry when its transaction is committed, and not before."""
        if self.checkpoints is None:
            return
        write = self.checkpoints.write

        def committed(_: Session) -> None:
            write(entry)

        event.listen(session.sync_session, "after_commit", committed, once=True)

    async def would_exceed(
        self, session: AsyncSession, population: str, experiment: str, cost: Sequence[str]
    ) -> Excess | None:
        """The limit that a cost would break; nothing is written."""
        _, state = await self.read(session, population)
        return await self._excess(state, experiment, cost)

    async def limit(self, session: AsyncSession, population: str, scope: str, bound: Bound | None) -> None:
        """Set or take away a limit; one that is as it should be already gets no entry."""

        async def decide(state: State) -> LedgerEvent | None:
            return None if state.limits.get(scope) == bound else Limit(scope=scope, bound=bound)

        await self._append(session, population, decide)

    async def reserve(
        self, session: AsyncSession, population: str, experiment: str, round: int, cost: tuple[str, ...]
    ) -> Excess | None:
        """Keep a round's cost free for it, unless that would break a limit, which is returned. A cost that is reserved
        already is not reserved again.
        """
        found: list[Excess] = []

        async def decide(state: State) -> LedgerEvent | None:
            found.clear()
            if state.charge(experiment, round) is not None:
                return None
            broken = await self._excess(state, experiment, cost)
            if broken is not None:
                found.append(broken)
                return None
            return Reserve(experiment=experiment, round=round, cost=cost)

        await self._append(session, population, decide)
        return found[0] if found else None

    async def spend(self, session: AsyncSession, population: str, experiment: str, round: int) -> None:
        """Pay what a round has reserved: from this commit on a noised or unmasked value may exist. Paid once, however
        often it is called. Raises errors.InternalError for a round that has reserved nothing.
        """
        await self._spend(session, population, experiment, round, None)

    async def spend_with_noise(self, session: AsyncSession, population: str, experiment: str, round: int) -> bytes:
        """As `spend`, and the seed of the round's noise: drawn and kept with the payment, and the same one ever after,
        so that what is done again after a crash is the same value and costs nothing more.
        """
        _, state = await self.read(session, population)
        charge = state.charge(experiment, round)
        if charge is not None and charge.state is CostState.SPENT:
            return await _seed(session, charge)
        seed = self.entropy(SEED_BYTES)
        session.add(SecretRow(name=_secret(experiment, round), value=seed))
        await self._spend(session, population, experiment, round, commitment(seed))
        return seed

    async def noise_seed(self, session: AsyncSession, population: str, experiment: str, round: int) -> bytes | None:
        """The seed of the noise of a round that was paid for; None where it was paid for without one.

        Raises errors.InternalError for a round that was not paid for, and where the seed is gone (``noise_lost``).
        """
        _, state = await self.read(session, population)
        charge = state.charge(experiment, round)
        if charge is None or charge.state is not CostState.SPENT:
            raise InternalError(f"Round {round} of {experiment} was not paid for, so its sum is not opened.")
        return None if charge.noise is None else await _seed(session, charge)

    async def forget_noise(self, session: AsyncSession, experiment: str, round: int) -> None:
        """Delete the seed of a round whose noised value is durable, or will never be."""
        await session.execute(delete(SecretRow).where(SecretRow.name == _secret(experiment, round)))

    async def refund(
        self, session: AsyncSession, population: str, experiment: str, round: int, cause: RefundCause
    ) -> None:
        """Give back what a round has reserved and not spent; nothing happens for any other round."""

        async def decide(state: State) -> LedgerEvent | None:
            charge = state.charge(experiment, round)
            reserved = charge is not None and charge.state is CostState.RESERVED
            return Refund(experiment=experiment, round=round, cause=cause) if reserved else None

        await self._append(session, population, decide)

    async def _spend(
        self, session: AsyncSession, population: str, experiment: str, round: int, noise: str | None
    ) -> None:
        async def decide(state: State) -> LedgerEvent | None:
            charge = state.charge(experiment, round)
            if charge is None or charge.state is CostState.REFUNDED:
                raise InternalError(f"Round {round} of {experiment} has reserved no budget that it could spend.")
            spent = charge.state is CostState.SPENT
            return None if spent else Spend(experiment=experiment, round=round, noise=noise)

        await self._append(session, population, decide)

    async def _excess(self, state: State, experiment: str, cost: Sequence[str]) -> Excess | None:
        return await asyncio.to_thread(excess, state, now_ms(), experiment, cost, self.accountant)

    async def _append(self, session: AsyncSession, population: str, decide: "Decide") -> None:
        """Add the entry that follows from the ledger's state, if any; decided anew whenever another writer was faster.

        Raises errors.InternalError when others are faster time after time.
        """
        for _ in range(chains.MOST_TRIES):
            head, state = await self.read(session, population)
            decided = await decide(state)
            if decided is None:
                return
            entry = link(head, clock(state, now_ms()), decided, self.key)
            if await append(session, head, entry):
                self._keep_end(session, entry)
                return
        raise InternalError(f"Other writers kept changing the privacy ledger of {population!r}.")


Decide = Callable[[State], Awaitable[LedgerEvent | None]]
"""From a ledger's state to the event that follows, if any."""


async def append(session: AsyncSession, head: Head, entry: Entry) -> bool:
    """Add an entry if the chain still ends where the writer saw it end; otherwise nothing happens, and False."""
    seen = chains.End(head.sequence, head.digest)
    if not await chains.move(session, chain_of(head.population), seen, entry.digest):
        return False
    session.add(
        LedgerRow(
            population=entry.population, sequence=entry.sequence, at=entry.at,
            event=canonical_json(to_json(entry.event)).decode(), previous=entry.previous, digest=entry.digest,
            signature=entry.signature,
        )
    )  # fmt: skip
    await session.flush()
    return True


async def entries(session: AsyncSession, population: str, after: int, count: int) -> list[Entry]:
    """So many entries of a population after a place, in order."""
    if count <= 0:
        return []
    query = (
        select(LedgerRow)
        .where(LedgerRow.population == population, LedgerRow.sequence > after)
        .order_by(LedgerRow.sequence)
        .limit(count)
    )
    return [
        Entry.from_json({
            "population": row.population, "sequence": row.sequence, "at": row.at, "event": json.loads(row.event),
            "previous": row.previous, "digest": row.digest, "signature": row.signature,
        })
        for row in (await session.execute(query)).scalars()
    ]  # fmt: skip


def begin(session: AsyncSession, population: str) -> None:
    """The empty ledger of a new population."""
    chains.begin(session, chain_of(population))


def chain_of(population: str) -> str:
    """The name of the chain that a population's ledger is."""
    return f"ledger/{population}"


async def _head(session: AsyncSession, population: str) -> Head:
    end = await chains.end(session, chain_of(population))
    return Head(population=population, sequence=end.sequence, digest=end.digest)


async def _holds(session: AsyncSession, cached: Head, end: Head) -> bool:
    """Whether what this process knows of a chain is the beginning of the chain in the rows."""
    if cached.sequence == end.sequence or cached.sequence == 0:
        return cached.sequence == 0 or cached.digest == end.digest
    query = select(LedgerRow.digest).where(
        LedgerRow.population == cached.population, LedgerRow.sequence == cached.sequence
    )
    return (await session.execute(query)).scalar_one_or_none() == cached.digest


async def _seed(session: AsyncSession, charge: Charge) -> bytes:
    row = await session.get(SecretRow, _secret(charge.experiment, charge.round))
    if row is None or charge.noise != commitment(row.value):
        raise InternalError(
            f"Round {charge.round} of {charge.experiment} is paid for, but the seed of its noise is gone.",
            code="noise_lost",
        )
    return row.value


def _secret(experiment: str, round: int) -> str:
    return f"noise/{experiment}/{round}"
