"""Joining the coordinator above: an edge aggregator enrols like a device, under a token of the kind edge."""

import os
import socket
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncSession

from coterie.client_sdk.device.signed import SignedLink
from coterie.client_sdk.http import Link
from coterie.errors import ConfigurationError, RemoteError
from coterie.protocol.canonical import canonical_json
from coterie.protocol.conversion import to_json
from coterie.protocol.device import PROTOCOL_VERSIONS, Capabilities, EnrolRequest, EnrolResponse, PopulationInfo
from coterie.protocol.features import FEATURES
from coterie.protocol.signing import SigningKey
from coterie.protocol.wire import read_message
from coterie.server.clock import now_ms
from coterie.server.store import events, populations, upstream
from coterie.server.store.engine import Database
from coterie.server.store.tables import MembershipRow, SecretRow
from coterie.version import __version__

KEY = "edge_key"
MOST_OF_HOST = 100
"""So many characters of a host's name are part of an edge aggregator's."""
CAPABILITIES = Capabilities(sdk=f"coterie-edge/{__version__}", trainers=("plan", "external"), features=tuple(FEATURES))
"""Its devices have them or not; each gets what it can do."""
"""What an edge aggregator says of itself; what its devices can do is for its own rounds to find out."""


@dataclass(frozen=True, kw_only=True)
class EdgeMembership:
    """An edge aggregator that has joined.

    signed: its requests to the coordinator above, under its own key.
    """

    device: str
    population: str
    coordinator_key: str
    signed: SignedLink


async def join(database: Database, link: Link, token: str | None, name: str | None = None) -> EdgeMembership:
    """Join, or take up the membership that the rows hold.

    name: what the coordinator above calls it when it enrols; None for one with the host's name.
    A token makes the edge accept the keys that the population above accepts by now; one that has run out changes
    nothing. The coordinator's key is pinned for good.
    Raises ConfigurationError (``token_missing``, ``other_membership``, ``schema_mismatch``), RemoteError.
    """
    async with database.read() as session:
        row = await upstream.membership(session)
    info = await _population(link, token, known=row is not None) if token else None
    if row is None:
        if token is None or info is None:
            raise token_missing()
        row, nonce = await _enrol(database, link, token, info, name or host_name())
    else:
        nonce = None
        if info is not None and (info.population, info.coordinator_key) != (row.population, row.coordinator_key):
            raise ConfigurationError(
                f"This folder belongs to an edge aggregator of population {row.population!r} at {row.url}; the token "
                f"is for {info.population!r} at {link.url}.",
                hint="Give this membership a folder of its own.",
                code="other_membership",
            )
        if info is not None:
            async with database.write("joined") as session:
                await _accept_signers(session, info)
    key = await _key(database)
    signed = SignedLink(link, key=key, device_id=row.device, nonce=nonce)
    return EdgeMembership(
        device=row.device, population=row.population, coordinator_key=row.coordinator_key, signed=signed
    )


def token_missing() -> ConfigurationError:
    """The refusal to join without a token."""
    return ConfigurationError(
        "This coordinator is not joined to an upstream coordinator, so --upstream needs a token of the kind edge.",
        hint="Ask the operator above for one, and give it by --upstream-token or COTERIE_UPSTREAM_TOKEN.",
        code="token_missing",
    )


async def _population(link: Link, token: str, *, known: bool) -> PopulationInfo | None:
    try:
        answer = await link.json("GET", "/v1/device/population", headers={"Authorization": f"Bearer {token}"})
    except RemoteError as error:
        if known and error.details.get("http_status") == 401:
            return None
        raise
    return read_message(PopulationInfo, answer)


def host_name() -> str:
    """A name that tells edge aggregators on different hosts apart."""
    host = "".join(letter for letter in socket.gethostname() if letter.isprintable())
    return f"edge aggregator on {host[:MOST_OF_HOST]}" if host else "edge aggregator"


async def _enrol(
    database: Database, link: Link, token: str, info: PopulationInfo, name: str
) -> tuple[MembershipRow, str]:
    if not set(info.protocol) & set(PROTOCOL_VERSIONS):
        raise ConfigurationError(
            f"The coordinator above speaks device protocol {list(info.protocol)}, this one {list(PROTOCOL_VERSIONS)}.",
            hint="Install versions of coterie that are closer to each other.",
            code="protocol_version",
        )
    key = await _key(database)
    request = EnrolRequest(
        public_key=key.public, schema_digest=info.schema_digest, name=name, capabilities=CAPABILITIES
    )
    answer = await link.json(
        "POST", "/v1/device/enrol", request.model_dump(mode="json"), headers={"Authorization": f"Bearer {token}"}
    )
    enrolled = read_message(EnrolResponse, answer)
    row = MembershipRow(
        url=link.url,
        device=enrolled.device_id,
        population=info.population,
        coordinator_key=info.coordinator_key,
        created_at=now_ms(),
    )
    async with database.write("joined") as session:
        await _mirror_population(session, info)
        session.add(row)
        events.append(session, "edge.joined", {"population": info.population, "upstream": link.url})
    return row, enrolled.nonce


async def _mirror_population(session: AsyncSession, info: PopulationInfo) -> None:
    """Have the population of above here too, so that devices can enrol."""
    row = await populations.find(session, info.population)
    if row is None:
        schema = canonical_json(to_json(info.data_schema)).decode()
        await populations.add(session, info.population, schema, info.schema_digest)
    elif row.schema_digest != info.schema_digest:
        raise ConfigurationError(
            f"This coordinator has a population {info.population!r} of its own, with another schema.",
            hint="Start the edge aggregator in a folder of its own.",
            code="schema_mismatch",
        )
    await _accept_signers(session, info)


async def _accept_signers(session: AsyncSession, info: PopulationInfo) -> None:
    for public in info.signers:
        await populations.allow(session, info.population, public)


async def _key(database: Database) -> SigningKey:
    """The key that this edge aggregator signs with upwards: made once, and another than the one it signs tasks with."""
    async with database.read() as session:
        row = await session.get(SecretRow, KEY)
    if row is not None:
        return SigningKey.from_seed(row.value)
    seed = os.urandom(32)
    async with database.write("edge_key") as session:
        session.add(SecretRow(name=KEY, value=seed))
    return SigningKey.from_seed(seed)
