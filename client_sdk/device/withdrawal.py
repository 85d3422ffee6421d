"""Leaving a population for good: first here, so that nothing more is done, then by telling the coordinator."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from coterie.client_sdk.device.history import StoredMembership
from coterie.client_sdk.device.record import check_store
from coterie.client_sdk.device.signed import SignedLink
from coterie.client_sdk.device.spending import FILE as LEDGER
from coterie.client_sdk.device.spending import PrivacyLedger
from coterie.client_sdk.device.store import DeviceStore
from coterie.client_sdk.http import Link
from coterie.client_sdk.lean_httpx import httpx
from coterie.errors import ConfigurationError, RemoteError
from coterie.protocol.signing import SigningKey

TARGET: Final = "/v1/device/withdraw"
# What a coordinator says that has told this device to stay away, or never knew it: there is nothing to leave.
_OUT: Final = frozenset(("device_revoked", "device_unknown"))
KEPT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "device.db": "what this client took part in; `coterie client history` reads it",
        "device.key": "the key by which the coordinator knew this client",
        "ledger.db": "what it has released; a client that joins again counts its epsilon from here (`ledger`)",
        "endorsement.json": "an issuer's word for the key",
    }
)
"""The files of a folder that stay after a withdrawal, and what each is."""


@dataclass(frozen=True)
class EndedMembership:
    """A membership that is over on this machine.

    remaining_files: the files that stay.
    """

    membership: StoredMembership
    key: SigningKey
    remaining_files: tuple[Path, ...]


def stop_here(folder: Path, ledger: Path | None = None) -> EndedMembership:
    """Make a folder's client take part in nothing any more, whether or not the coordinator can be told. Unsent work,
    client state and downloads are removed, and what unsent work would have released is struck from the record. Harmless
    twice.

    ledger: of the client's policy; the folder's own when absent.
    Raises ConfigurationError: for a folder without a client (``store_unknown``), for one in which a client runs
    (``store_in_use``), before it has joined (``not_joined``).
    """
    check_store(folder)
    store = DeviceStore(folder)
    try:
        membership = store.membership()
        if membership is None:
            raise ConfigurationError(
                f"The client of {folder} has joined no population, so there is none to leave.",
                hint="There is nothing to do.",
                code="not_joined",
            )
        record = PrivacyLedger(ledger or folder / LEDGER)
        for release in store.withdraw():
            record.refund(release)
        kept = tuple(folder / name for name in KEPT if (folder / name).exists())
        return EndedMembership(membership, store.key, kept)
    finally:
        store.close()


async def tell(
    ended: EndedMembership, *, ca: str | Path | None = None, transport: httpx.AsyncBaseTransport | None = None
) -> None:
    """Tell the coordinator, which lets go of the task that the device holds and asks it for nothing any more. Raises
    RemoteError.
    """
    link = Link(ended.membership.url, ca=ca, transport=transport)
    try:
        await SignedLink(link, key=ended.key, device_id=ended.membership.device_id).request("POST", TARGET)
    except RemoteError as error:
        if error.reason not in _OUT:
            raise
    finally:
        await link.close()
