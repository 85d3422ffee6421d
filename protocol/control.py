"""The control plane's messages (``/v1/…``).

What researchers and operators say and are told. Instants are RFC 3339 in UTC.
"""

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import Field, field_validator

from coterie.protocol.device import PlanRef
from coterie.protocol.rounds import Best, RoundPolicy, Target
from coterie.protocol.schema import WireSchema
from coterie.protocol.wire import (
    BlobRef,
    DeviceId,
    ExperimentId,
    Label,
    Number,
    Positive,
    PublicKey,
    Request,
    Response,
    Sha256,
    Signed,
    Size,
    Slug,
    Token,
    TokenId,
    Whole,
)

__all__ = [
    "AuditEntry",
    "Best",
    "DeviceView",
    "Event",
    "ExperimentCreate",
    "ExperimentView",
    "ModelView",
    "Page",
    "PopulationCreate",
    "PopulationView",
    "RoundPolicy",
    "RoundView",
    "ServerRule",
    "SignerAdd",
    "Target",
    "TokenCreate",
    "TokenCreated",
    "TokenView",
]

ExperimentState = Literal["running", "stopping", "finished", "stopped", "failed"]
RoundState = Literal["collecting", "aggregating", "evaluating", "committing", "committed", "abandoned"]
TokenKind = Literal["admin", "researcher", "enrol", "edge"]
ClientState = Literal["kept", "none"]
ReducerText = Annotated[str, Field(min_length=1, max_length=200)]
"""A reducer by its text, as `coterie.aggregation.reducers.reducer` reads it."""
Means = Annotated[dict[Token, Number], Field(max_length=256)]


class PopulationCreate(Request):
    """A population: its name, the schema of its data, and the researchers' keys whose plans its devices may run.

    client_state: ``none`` where a device is not expected to come back, so nothing may be kept on it from round to
    round; experiments whose algorithm or codecs need that are refused.
    """

    name: Slug
    data_schema: WireSchema
    signers: Annotated[tuple[PublicKey, ...], Field(max_length=64)] = ()
    client_state: ClientState = "kept"


class SignerAdd(Request):
    """Allows the plans of one more researcher's key; name is for people."""

    name: Label | None = None


class PopulationView(Response):
    """A population as it stands. devices: enrolled and not revoked."""

    name: Slug
    data_schema: WireSchema
    schema_digest: Sha256
    signers: tuple[PublicKey, ...]
    client_state: ClientState = "kept"
    coordinator_key: PublicKey
    devices: Whole = 0
    created_at: datetime


class TokenCreate(Request):
    """A token to make.

    Tokens to enrol with name their population; uses: how many may enrol with it (None: any number). ``edge`` enrols
    edge aggregators: max_clients: for how many clients one may speak in an update, at most; min_clients: and at least
    (2 when not given, so that no update of a single client can be told from its accumulator).
    """

    kind: TokenKind
    name: Label = "token"
    population: Slug | None = None
    uses: Positive | None = None
    min_clients: Positive | None = None
    max_clients: Positive | None = None
    expires_s: Annotated[int, Field(strict=True, ge=1, le=10 * 365 * 24 * 3600)] | None = None


class TokenView(Response):
    """A token without its secret."""

    id: TokenId
    kind: TokenKind
    name: str
    population: Slug | None = None
    uses_left: Whole | None = None
    min_clients: Positive | None = None
    max_clients: Positive | None = None
    created_at: datetime
    expires_at: datetime | None = None
    revoked: bool = False


class TokenCreated(TokenView):
    """The only answer that ever carries the secret. Its repr does not."""

    token: str = Field(repr=False)


class ServerRule(Request):
    """A server part by name with its parameters, e.g. ``sgd`` with ``{"lr": 1.0, "momentum": 0.9}``."""

    name: Token
    parameters: Annotated[dict[Token, Number], Field(max_length=32)] = {}


class ExperimentCreate(Request):
    """An experiment over a population.

    The plan's manifest and graphs, the initial weights, frozen parts and evaluation data are blobs sent before.
    """

    name: Label
    population: Slug
    plan: PlanRef
    initial: BlobRef
    rounds: RoundPolicy
    server: ServerRule
    reducer: ReducerText = "mean"
    codecs: Annotated[tuple[Token, ...], Field(min_length=1, max_length=32)] = ("float32",)
    hyper: Annotated[dict[Token, Number], Field(max_length=64)] = {}
    frozen: BlobRef | None = None
    evaluation: BlobRef | None = None
    seed: Whole = 0

    @field_validator("plan", "initial", "frozen", "evaluation")
    @classmethod
    def _no_more(cls, value: Signed | None) -> Signed | None:
        if value is not None and value.model_extra:
            raise ValueError(f"unknown field {min(value.model_extra)[:64]!r}")
        return value


class ExperimentView(Response):
    """An experiment as it stands. round: the last one begun; best: the version that `RoundPolicy.best` picks so far."""

    id: ExperimentId
    name: str
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

    metrics: means over examples; evaluation: where they were measured; training: the means that clients saw while
    training; fairness: how each metric differs between the clients that evaluated, by the fields of
    `coterie.protocol.spread.Spread`; model: the version it committed.
    """

    experiment: ExperimentId
    round: Positive
    state: RoundState
    cause: str | None = None
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
    seconds: float | None = None
    model: Sha256 | None = None


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
    """A device as the coordinator knows it. max_clients: for how many clients an edge aggregator may speak."""

    id: DeviceId
    population: Slug
    name: str | None = None
    public_key: PublicKey
    kind: Literal["device", "edge"] = "device"
    max_clients: Positive | None = None
    state: Literal["active", "revoked"] = "active"
    enrolled_at: datetime
    last_seen_at: datetime | None = None
    accepted: Whole = 0


class Event(Response):
    """One entry of the event stream.

    id: rises by one step per event; type: e.g. ``round``; data: that type's own fields.
    """

    id: Whole
    type: Token
    experiment: ExperimentId | None = None
    data: dict[str, Any] = {}
    at: datetime | None = None


class AuditEntry(Response):
    """Who did what to which thing, and when."""

    id: Whole
    at: datetime
    actor: str
    action: str
    subject: str | None = None
    data: dict[str, Any] = {}


Item = TypeVar("Item")


class Page(Response, Generic[Item]):
    """One page of a list. next_cursor: opaque; None on the last page."""

    items: tuple[Item, ...]
    next_cursor: str | None = None
