"""Joining a population: learn its schema, check the data against it, enrol once, pin the keys."""

from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import numpy as np

from coterie.client_sdk.device.endorsement import stored_endorsement
from coterie.client_sdk.device.faults import DeviceFaults
from coterie.client_sdk.device.history import StoredMembership
from coterie.client_sdk.device.policy import DevicePolicy
from coterie.client_sdk.device.store import DeviceStore
from coterie.client_sdk.http import Link
from coterie.client_sdk.rows.loading import DataSource, load_fitting_rows, load_rows
from coterie.compute.data.supply import AnyRows, column_of, row_count
from coterie.compute.runtime.yardstick import yardstick_us
from coterie.errors import ConfigurationError, RemoteError
from coterie.protocol.canonical import canonical_json, parse_json
from coterie.protocol.codecs import FAMILIES
from coterie.protocol.codecs.table import EXTRA_ONLY
from coterie.protocol.conversion import to_json
from coterie.protocol.device import (
    LOCAL_NOISE,
    PROTOCOL_VERSIONS,
    SECURE_AGGREGATION,
    Capabilities,
    DataReport,
    EnrolRequest,
    EnrolResponse,
    PopulationInfo,
)
from coterie.protocol.endorsements import Endorsement
from coterie.protocol.features import FEATURES
from coterie.protocol.schema import DataSchema
from coterie.protocol.wire import read_message
from coterie.version import __version__

EDGE_TOKEN: Final = "coterie_edge_"
"""What the tokens of edge aggregators begin with."""


@dataclass(frozen=True, kw_only=True)
class Membership:
    """A device that has joined.

    rows: its checked data, which stays here; of a data set only what a batch needs is in memory.
    source: where it comes from.
    endorsement: of its identity, if it has one.
    nonce: of the first signed request after enrolling.
    """

    device_id: str
    population: str
    url: str
    coordinator_key: str
    signers: frozenset[str]
    schema: DataSchema
    rows: AnyRows
    source: DataSource
    nonce: str | None = None
    endorsement: Endorsement | None = None
    finer: dict[str, AnyRows] = field(default_factory=dict[str, AnyRows], repr=False, compare=False)

    @property
    def examples(self) -> int:
        """Number of rows."""
        return row_count(self.rows)

    def read(self, schema: DataSchema) -> AnyRows:
        """The rows as a plan's schema reads them, which is the population's or a finer one; of that there may be none.
        The last finer reading is kept in memory, so that the rounds of an experiment read the source once. Raises
        DataError.
        """
        if schema.digest == self.schema.digest:
            return self.rows
        if schema.digest not in self.finer:
            read = load_fitting_rows(self.source, schema)
            self.finer.clear()
            self.finer[schema.digest] = read
        return self.finer[schema.digest]


async def join(
    link: Link,
    store: DeviceStore,
    *,
    data: DataSource,
    token: str | None,
    name: str | None,
    capabilities: Capabilities,
    faults: DeviceFaults,
    endorsement: Endorsement | None = None,
) -> Membership:
    """Join, or take up the membership that the store holds.

    The first time a token is needed, and the data is checked before the coordinator hears of this device. The
    coordinator's key is pinned for good, and so are the population's signers, as soon as it names any: later the
    coordinator's word adds nobody. A later token tells where the coordinator is; one that has run out changes nothing.
    Raises ConfigurationError, DataError naming file, column and row, RemoteError.
    """
    endorsement = stored_endorsement(store, endorsement)
    stored = store.membership()
    if stored is None:
        made = await _enrol(link, store, data, _required_token(token, store), name, capabilities, faults, endorsement)
        return replace(made, endorsement=endorsement)
    if stored.withdrawn:
        raise ConfigurationError(
            f"The client of {store.folder} has left population {stored.population!r}, which cannot be undone.",
            hint="To take part again, join as a new client: with another --name or --store, and a token.",
            code="withdrawn",
        )
    info = await _population(link, token) if token else None
    if info is not None:
        if (info.coordinator_key, info.population) != (stored.coordinator_key, stored.population):
            raise ConfigurationError(
                f"The folder {store.folder} belongs to a device of population {stored.population!r} at {stored.url}; "
                f"the token is for {info.population!r} at {link.url}.",
                hint="Give this membership a folder of its own.",
                code="other_membership",
            )
        stored = replace(stored, signers=stored.signers or info.signers, url=link.url)
        store.join(stored)
    schema = DataSchema.from_json(parse_json(stored.schema.encode()))
    return replace(_membership(stored, schema, load_rows(data, schema), data, None), endorsement=endorsement)


async def first_signers(link: Link, store: DeviceStore, membership: Membership, token: str | None) -> Membership:
    """The membership with the population's signers, where it named none when this device joined and does now. Raises
    RemoteError.
    """
    stored = store.membership()
    if membership.signers or stored is None or token is None:
        return membership
    info = await _population(link, token)
    if info is None or info.coordinator_key != stored.coordinator_key or info.population != stored.population:
        return membership
    store.join(replace(stored, signers=info.signers))
    return replace(membership, signers=frozenset(info.signers))


async def _enrol(
    link: Link,
    store: DeviceStore,
    data: DataSource,
    token: str,
    name: str | None,
    capabilities: Capabilities,
    faults: DeviceFaults,
    endorsement: Endorsement | None,
) -> Membership:
    info = await _population(link, token, expected=True)
    if info is None:
        raise RemoteError("The coordinator described no population.")
    common = sorted(set(info.protocol) & set(PROTOCOL_VERSIONS))
    if not common:
        raise RemoteError(
            f"The coordinator supports device protocol {list(info.protocol)}, this SDK {list(PROTOCOL_VERSIONS)}.",
            hint="Install a version of coterie that is closer to the coordinator's.",
            code="protocol_version",
        )
    rows = load_rows(data, info.data_schema)
    request = EnrolRequest(
        public_key=store.key.public,
        schema_digest=info.schema_digest,
        name=name,
        capabilities=capabilities,
        endorsement=endorsement,
    )
    answer = await link.json("POST", "/v1/device/enrol", request.model_dump(mode="json"), headers=_bearer(token))
    enrolled = read_message(EnrolResponse, answer)
    faults.reach("enrolled")
    stored = StoredMembership(
        url=link.url,
        population=info.population,
        device_id=enrolled.device_id,
        coordinator_key=info.coordinator_key,
        signers=info.signers,
        schema=canonical_json(to_json(info.data_schema)).decode(),
    )
    store.join(stored)
    faults.reach("joined")
    return _membership(stored, info.data_schema, rows, data, enrolled.nonce)


async def _population(link: Link, token: str | None, *, expected: bool = False) -> PopulationInfo | None:
    try:
        return read_message(
            PopulationInfo, await link.json("GET", "/v1/device/population", headers=_bearer(token or ""))
        )
    except RemoteError as error:
        if not expected and error.details.get("http_status") == 401:
            return None
        raise


def _membership(
    stored: StoredMembership,
    schema: DataSchema,
    rows: AnyRows,
    source: DataSource,
    nonce: str | None,
) -> Membership:
    return Membership(
        device_id=stored.device_id,
        population=stored.population,
        url=stored.url,
        coordinator_key=stored.coordinator_key,
        signers=frozenset(stored.signers),
        schema=schema,
        rows=rows,
        source=source,
        nonce=nonce,
    )


def _required_token(token: str | None, store: DeviceStore) -> str:
    if token and token.startswith(EDGE_TOKEN):
        raise ConfigurationError(
            "This token is for an edge aggregator, which speaks for many clients; a device speaks for itself.",
            hint="Ask the coordinator's operator for an enrolment token, or start `coterie server --upstream` with it.",
            code="token_kind",
        )
    if token:
        return token
    raise ConfigurationError(
        f"The folder {store.folder} holds no membership yet, so this device needs an enrolment token.",
        hint="Ask the coordinator's operator for one, and give it as the token.",
        code="token_missing",
    )


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def data_report(membership: Membership) -> DataReport:
    """What check-ins say of the data when the device's policy lets them: rows, and up to 1000 classes of labels."""
    label = membership.schema.label
    found = np.unique(column_of(membership.rows, label.name)) if label.is_class else np.empty(0, np.int32)
    return DataReport(examples=membership.examples, labels=tuple(found[:1000].tolist()))


def capabilities(policy: DevicePolicy, *, external: bool) -> Capabilities:
    """What this device tells the coordinator that it can do."""
    return Capabilities(
        sdk=f"coterie-python/{__version__}",
        runtime=f"onnxruntime/{_installed('onnxruntime')}",
        codecs=tuple(name for name in FAMILIES if name not in EXTRA_ONLY),
        trainers=("external",) if external else ("plan",),
        secure=(SECURE_AGGREGATION, LOCAL_NOISE),
        features=tuple(FEATURES),
        threads=policy.threads,
        memory_bytes=policy.memory_bytes,
        yardstick_us=_yardstick_us(),
    )


@cache
def _yardstick_us() -> int:
    """The yardstick's microseconds here, measured once in a process. Two digits: enough to choose a model by, and too
    few to know a device again by.
    """
    return max(1, int(float(f"{yardstick_us():.2g}")))


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
