"""A party: `PartyClient` and, for synchronous code, `Party` and `Session`."""

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from coterie.client_sdk.http import Link
from coterie.client_sdk.lean_httpx import httpx
from coterie.client_sdk.party.pins import Judge, Pins, refuse
from coterie.client_sdk.party.sealing import Body
from coterie.client_sdk.party.session import BACKOFF, Incoming, Listener, SessionClient
from coterie.client_sdk.party.store import PartyMembership, PartyStore
from coterie.client_sdk.portal import Portal
from coterie.errors import InputError
from coterie.protocol.disclosures import MESSAGES_STEP, Disclosure
from coterie.protocol.session import PartyJoined, SendReceipt, SessionView, fingerprint
from coterie.protocol.session_report import SessionReport
from coterie.protocol.wire import read_message

DEFAULT_FOLDER = Path(".coterie/party")


def _ignore(event: dict[str, object]) -> None:
    """The listener of those who want none."""


class PartyClient:
    """An organisation's agent: its identity, its pins, and the sessions that it has joined.

    folder: what it remembers; one process at a time.
    judge: says which strangers to pin; `pins.refuse` takes partners from the list alone.
    ca: PEM of the coordinator's authority.
    transport: for tests.
    on_event: see `SessionClient`.
    Raises ConfigurationError when the folder is in use.
    """

    def __init__(
        self,
        folder: Path,
        *,
        judge: Judge = refuse,
        ca: str | Path | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        on_event: Listener = _ignore,
    ) -> None:
        self.store = PartyStore(folder)
        self._judge, self._ca, self._transport, self._on_event = judge, ca, transport, on_event
        self._links: dict[str, Link] = {}

    async def close(self) -> None:
        """Release the folder and the connections."""
        for link in self._links.values():
            await link.close()
        self.store.close()

    async def join(self, url: str, token: str) -> SessionClient:
        """Take the role that the token is for, and offer keys to all partners. Idempotent.

        Raises InputError (``token_kind``), RemoteError (``role_taken``, ``session_ended``, ``session_expired``).
        """
        if not token.startswith("coterie_party_"):
            raise InputError(
                "This token does not join a session.",
                hint="Ask the operator for the token of your role; `coterie sessions make` shows it.",
                code="token_kind",
            )
        link = self._link(url)
        body = {"public_key": self.store.key.public}
        answer = await link.json("POST", "/v1/party/join", body, headers={"Authorization": f"Bearer {token}"})
        joined = read_message(PartyJoined, answer)
        self.store.faults.reach("taken")
        session = self._session(self.store.join(url, joined), joined.nonce)
        await session.offer_keys()
        return session

    def session(self, identifier: str | None = None) -> SessionClient:
        """A session that was joined before, by its id or the id's end; the only one when none is given.

        Raises ConfigurationError ``session_unknown``.
        """
        return self._session(self.store.membership(identifier), None)

    async def report(self, identifier: str | None = None) -> SessionReport:
        """What this party told and was told in a session, also in one that it has ended; see `SessionClient.report`.

        Raises ConfigurationError ``session_unknown``.
        """
        return await self._session(self.store.past_or_present(identifier), None).report()

    def _session(self, membership: PartyMembership, nonce: str | None) -> SessionClient:
        link = self._link(membership.url)
        return SessionClient(
            link, self.store, membership, nonce=nonce, judge=self._judge, backoff=BACKOFF, on_event=self._on_event
        )

    def _link(self, url: str) -> Link:
        if url not in self._links:
            self._links[url] = Link(url, ca=self._ca, transport=self._transport)
        return self._links[url]


class Session:
    """A session for synchronous code; methods as of `SessionClient`, and they block."""

    def __init__(self, portal: Portal, client: SessionClient) -> None:
        self._portal, self._client = portal, client

    @property
    def membership(self) -> PartyMembership:
        """This party's role, and the session's terms."""
        return self._client.membership

    def folder_of_alignment(self, stage: str) -> Path:
        """Where the alignment in a stage keeps its secrets and its result."""
        return self._client.folder_of_alignment(stage)

    def folder_of_job(self) -> Path:
        """Where the session's job keeps what it has."""
        return self._client.folder_of_job()

    def send(
        self,
        stage: str,
        role: str,
        body: Body,
        *,
        sequence: int | None = None,
        step: str = MESSAGES_STEP,
        patience_s: float | None = None,
    ) -> SendReceipt:
        """See `SessionClient.send`."""
        sending = self._client.send(stage, role, body, sequence=sequence, step=step, patience_s=patience_s)
        return self._portal.call(sending)

    def resume(self, *, patience_s: float | None = None) -> int:
        """See `SessionClient.resume`."""
        return self._portal.call(self._client.resume(patience_s=patience_s))

    def receive(self, stage: str, role: str, *, step: str = MESSAGES_STEP, patience_s: float | None = None) -> Incoming:
        """See `SessionClient.receive`; read it with `chunks` or `read`."""
        return self._portal.call(self._client.receive(stage, role, step=step, patience_s=patience_s))

    def chunks(self, message: Incoming) -> Iterator[bytes]:
        """The bytes of a message as they come. Only when the iterator ends has it come whole."""
        return self._portal.iterate(message.chunks)

    def read(self, message: Incoming) -> bytes:
        """All bytes of a message that fits into memory."""
        return self._portal.call(message.read())

    def acknowledge(self, message: Incoming, *, patience_s: float | None = None) -> None:
        """Say that a message is worked in; see `SessionClient.acknowledge`."""
        place = (message.stage, message.sender, message.sequence)
        self._portal.call(self._client.acknowledge(*place, patience_s=patience_s))

    def disclose(self, stage: str, *disclosures: Disclosure) -> None:
        """See `SessionClient.disclose`."""
        self._portal.call(self._client.disclose(stage, *disclosures))

    def finish(self, stage: str, step: str) -> None:
        """See `SessionClient.finish`."""
        self._portal.call(self._client.finish(stage, step))

    def report(self) -> SessionReport:
        """See `SessionClient.report`."""
        return self._portal.call(self._client.report())

    def status(self) -> SessionView:
        """The session as the coordinator tells it."""
        return self._portal.call(self._client.status())

    def end(self, detail: str = "") -> SessionView:
        """End the session for all parties, and forget its keys here."""
        return self._portal.call(self._client.end(detail))


class Party:
    """An organisation's agent for synchronous code.

        with Party("clinic", judge=compare) as party:
            session = party.join("https://coterie.example.org", "coterie_party_…")
            session.send("messages", "registry", Path("table.csv"))

    folder, judge, ca, on_event: as of `PartyClient`.
    """

    def __init__(
        self,
        folder: str | Path = DEFAULT_FOLDER,
        *,
        judge: Judge = refuse,
        ca: str | Path | None = None,
        on_event: Listener = _ignore,
    ) -> None:
        self._portal = Portal()
        try:
            self._client = self._portal.call(_make_client(Path(folder), judge, ca, on_event))
        except BaseException:
            self._portal.close()
            raise

    @property
    def fingerprint(self) -> str:
        """Of this party's identity: what partners compare and pin."""
        return fingerprint(self._client.store.key.public)

    @property
    def pins(self) -> Pins:
        """The pinned partners."""
        return self._client.store.pins

    def memberships(self) -> list[PartyMembership]:
        """The roles that this party has taken."""
        return self._portal.call(_memberships(self._client))

    def join(self, url: str, token: str) -> Session:
        """See `PartyClient.join`."""
        return Session(self._portal, self._portal.call(self._client.join(url, token)))

    def session(self, identifier: str | None = None) -> Session:
        """See `PartyClient.session`."""
        return Session(self._portal, self._portal.call(_session(self._client, identifier)))

    def report(self, identifier: str | None = None) -> SessionReport:
        """See `PartyClient.report`."""
        return self._portal.call(self._client.report(identifier))

    def close(self) -> None:
        """Release the folder and the connections."""
        if self._portal.is_running:
            self._portal.call(self._client.close())
            self._portal.close()

    def __enter__(self) -> "Party":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _make_client(folder: Path, judge: Judge, ca: str | Path | None, on_event: Listener) -> PartyClient:
    return PartyClient(folder, judge=judge, ca=ca, on_event=on_event)


async def _memberships(client: PartyClient) -> list[PartyMembership]:
    return client.store.memberships()


async def _session(client: PartyClient, identifier: str | None) -> SessionClient:
    return client.session(identifier)
