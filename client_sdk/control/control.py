"""The researcher's client for synchronous code: `Control`, and a `Run` for each experiment."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal

from coterie.aggregation.experiment import Experiment
from coterie.aggregation.history import History
from coterie.aggregation.vertical.experiment import VerticalExperiment
from coterie.client_sdk.control import sessions
from coterie.client_sdk.control.client import ControlClient
from coterie.client_sdk.control.download import Form, download, forms
from coterie.client_sdk.control.submission import Submission, send
from coterie.client_sdk.lean_httpx import httpx
from coterie.client_sdk.portal import Portal
from coterie.errors import Unreachable
from coterie.protocol.audit import AuditEntry
from coterie.protocol.budget import BudgetView, LedgerEntry
from coterie.protocol.control import (
    DeviceView,
    Event,
    ExperimentView,
    ModelView,
    PolicyChange,
    PopulationView,
    TokenCreated,
    TokenRole,
    TokenView,
)
from coterie.protocol.schema import DataSchema
from coterie.protocol.session import SessionCreate, SessionCreated, SessionView
from coterie.protocol.signing import SigningKey


class Control:
    """A coordinator as a researcher sees it. A context manager; `close` ends its connections.

    url, token, ca: see `ControlClient`, whose methods these are.
    Raises RemoteError, Unreachable.
    """

    def __init__(
        self, url: str, *, token: str, ca: str | Path | None = None, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self.client = ControlClient(url, token=token, ca=ca, transport=transport)
        self.portal = Portal()

    def populations(self) -> list[PopulationView]:
        """All populations."""
        return self.portal.call(self.client.populations())

    def ensure_population(
        self,
        name: str,
        schema: DataSchema,
        *,
        signers: Sequence[str] = (),
        client_state: Literal["kept", "none"] = "kept",
    ) -> PopulationView:
        """The population, made when absent; see `ControlClient.ensure_population`."""
        return self.portal.call(self.client.ensure_population(name, schema, signers=signers, client_state=client_state))

    def allow_signer(self, name: str, public: str) -> PopulationView:
        """Accept the plans of one more key; see `ControlClient.allow_signer`."""
        return self.portal.call(self.client.allow_signer(name, public))

    def population(self, name: str) -> PopulationView:
        """One population."""
        return self.portal.call(self.client.population(name))

    def change_policy(self, name: str, change: PolicyChange) -> PopulationView:
        """Change the floor under a population's experiments; see `ControlClient.change_policy`."""
        return self.portal.call(self.client.change_policy(name, change))

    def budget(self, name: str) -> BudgetView:
        """A population's privacy budget as it stands."""
        return self.portal.call(self.client.budget(name))

    def budget_entries(self, name: str) -> list[LedgerEntry]:
        """The whole ledger of a population's privacy budget, the oldest entry first."""
        return self.portal.call(self.client.budget_entries(name))

    def audit_trail(self) -> list[AuditEntry]:
        """Every administrative action, the oldest first; see `ControlClient.audit_trail`."""
        return self.portal.call(self.client.audit_trail())

    def enrolment_token(
        self, population: str, *, uses: int | None = None, ttl_s: int | None = None, name: str = "enrolment"
    ) -> TokenCreated:
        """A token with which devices join; its field ``token`` is shown this once."""
        return self.portal.call(self.client.enrolment_token(population, uses=uses, ttl_s=ttl_s, name=name))

    def role_token(
        self, role: TokenRole, population: str | None = None, *, ttl_s: int | None = None, name: str | None = None
    ) -> TokenCreated:
        """A token of a role; see `ControlClient.role_token`."""
        return self.portal.call(self.client.role_token(role, population, ttl_s=ttl_s, name=name))

    def tokens(self) -> list[TokenView]:
        """Every token without its secret, the oldest first."""
        return self.portal.call(self.client.tokens())

    def revoke_token(self, token: str) -> None:
        """Make a token useless for ever, by its id."""
        self.portal.call(self.client.revoke_token(token))

    def events(
        self, experiment: str | None = None, *, after: int | None = None, follow: bool = False
    ) -> Iterator[Event]:
        """The coordinator's events, or those of one experiment (by its id), the oldest first.

        after: leave out those up to this number.
        follow: go on with those to come.
        """
        if follow:
            return self.portal.iterate(self.client.events(experiment, after=None if after is None else str(after)))
        return self.portal.iterate(self.client.past_events(experiment, after=after or 0))

    def submit(
        self,
        experiment: Experiment,
        *,
        key: SigningKey,
        population: str | None = None,
        on_progress: Callable[[str], None] = lambda step: None,
    ) -> "Run":
        """Compile, sign and start an experiment; see `coterie.client_sdk.control.submission.send`."""
        submission = Submission(experiment=experiment, key=key, population=population)
        view = self.portal.call(send(self.client, submission, on_progress=on_progress))
        return Run(self, view.id, view.name)

    def experiments(self) -> list[ExperimentView]:
        """All experiments, newest first."""
        return self.portal.call(self.client.experiments())

    def run(self, experiment: str) -> "Run":
        """An experiment by its id, a unique beginning of it, or its unique name."""
        view = self.portal.call(self.client.experiment(experiment))
        return Run(self, view.id, view.name)

    def devices(self, population: str | None = None) -> list[DeviceView]:
        """Enrolled devices."""
        return self.portal.call(self.client.devices(population))

    def revoke(self, device: str) -> DeviceView:
        """Revoke a device, by its id."""
        return self.portal.call(self.client.revoke(device))

    def make_session(self, request: SessionCreate | VerticalExperiment) -> SessionCreated:
        """A session of parties; its field ``tokens`` is shown this once."""
        asked = request.request() if isinstance(request, VerticalExperiment) else request
        return self.portal.call(sessions.make(self.client, asked))

    def sessions(self) -> list[SessionView]:
        """Every session of parties, the oldest first."""
        return self.portal.call(sessions.list_all(self.client))

    def session(self, session: str) -> SessionView:
        """One session of parties, by its id."""
        return self.portal.call(sessions.get(self.client, session))

    def end_session(self, session: str, detail: str = "") -> SessionView:
        """End a session for all its parties, by its id."""
        return self.portal.call(sessions.end(self.client, session, detail))

    def close(self) -> None:
        """Close all connections. May be called twice."""
        if self.portal.is_running:
            self.portal.call(self.client.close())
        self.portal.close()

    def __enter__(self) -> "Control":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Run:
    """An experiment on a coordinator. It goes on whether or not anybody watches."""

    def __init__(self, control: Control, id: str, name: str) -> None:
        self.control = control
        self.id = id
        self.name = name

    def __repr__(self) -> str:
        return f"Run(id={self.id!r}, name={self.name!r})"

    def view(self) -> ExperimentView:
        """The experiment as it stands."""
        return self.control.portal.call(self.control.client.experiment(self.id))

    def watch(self, *, after: str | None = None) -> Iterator[Event]:
        """Events from the first one, or after the event ``after``, until the experiment has finished; survives lost
        connections.
        """
        return self.control.portal.iterate(self.control.client.events(self.id, after=after))

    def wait(self, timeout_s: float | None = None) -> History:
        """Wait until the experiment has finished.

        Raises Unreachable (``timeout``) when that takes longer than ``timeout_s``.
        """
        return self.control.portal.call(self._wait(timeout_s))

    def history(self) -> History:
        """The finished rounds so far."""
        return self.control.portal.call(self.control.client.history(self.id))

    def stop(self) -> ExperimentView:
        """Ask the experiment to stop."""
        return self.control.portal.call(self.control.client.stop(self.id))

    def models(self) -> list[ModelView]:
        """The model versions; round 0 is the initial one."""
        return self.control.portal.call(self.control.client.models(self.id))

    def download(self, path: str | Path, *, version: str = "best", form: Form = "infer") -> Path:
        """Write a model version to a file; see `coterie.client_sdk.control.download.download`."""
        return self.control.portal.call(download(self.control.client, self.id, Path(path), version=version, form=form))

    def forms(self) -> tuple[Form, ...]:
        """The forms in which `download` writes its versions."""
        return self.control.portal.call(forms(self.control.client, self.id))

    async def _wait(self, timeout_s: float | None) -> History:
        try:
            async with asyncio.timeout(timeout_s):
                async for _ in self.control.client.events(self.id):
                    pass
        except TimeoutError:
            raise Unreachable(
                f"Experiment {self.name!r} has not finished within {timeout_s} seconds.",
                hint="It goes on; wait again, or watch it.",
                code="timeout",
            ) from None
        return await self.control.client.history(self.id)
