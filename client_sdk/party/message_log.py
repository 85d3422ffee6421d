"""Messages of one stage of a session, each kept on disk before it is acknowledged, so that a program that was killed
reads again what it had read, and sends nothing twice.
"""

from collections.abc import Mapping
from typing import Final

from coterie.client_sdk.party.faults import LearnerFaults
from coterie.client_sdk.party.learner_store import LearnerStore
from coterie.client_sdk.party.party import Session
from coterie.errors import InputError, RemoteError
from coterie.protocol.disclosures import MESSAGES_STEP, Disclosure

EXPIRED: Final = "message_expired"


class MessageLog:
    """The messages with all partners, in order.

    session, stage: where they pass.
    store: where they are kept.
    sent, received: how many messages to and from each role are worked in; the next are the next ones.
    step: to which the next messages belong in reports.
    """

    def __init__(self, session: Session, stage: str, store: LearnerStore) -> None:
        self._session, self._stage, self._store = session, stage, store
        self.sent: dict[str, int] = {}
        self.received: dict[str, int] = {}
        self.step = MESSAGES_STEP
        self.faults = LearnerFaults.from_environment()

    def rewind(self, sent: Mapping[str, int], received: Mapping[str, int]) -> None:
        """Go back to where these many messages are worked in."""
        self.sent, self.received = dict(sent), dict(received)

    def begin(self, step: str, *disclosures: Disclosure) -> None:
        """Count the next messages under a step, and keep what it tells, before it tells it. May be repeated, also when
        more is known; see `SessionClient.disclose`.
        """
        self._session.disclose(self._stage, *disclosures)
        self.step = step

    def finish(self) -> None:
        """Keep that the step told all that it tells."""
        self._session.finish(self._stage, self.step)
        self.step = MESSAGES_STEP

    def send(self, role: str, body: bytes, *, patience_s: float | None = None) -> None:
        """Send the next message to a role; one that was sent before is not sent twice.

        patience_s: how long to wait until it can be sent; for as long as it takes when not given.
        Raises Conflict (``message_differs``) where it was sent with another body, and as `Session.send` does.
        """
        number = self.sent.get(role, 0)
        self._session.send(self._stage, role, body, sequence=number, step=self.step, patience_s=patience_s)
        self.sent[role] = number + 1

    def receive(self, role: str, *, limit: int, patience_s: float | None = None) -> bytes:
        """The next message from a role.

        limit: its most bytes.
        patience_s: how long to wait for it; for as long as it takes when not given.
        Raises InputError (``message_too_large``), and as `Session.receive` does.
        """
        number = self.received.get(role, 0)
        data = self._store.message(self._session.membership.session, self._stage, role, number)
        if data is None:
            try:
                data = self._fetch(role, number, limit, patience_s)
            except RemoteError as error:
                if error.reason == EXPIRED:
                    raise _expired(error) from error
                raise
        self.received[role] = number + 1
        return data

    def _fetch(self, role: str, number: int, limit: int, patience_s: float | None) -> bytes:
        while True:
            message = self._session.receive(self._stage, role, step=self.step, patience_s=patience_s)
            if message.sequence >= number:
                break
            # It was kept; the process ended before it was acknowledged.
            self._session.acknowledge(message, patience_s=patience_s)
        if message.sequence > number:
            raise RemoteError(
                f"Message {number} from {role} in stage {self._stage} was acknowledged and is not in "
                f"{self._store.folder}.",
                hint="Use the folder in which this session was begun, or make another session.",
                code="message_order",
            )
        data = bytearray()
        for chunk in self._session.chunks(message):
            data += chunk
            if len(data) > limit:
                raise InputError(
                    f"Message {number} from {role} in stage {self._stage} has more than the {limit} bytes expected.",
                    hint="Ask the partner which program it runs, end the session and make another.",
                    code="message_too_large",
                )
        body = bytes(data)
        self._store.add_message(self._session.membership.session, self._stage, role, number, body)
        self.faults.reach("message_kept")
        self._session.acknowledge(message, patience_s=patience_s)
        return body


def _expired(error: RemoteError) -> RemoteError:
    """Of a plan no message can be sent again as a new one, as the coordinator proposes."""
    return RemoteError(
        error.message,
        hint="End the session and go on in another, with the same folders; where a training was broken off, train from "
        "the beginning in new ones, in every role. `coterie sessions make --message-ttl` lets messages wait longer.",
        code=EXPIRED,
    )
