"""The researcher's client: populations, tokens, experiments, events and models of one coordinator.

`ControlClient` is asynchronous; `coterie.client_sdk.control.control.Control` is the same for synchronous code.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any, Final, Literal, TypeVar
from urllib.parse import quote
from uuid import uuid4

from pydantic import BaseModel

from coterie.aggregation.history import History
from coterie.aggregation.record import RoundRecord
from coterie.client_sdk.control.event_stream import follow_events, read_events
from coterie.client_sdk.http import Link, is_transient
from coterie.client_sdk.lean_httpx import httpx
from coterie.errors import ExperimentError, Forbidden, RemoteError
from coterie.protocol.audit import AuditEntry
from coterie.protocol.budget import BudgetView, LedgerEntry
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.control import (
    DeviceView,
    Event,
    ExperimentCreate,
    ExperimentView,
    ModelView,
    PolicyChange,
    PopulationCreate,
    PopulationView,
    RoundView,
    TokenCreate,
    TokenCreated,
    TokenRole,
    TokenView,
)
from coterie.protocol.participants import Participant
from coterie.protocol.refinement import departure
from coterie.protocol.schema import DataSchema
from coterie.protocol.spread import Spread
from coterie.protocol.wire import BlobRef, read_message

View = TypeVar("View", bound=BaseModel)
Result = TypeVar("Result")

FINISHED: Final = frozenset(("finished", "stopped"))
FINAL_EVENT: Final = "experiment.finished"
ATTEMPTS: Final = 4
BLOB_BYTES: Final = 4 << 30


class ControlClient:
    """Requests of the control plane with a bearer token.

    url: of the coordinator.
    token: of a role (docs/roles.md).
    ca, transport: PEM of the coordinator's authority; a transport for tests.
    Raises RemoteError with the coordinator's code and hint, Unreachable when it does not answer.
    """

    def __init__(
        self, url: str, *, token: str, ca: str | Path | None = None, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self.link = Link(url, headers={"Authorization": f"Bearer {token}"}, ca=ca, transport=transport)

    async def close(self) -> None:
        """Close all connections."""
        await self.link.close()

    async def populations(self) -> list[PopulationView]:
        """All populations."""
        return await self.items(PopulationView, "/v1/populations")

    async def ensure_population(
        self,
        name: str,
        schema: DataSchema,
        *,
        signers: Sequence[str] = (),
        client_state: Literal["kept", "none"] = "kept",
    ) -> PopulationView:
        """The population of this name, made when absent, with these signers among its own.

        client_state: of a population that is made; ``none`` where devices do not come back, so that what needs their
        state is refused.
        Raises ExperimentError (``population_schema``) when it exists with another schema, of which this is no
        refinement (`coterie.protocol.refinement`): a schema never changes, because devices have checked their data
        against it. Raises Forbidden (``token_role``) where what is missing is an operator's to make.
        """
        try:
            found = read_message(PopulationView, await self.link.json("GET", f"/v1/populations/{name}"))
        except RemoteError as error:
            if error.details.get("http_status") != 404:
                raise
            request = PopulationCreate(name=name, data_schema=schema, signers=tuple(signers), client_state=client_state)
            with _only_operators(f"There is no population {name!r}", f"coterie populations make {name} SCHEMA"):
                found = read_message(PopulationView, await self.create("/v1/populations", request))
        if (why := departure(schema, found.data_schema)) is not None:
            raise ExperimentError(
                f"This experiment's data schema is not a refinement of that of population {name!r}: it {why}.",
                hint="Name another population, or give the experiment the population's schema.",
                code="population_schema",
            )
        for signer in signers:
            if signer not in found.signers:
                refused = f"Population {name!r} accepts no plans of the key {signer}"
                with _only_operators(refused, f"coterie populations allow {name} {signer}"):
                    found = await self.allow_signer(name, signer)
        return found

    async def allow_signer(self, name: str, public: str) -> PopulationView:
        """Accept the plans of one more key. Raises RemoteError (``population_policy`` where the policy names the
        signers).
        """
        address = f"/v1/populations/{quote(name, safe='')}/signers/{quote(public, safe='')}"
        return read_message(PopulationView, await self.link.json("PUT", address))

    async def population(self, name: str) -> PopulationView:
        """One population."""
        return read_message(PopulationView, await self.link.json("GET", f"/v1/populations/{quote(name, safe='')}"))

    async def change_policy(self, name: str, change: PolicyChange) -> PopulationView:
        """Change the floor under a population's experiments: fields that were given, and no others."""
        body = change.model_dump(mode="json", exclude_unset=True)
        return read_message(
            PopulationView, await self.link.json("PATCH", f"/v1/populations/{quote(name, safe='')}", body)
        )

    async def budget(self, name: str) -> BudgetView:
        """A population's privacy budget as it stands."""
        return read_message(BudgetView, await self.link.json("GET", f"/v1/populations/{quote(name, safe='')}/budget"))

    async def budget_entries(self, name: str) -> list[LedgerEntry]:
        """The whole ledger of a population's privacy budget, the oldest entry first."""
        return await self.items(LedgerEntry, f"/v1/populations/{quote(name, safe='')}/budget/entries")

    async def audit_trail(self) -> list[AuditEntry]:
        """Every administrative action, the oldest first; `coterie.protocol.audit.first_fault` checks it."""
        return await self.items(AuditEntry, "/v1/audit")

    async def enrolment_token(
        self, population: str, *, uses: int | None = None, ttl_s: int | None = None, name: str = "enrolment"
    ) -> TokenCreated:
        """A token with which devices join.

        uses: how many.
        ttl_s: seconds until it runs out; None for no limit.
        """
        request = TokenCreate(kind="enrol", name=name, population=population, uses=uses, expires_s=ttl_s)
        return read_message(TokenCreated, await self.create("/v1/tokens", request))

    async def role_token(
        self, role: TokenRole, population: str | None = None, *, ttl_s: int | None = None, name: str | None = None
    ) -> TokenCreated:
        """A token of a role on the control plane; docs/roles.md says what each role may do.

        population: the only one that it is for; None: all.
        ttl_s: seconds until it runs out.
        name: a label.
        Raises RemoteError (``token_role``, ``token_population``, ``population_unknown``).
        """
        request = TokenCreate(kind=role, name=name or role, population=population, expires_s=ttl_s)
        return read_message(TokenCreated, await self.create("/v1/tokens", request))

    async def tokens(self) -> list[TokenView]:
        """Every token without its secret, the oldest first."""
        return await self.items(TokenView, "/v1/tokens")

    async def revoke_token(self, token: str) -> None:
        """Make a token useless for ever, by its id. Raises RemoteError (``token_unknown``, ``token_in_use``)."""
        await self.link.request("DELETE", f"/v1/tokens/{quote(token, safe='')}")

    async def edge_token(
        self,
        population: str,
        *,
        max_clients: int,
        min_clients: int | None = None,
        uses: int | None = None,
        ttl_s: int | None = None,
        name: str = "edge",
    ) -> TokenCreated:
        """A token with which edge aggregators join.

        max_clients, min_clients: for how many clients each may speak in one update, at most and at least (2 when not
            given).
        uses, ttl_s: as for devices.
        """
        request = TokenCreate(
            kind="edge",
            name=name,
            population=population,
            uses=uses,
            expires_s=ttl_s,
            min_clients=min_clients,
            max_clients=max_clients,
        )
        return read_message(TokenCreated, await self.create("/v1/tokens", request))

    async def put_blob(self, data: bytes, *, kind: str) -> BlobRef:
        """Store bytes under their SHA-256; bytes that are there already are not an error."""
        target = f"/v1/blobs/{sha256_hex(data)}?kind={kind}"
        headers = {"Content-Type": "application/octet-stream"}
        await _with_retries(lambda: self.link.request("PUT", target, body=data, headers=headers))
        return BlobRef(sha256=sha256_hex(data), size=len(data))

    async def blob(self, sha256: str) -> bytes:
        """A blob's bytes, whose digest is checked. Raises RemoteError (``digest_mismatch``) for other bytes."""
        response = await self.link.request("GET", f"/v1/blobs/{sha256}", limit=BLOB_BYTES)
        if sha256_hex(response.content) != sha256:
            raise RemoteError(f"The bytes of blob {sha256[:12]} do not match its SHA-256.", code="digest_mismatch")
        return response.content

    async def create_experiment(self, request: ExperimentCreate) -> ExperimentView:
        """Start an experiment whose blobs are stored already."""
        return read_message(ExperimentView, await self.create("/v1/experiments", request))

    async def experiments(self) -> list[ExperimentView]:
        """All experiments, newest first."""
        return await self.items(ExperimentView, "/v1/experiments")

    async def experiment(self, experiment: str) -> ExperimentView:
        """An experiment by its id, a unique beginning of it, or its unique name."""
        target = f"/v1/experiments/{quote(experiment, safe='')}"
        return read_message(ExperimentView, await self.link.json("GET", target))

    async def stop(self, experiment: str) -> ExperimentView:
        """Ask an experiment to stop; its open round ends as abandoned."""
        return read_message(ExperimentView, await self.link.json("POST", f"/v1/experiments/{experiment}/stop"))

    async def rounds(self, experiment: str) -> list[RoundView]:
        """The rounds begun so far."""
        return await self.items(RoundView, f"/v1/experiments/{experiment}/rounds")

    async def models(self, experiment: str) -> list[ModelView]:
        """The model versions; round 0 is the initial one."""
        return await self.items(ModelView, f"/v1/experiments/{experiment}/models")

    async def devices(self, population: str | None = None) -> list[DeviceView]:
        """Enrolled devices, of one population or of all."""
        query = "" if population is None else f"?population={population}"
        return await self.items(DeviceView, f"/v1/devices{query}")

    async def revoke(self, device: str) -> DeviceView:
        """Revoke a device."""
        return read_message(DeviceView, await self.link.json("POST", f"/v1/devices/{quote(device, safe='')}/revoke"))

    async def history(self, experiment: str) -> History:
        """The finished rounds, why the experiment finished (None while it runs), and its best version."""
        view = await self.experiment(experiment)
        records = [_record(row) for row in await self.rounds(view.id) if row.state in ("committed", "abandoned")]
        return History(tuple(records), view.reason, view.best)

    async def past_events(self, experiment: str | None = None, *, after: int = 0) -> AsyncIterator[Event]:
        """The events that there are, the oldest first: all, or an experiment's."""
        only = "" if experiment is None else f"&experiment={experiment}"
        async with aclosing(read_events(self.link, f"/v1/events?live=false&after={after}{only}")) as events:
            async for event in events:
                yield event

    async def events(self, experiment: str | None, *, after: str | None = None) -> AsyncIterator[Event]:
        """An experiment's events from its first, or from the one after ``after``, until it has finished; of None those
        of the coordinator, without an end.

        A broken connection is taken up again where it broke, so no event is missed and none comes twice.
        """
        last, failures, over = after, 0, False
        while True:
            try:
                async for event in follow_events(self.link, experiment, last):
                    failures = 0
                    if event is None:
                        # Silence: perhaps the last event was ``after``. Over before the silence began means no more.
                        if over:
                            return
                        over = experiment is not None and await self._is_over(experiment)
                        continue
                    last, over = str(event.id), False
                    yield event
                    if experiment is not None and event.type == FINAL_EVENT:
                        return
            except RemoteError as error:
                if not is_transient(error):
                    raise
                failures += 1
                if failures >= ATTEMPTS:
                    raise
            await asyncio.sleep(0.25 * 2**failures)

    async def _is_over(self, experiment: str) -> bool:
        try:
            return (await self.experiment(experiment)).state in FINISHED
        except RemoteError as error:
            if is_transient(error):
                return False
            raise

    async def create(self, target: str, message: BaseModel) -> Any:
        """A creating request, repeated safely under one idempotency key when its answer is lost."""
        key = {"Idempotency-Key": uuid4().hex}
        return await _with_retries(lambda: self.link.json("POST", target, message.model_dump(mode="json"), headers=key))

    async def items(self, kind: type[View], target: str) -> list[View]:
        """Everything that a list holds, page by page."""
        items: list[View] = []
        cursor: str | None = None
        while True:
            joint = "&" if "?" in target else "?"
            page = await self.link.json("GET", target if cursor is None else f"{target}{joint}cursor={cursor}")
            items += [read_message(kind, item) for item in page["items"]]
            cursor = page.get("next_cursor")
            if cursor is None:
                return items


async def _with_retries(request: Callable[[], Awaitable[Result]]) -> Result:
    """The result of a repeatable request, tried again after failures that pass by themselves."""
    for attempt in range(1, ATTEMPTS):
        try:
            return await request()
        except RemoteError as error:
            if not is_transient(error):
                raise
            await asyncio.sleep(0.2 * 2**attempt)
    return await request()


def _record(row: RoundView) -> RoundRecord:
    return RoundRecord(
        round=row.round,
        state=row.state,
        cause=row.cause,
        accepted=row.accepted,
        failed=row.failed,
        metrics=row.metrics,
        training=row.training,
        fairness={name: Spread.from_dict(found) for name, found in row.fairness.items()},
        evaluation=row.evaluation,
        bytes_up=row.bytes_up,
        bytes_down=row.bytes_down,
        seconds=row.seconds,
        model=row.model,
        clipped=row.clipped,
        diverged=row.diverged,
        epsilon=row.epsilon,
        delta=row.delta,
        participants=tuple(Participant(**one.model_dump()) for one in row.participants),
    )


@contextmanager
def _only_operators(what: str, command: str) -> Generator[None]:
    """Say what an operator must do where the caller's own role may not."""
    try:
        yield
    except RemoteError as error:
        if error.reason != "token_role":
            raise
        raise Forbidden(
            f"{what}, and only an operator can change that.", hint=f"Ask one to run: {command}", code="token_role"
        ) from error
