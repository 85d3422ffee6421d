"""Messages of one stage of a session, each kept on disk before it is acknowledged, so that a program that was killed
reads again what it had read, and sends nothing twice.
"""

from collections.abc import Mapping
from pathlib import Path

from coterie.client_sdk.party.faults import LearnerFaults
from coterie.client_sdk.party.party import Session
from coterie.errors import InputError, RemoteError
from coterie.protocol.files import write_durably
from coterie.protocol.private_files import make_private_folder


class MessageLog:
    """The messages with all partners, in order.

    session: the session. stage: its stage. folder: where messages are kept until `forget`; of this log alone.
    sent, received: how many messages to and from each role are worked in; the next are the next ones.
    """

    def __init__(
        self,
        session: Session,
        stage: str,
        folder: Path,
        *,
        sent: Mapping[str, int] | None = None,
        received: Mapping[str, int] | None = None,
    ) -> None:
        make_private_folder(folder)
        self._session, self._stage, self._folder = session, stage, folder
        self.sent, self.received = dict(sent or {}), dict(received or {})
        self.faults = LearnerFaults.from_environment()

    def send(self, role: str, body: bytes) -> None:
        """Send the next message to a role; one that was sent before is not sent twice.

        Raises Conflict (``message_differs``) where it was sent with another body, and as `Session.send` does.
        """
        number = self.sent.get(role, 0)
        self._session.send(self._stage, role, body, sequence=number)
        self.sent[role] = number + 1

    def receive(self, role: str, *, limit: int, patience_s: float | None = None) -> bytes:
        """The next message from a role.

        limit: its most bytes.
        patience_s: how long to wait for it; for as long as it takes when not given.
        Raises InputError (``message_too_large``), and as `Session.receive` does.
        """
        number = self.received.get(role, 0)
        path = self._path(role, number)
        data = path.read_bytes() if path.exists() else self._fetch(role, number, limit, patience_s)
        self.received[role] = number + 1
        return data

    def forget(self) -> None:
        """Delete the messages that are worked in, once what was made of them is kept."""
        for path in self._folder.iterdir():
            role, _, number = path.name.rpartition(".")
            if number.isdecimal() and int(number) < self.received.get(role, 0):
                path.unlink()

    def _fetch(self, role: str, number: int, limit: int, patience_s: float | None) -> bytes:
        while True:
            message = self._session.receive(self._stage, role, patience_s=patience_s)
            if message.sequence >= number:
                break
            # It was kept; the process ended before it was acknowledged.
            self._session.acknowledge(message)
        if message.sequence > number:
            raise RemoteError(
                f"Message {number} from {role} in stage {self._stage} was acknowledged and is not in {self._folder}.",
                hint="Use the folder in which this session was begun, or make another session.",
                code="message_order",
            )
        data = bytearray()
        for chunk in self._session.chunks(message):
            data += chunk
            if len(data) > limit:
                raise InputError(
                    f"Message {number} from {role} in stage {self._stage} has more than the {limit} bytes expected.",
                    hint="Ask the partner which program it runs.",
                    code="message_too_large",
                )
        write_durably(self._path(role, number), bytes(data), mode=0o600)
        self.faults.reach("message_kept")
        self._session.acknowledge(message)
        return bytes(data)

    def _path(self, role: str, number: int) -> Path:
        return self._folder / f"{role}.{number}"
