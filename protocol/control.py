"""The control plane's messages (``/v1/…``).

What researchers and operators say and are told. Instants are RFC 3339 in UTC.
"""

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import Field, field_validator, model_validator

from coterie.protocol.device import PlanRef
from coterie.protocol.endorsements import Issuers
from coterie.protocol.participants import ParticipantView
from coterie.protocol.privacy import WirePrivacy
from coterie.protocol.rounds import Best, RoundPolicy, Target
from coterie.protocol.schema import WireSchema
from coterie.protocol.secure_aggregation import SecureAggregation
from coterie.protocol.wire import (
    BlobRef,
    DeviceId,
    DisplayName,
    ExperimentId,
    FiniteNumber,
    Identifier,
    NotNegative,
    Positive,
    Proportion,
    PublicKey,
    Request,
    Response,
    Secret,
    Sha256,
    Signed,
    Size,
    Slug,
    Title,
    TokenId,
    Whole,
)

__all__ = [
    "Best", "DeviceView", "Event",
    "ExperimentCreate", "ExperimentView", "ModelView", "Page", "PolicyChange", "PopulationCreate",
    "PopulationPolicy", "PopulationView", "RoundPolicy", "RoundView", "ServerRule", "Target",
    "TokenCreate", "TokenCreated", "TokenView",
]  # fmt: skip

ExperimentState = Literal["running", "finished", "stopped"]
RoundState = Literal["collecting", "aggregating", "evaluating", "committing", "committed", "abandoned"]
TokenRole = Literal["admin", "operator", "researcher", "auditor"]
"""What a person or a script may do on the control plane."""
TokenKind = Literal[TokenRole, "enrol", "edge"]
"""The kinds of tokens that are made by request."""
AnyTokenKind = Literal[TokenKind, "party"]
"""With those that come with a session: one for each role, with which its party joins."""
ClientStateUse = Literal["kept", "none"]
ReducerText = Annotated[str, Field(min_length=1, max_length=200)]
"""A reducer by its text, as `coterie.aggregation.reducers.reducer` reads it."""
Means = Annotated[dict[Identifier, FiniteNumber], Field(max_length=256)]


class PopulationCreate(Request):
    """A population: its name, the schema of its data, and the researchers' keys whose plans its devices may run.

    client_state: ``none`` where a device is not expected to come back, so nothing may be kept on it from round to
    round; experiments whose algorithm or codecs need that are refused.
    """

    name: Slug
    data_schema: WireSchema
    signers: Annotated[tuple[PublicKey, ...], Field(max_length=64)] = ()
    client_state: ClientStateUse = "kept"


Unit = Literal["user", "example"]
EpsilonLimit = Annotated[FiniteNumber, Field(gt=0, le=1e6)]
DeltaLimit = Annotated[FiniteNumber, Field(gt=0, lt=1)]
Cohort = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
AlgorithmNames = Annotated[tuple[Identifier, ...], Field(min_length=1, max_length=64)]


class PopulationPolicy(Response):
    """The floor that an operator sets under a population's experiments; nothing that a researcher asks for goes below.

    require_secure_aggregation: no update of one device is seen by the coordinator.
    min_cohort: the fewest devices in any sum.
    max_epsilon_per_experiment, max_epsilon_per_year: what a unit may lose by one experiment, and by all of any 365
        days, at delta; where one is set, every experiment needs differential privacy.
    unit: whose loss that is.
    algorithms: those that are allowed; None for any.
    signers_only: whether only an operator may add to the signers.
    endorsers: issuers of whom a device needs an endorsement to enrol; None for devices without any.
    """

    require_secure_aggregation: bool = False
    min_cohort: Cohort | None = None
    max_epsilon_per_experiment: EpsilonLimit | None = None
    max_epsilon_per_year: EpsilonLimit | None = None
    delta: DeltaLimit | None = None
    unit: Unit = "user"
    algorithms: AlgorithmNames | None = None
    signers_only: bool = False
    endorsers: Issuers | None = None

    @model_validator(mode="after")
    def _has_its_delta(self) -> Self:
        if (self.max_epsilon_per_experiment or self.max_epsilon_per_year) and self.delta is None:
            raise ValueError("max_epsilon needs a delta; give delta, far below 1 / devices")
        return self


class PolicyChange(Request):
    """Changes to a population's policy: a field that is absent stays, None takes its line away.

    signers: from now on the plans of these keys are accepted and no others. None: whoever may submit may add theirs.
    """

    require_secure_aggregation: bool | None = None
    min_cohort: Cohort | None = None
    max_epsilon_per_experiment: EpsilonLimit | None = None
    max_epsilon_per_year: EpsilonLimit | None = None
    delta: DeltaLimit | None = None
    unit: Unit | None = None
    algorithms: AlgorithmNames | None = None
    signers: Annotated[tuple[PublicKey, ...], Field(max_length=64)] | None = None
    endorsers: Issuers | None = None


class PopulationView(Response):
    """A population as it stands.

    devices: enrolled and not revoked.
    """

    name: Slug
    data_schema: WireSchema
    schema_digest: Sha256
    signers: tuple[PublicKey, ...]
    client_state: ClientStateUse = "kept"
    coordinator_key: PublicKey
    policy: PopulationPolicy = PopulationPolicy()
    devices: Whole = 0
    created_at: datetime


class TokenCreate(Request):
    """A token to make.

    Tokens of a role (admin, operator, researcher, auditor) are for all populations, or for the one that they name; an
    admin's are for all. Tokens to enrol with name their population.

    uses: how many may enrol with it (None: any number).
    max_clients: of a token of the kind ``edge``: for how many clients an edge aggregator may speak in an update.
    min_clients: of such a token: how many clients an update must hold at least (2 when not given, so that no update of
        a single client can be told from its accumulator).
    """

    kind: TokenKind
    name: DisplayName = "token"
    population: Slug | None = None
    uses: Positive | None = None
    min_clients: Positive | None = None
    max_clients: Positive | None = None
    expires_s: Annotated[int, Field(strict=True, ge=1, le=10 * 365 * 24 * 3600)] | None = None


class TokenView(Response):
    """A token without its secret."""

    id: TokenId
    kind: AnyTokenKind
    name: Title
    population: Slug | None = None
    uses_left: Whole | None = None
    min_clients: Positive | None = None
    max_clients: Positive | None = None
    created_at: datetime
    expires_at: datetime | None = None
    revoked: bool = False


class TokenCreated(TokenView):
    """The only answer that ever carries the secret. Its repr does not."""

    token: Secret = Field(repr=False)


class ServerRule(Request):
    """A server part by name with its parameters, e.g. ``sgd`` with ``{"lr": 1.0, "momentum": 0.9}``."""

    name: Identifier
    parameters: Annotated[dict[Identifier, FiniteNumber], Field(max_length=32)] = {}


class ExperimentCreate(Request):
    """An experiment over a population.

    The plan's manifest and graphs, the initial weights, frozen parts and evaluation data are blobs sent before.

    secure: how only sums over clients are seen; None for updates in the open.
    privacy: None for none.
    """

    name: DisplayName
    population: Slug
    plan: PlanRef
    initial: BlobRef
    rounds: RoundPolicy
    server: ServerRule
    reducer: ReducerText = "mean"
    codecs: Annotated[tuple[Identifier, ...], Field(min_length=1, max_length=32)] = ("float32",)
    hyper: Annotated[dict[Identifier, FiniteNumber], Field(max_length=64)] = {}
    frozen: BlobRef | None = None
    evaluation: BlobRef | None = None
    evaluation_metrics: Annotated[tuple[Identifier, ...], Field(max_length=8)] = ()
    seed: Whole = 0
    secure: SecureAggregation | None = None
    privacy: WirePrivacy | None = None

    @field_validator("plan", "initial", "frozen", "evaluation")
    @classmethod
    def _no_more(cls, value: Signed | None) -> Signed | None:
        if value is not None and value.model_extra:
            raise ValueError(f"unknown field {min(value.model_extra)[:64]!r}")
        return value


class ExperimentView(Response):
    """An experiment as it stands.

    round: the last one begun.
    best: the version that `RoundPolicy.best` picks so far.
    """

    id: ExperimentId
    name: Title
    population: Slug
    state: ExperimentState
    reason: str | None = None
    round: Whole = 0
    plan: PlanRef
    rounds: RoundPolicy
    server: ServerRule
    initial: Sha256
    latest: Sha256 | None = None
    best: Sha256 | None = None
    created_at: datetime
    finished_at: datetime | None = None


class RoundView(Response):
    """One round.

    metrics: means over examples.
    evaluation: where they were measured.
    training: the means that clients saw while training.
    fairness: how each metric differs between the clients that evaluated, by the fields of
        `coterie.protocol.spread.Spread`.
    model: the version it committed.
    clipped: the share of updates that were shortened to the public norm.
    diverged: devices that trained to NaN or infinity.
    epsilon, delta: spent up to this round.
    participants: the devices whose updates count, where that may be told.
    """

    experiment: ExperimentId
    round: Positive
    state: RoundState
    cause: Identifier | None = None
    leased: Whole = 0
    accepted: Whole = 0
    failed: Whole = 0
    evaluated: Whole = 0
    metrics: Means = {}
    training: Means = {}
    fairness: dict[str, Means] = {}
    evaluation: Literal["central", "federated"] | None = None
    bytes_up: Whole = 0
    bytes_down: Whole = 0
    seconds: NotNegative | None = None
    model: Sha256 | None = None
    clipped: Proportion | None = None
    diverged: Whole = 0
    epsilon: NotNegative | None = None
    delta: Proportion | None = None
    participants: tuple[ParticipantView, ...] = ()


class ModelView(Response):
    """A model version with its lineage: the round that made it and the version it came from."""

    sha256: Sha256
    experiment: ExperimentId
    round: Whole
    parent: Sha256 | None = None
    metrics: Means = {}
    size: Size
    best: bool = False
    created_at: datetime | None = None


class DeviceView(Response):
    """A device as the coordinator knows it.

    max_clients: for how many clients an edge aggregator may speak.
    threads: of its processor.
    memory_bytes: bytes of memory.
    yardstick_us: microseconds that a small inference took. It said the three when it enrolled
        (`coterie.protocol.device.Capabilities`).
    failed: tasks that ended without an accepted update.
    failure: why the last of them did.
    """

    id: DeviceId
    population: Slug
    name: Title | None = None
    public_key: PublicKey
    kind: Literal["device", "edge"] = "device"
    max_clients: Positive | None = None
    state: Literal["active", "revoked", "withdrawn"] = "active"
    enrolled_at: datetime
    last_seen_at: datetime | None = None
    accepted: Whole = 0
    failed: Whole = 0
    failure: Identifier | None = None
    threads: Positive | None = None
    memory_bytes: Size | None = None
    yardstick_us: Positive | None = None


class Event(Response):
    """One entry of the event stream.

    id: rises by one step per event.
    type: e.g. ``round``.
    data: that type's own fields.
    """

    id: Whole
    type: Identifier
    experiment: ExperimentId | None = None
    data: dict[str, Any] = {}
    at: datetime | None = None


Item = TypeVar("Item")
LONGEST_CURSOR = 400


class Page(Response, Generic[Item]):
    """One page of a list.

    next_cursor: opaque; None on the last page.
    """

    items: tuple[Item, ...]
    next_cursor: Annotated[str, Field(max_length=LONGEST_CURSOR)] | None = None
