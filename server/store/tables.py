"""The tables. Times are milliseconds of the coordinator's wall clock; JSON is text; identifiers are text.

Only portable types and constraints: the same schema serves SQLite and PostgreSQL. A change here needs a migration, and
a test compares both. All tables are one file because that test, and whoever reads a foreign key, needs them together.
"""

from sqlalchemy import (
    BigInteger,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Text,
    UniqueConstraint,
    false,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

Serial = BigInteger().with_variant(Integer(), "sqlite")
"""A 64-bit key that counts up; SQLite only counts up in a column of type INTEGER."""


class Base(DeclarativeBase):
    """The base of every table."""

    type_annotation_map = {int: BigInteger()}


class SecretRow(Base):
    """A key of the coordinator itself."""

    __tablename__ = "secrets"
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[bytes] = mapped_column(LargeBinary)


class PopulationRow(Base):
    """Devices of one kind that run one app and share one data schema.

    policy: the operator's floor, as JSON.
    """

    __tablename__ = "populations"
    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    schema_json: Mapped[str] = mapped_column(Text)
    schema_digest: Mapped[str] = mapped_column(String(64))
    client_state: Mapped[str] = mapped_column(String(8), server_default="kept", default="kept")
    policy: Mapped[str] = mapped_column(Text, server_default="{}", default="{}")
    created_at: Mapped[int]


class SignerRow(Base):
    """A researcher's public key whose plans a population accepts."""

    __tablename__ = "signers"
    population: Mapped[str] = mapped_column(ForeignKey("populations.name"), primary_key=True)
    public: Mapped[str] = mapped_column(String(64), primary_key=True)
    created_at: Mapped[int]


class TokenRow(Base):
    """A bearer token, of which only the SHA-256 digest of the secret is kept."""

    __tablename__ = "tokens"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16))
    digest: Mapped[str] = mapped_column(String(64))
    label: Mapped[str] = mapped_column(String(200))
    population: Mapped[str | None] = mapped_column(ForeignKey("populations.name"))
    uses: Mapped[int] = mapped_column(default=0)
    max_uses: Mapped[int | None]
    min_clients: Mapped[int | None]
    max_clients: Mapped[int | None]
    expires_at: Mapped[int | None]
    revoked_at: Mapped[int | None]
    created_at: Mapped[int]


class DeviceRow(Base):
    """An enrolled device; its public key is its identity. ``min_clients``, ``max_clients``: of how many clients an
    update of an edge aggregator must and may be; null for a device, which is one client.
    """

    __tablename__ = "devices"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    population: Mapped[str] = mapped_column(ForeignKey("populations.name"), index=True)
    public: Mapped[str] = mapped_column(String(64), unique=True)
    token: Mapped[str] = mapped_column(String(64))
    details: Mapped[str] = mapped_column(Text, default="{}")
    min_clients: Mapped[int | None]
    max_clients: Mapped[int | None]
    created_at: Mapped[int]
    seen_at: Mapped[int]
    revoked_at: Mapped[int | None]


class BlobRow(Base):
    """A content-addressed blob that is durable. Updates are not here: their rows are their tasks."""

    __tablename__ = "blobs"
    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    size: Mapped[int]
    kind: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[int]


class BlobPopulationRow(Base):
    """That a token for one population has sent a blob. What others sent cannot be used by knowing its digest alone."""

    __tablename__ = "blob_populations"
    sha256: Mapped[str] = mapped_column(ForeignKey("blobs.sha256"), primary_key=True)
    population: Mapped[str] = mapped_column(ForeignKey("populations.name"), primary_key=True)


class ExperimentRow(Base):
    """An experiment and how far it is."""

    __tablename__ = "experiments"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(String(200), index=True)
    population: Mapped[str] = mapped_column(ForeignKey("populations.name"), index=True)
    request: Mapped[str] = mapped_column(Text)
    plan: Mapped[str] = mapped_column(String(64))
    state: Mapped[str] = mapped_column(String(16), index=True)
    reason: Mapped[str | None] = mapped_column(String(64))
    progress: Mapped[str] = mapped_column(Text)
    round: Mapped[int] = mapped_column(default=0)
    model: Mapped[str] = mapped_column(String(64))
    best: Mapped[str | None] = mapped_column(String(64))
    server_state: Mapped[str | None] = mapped_column(String(64))
    created_at: Mapped[int]
    finished_at: Mapped[int | None]


class RoundRow(Base):
    """A round: the engine's state as JSON, and beside it what queries and conditions need.

    ``version`` counts its changes (optimistic concurrency). ``reserved``: the devices, as a JSON list, for which its
    training tasks are kept until ``reserved_until``. ``upstream``: the task of the coordinator above that an edge
    aggregator's round answers.
    """

    __tablename__ = "rounds"
    __table_args__ = (
        Index(
            "ix_rounds_unfinished",
            "created_at",
            "experiment",
            sqlite_where=text("cleaned IS 0"),
            postgresql_where=text("cleaned IS false"),
        ),
    )
    experiment: Mapped[str] = mapped_column(ForeignKey("experiments.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    phase: Mapped[str] = mapped_column(String(16), index=True)
    state: Mapped[str] = mapped_column(Text)
    cause: Mapped[str | None] = mapped_column(String(64))
    base: Mapped[str] = mapped_column(String(64))
    aggregate: Mapped[str | None] = mapped_column(String(64))
    server_state: Mapped[str | None] = mapped_column(String(64))
    record: Mapped[str | None] = mapped_column(Text)
    deadline_kind: Mapped[str | None] = mapped_column(String(16))
    deadline_at: Mapped[int | None]
    bytes_down: Mapped[int] = mapped_column(default=0)
    cleaned: Mapped[bool] = mapped_column(server_default=false(), default=False)
    reserved: Mapped[str | None] = mapped_column(Text)
    reserved_until: Mapped[int | None]
    upstream: Mapped[str | None] = mapped_column(String(64))
    version: Mapped[int] = mapped_column(default=0)
    created_at: Mapped[int]
    finished_at: Mapped[int | None]


LEASED = text("state = 'leased'")


class TaskRow(Base):
    """What one device of a cohort is assigned, its lease, and what came of it.

    ``round``: the one that handed it out. ``place``: how many versions had been committed then. ``buffer``: the round
    that counts its update, once it is accepted; in synchronous mode the same round. ``clients``: of how many clients
    the update is; while it is leased, of how many at most. ``attempt``: the secure aggregation that it is part of.
    """

    __tablename__ = "tasks"
    __table_args__ = (
        Index("ix_tasks_round", "experiment", "round", "kind", "state"),
        Index("ix_tasks_buffer", "experiment", "buffer"),
        Index("ix_tasks_attempt", "attempt", "state"),
        Index("ix_tasks_device", "device", "state"),
        Index("ix_tasks_lease", "state", "lease_until"),
        Index("ux_tasks_one_lease", "device", unique=True, sqlite_where=LEASED, postgresql_where=LEASED),
    )
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    experiment: Mapped[str] = mapped_column(ForeignKey("experiments.id"))
    round: Mapped[int]
    place: Mapped[int] = mapped_column(server_default="0", default=0)
    buffer: Mapped[int | None]
    attempt: Mapped[str | None] = mapped_column(String(64))
    kind: Mapped[str] = mapped_column(String(16))
    device: Mapped[str] = mapped_column(ForeignKey("devices.id"))
    message: Mapped[str] = mapped_column(Text)
    state: Mapped[str] = mapped_column(String(16))
    verdict: Mapped[str | None] = mapped_column(String(16))
    lease_until: Mapped[int]
    upload: Mapped[str | None] = mapped_column(String(64))
    size: Mapped[int | None]
    weight: Mapped[int | None]
    clients: Mapped[int] = mapped_column(server_default="1", default=1)
    steps: Mapped[int | None]
    sums: Mapped[str] = mapped_column(Text, default="{}")
    code: Mapped[str | None] = mapped_column(String(64))
    detail: Mapped[str | None] = mapped_column(Text)
    bytes_up: Mapped[int] = mapped_column(default=0)
    created_at: Mapped[int]
    finished_at: Mapped[int | None]


class AttemptRow(Base):
    """One run of secure aggregation over the tasks of one kind of a round.

    ``bucket``: which of the round's groups it is. ``state``: its machine as it was when its phase began, as JSON; what
    came since is in its mailbox. ``deadline_at``: when the phase ends at the latest. ``version`` counts its changes.
    ``awaited``: how many messages the phase waits for. ``clients``: in its roster; ``survivors``: in its sum. Once it
    is over only this row is left of it, without a state. The state may be large: whoever needs it asks for it.
    """

    __tablename__ = "attempts"
    __table_args__ = (
        UniqueConstraint("experiment", "round", "kind", "bucket"),
        Index("ix_attempts_phase", "phase", "deadline_at"),
    )
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    experiment: Mapped[str] = mapped_column(ForeignKey("experiments.id"))
    round: Mapped[int]
    kind: Mapped[str] = mapped_column(String(16))
    bucket: Mapped[int] = mapped_column(server_default="0", default=0)
    phase: Mapped[str] = mapped_column(String(16))
    state: Mapped[str | None] = mapped_column(Text, deferred=True)
    deadline_at: Mapped[int | None]
    cause: Mapped[str | None] = mapped_column(String(64))
    detail: Mapped[str | None] = mapped_column(Text)
    awaited: Mapped[int] = mapped_column(server_default="0", default=0)
    clients: Mapped[int] = mapped_column(server_default="0", default=0)
    survivors: Mapped[int] = mapped_column(server_default="0", default=0)
    version: Mapped[int] = mapped_column(server_default="0", default=0)
    created_at: Mapped[int]
    finished_at: Mapped[int | None]


class JobRow(Base):
    """A numeric job of a round: one row for each work, however often it is tried (`coterie.server.store.jobs`).

    ``subject``: what of the round it is about, such as an attempt; empty for the round itself. ``owner``: the process
    that is at it, until ``lease_until`` unless it says that it lives. ``due_at``: before then nobody takes it.
    ``attempt``: how often it was taken; ``failures``: how often it failed since it was last done. ``result``: what its
    kind keeps of the answer, as JSON; ``digest``: of the file that it made. ``error``: why it failed last.
    """

    __tablename__ = "jobs"
    __table_args__ = (UniqueConstraint("experiment", "round", "kind", "subject"), Index("ix_jobs_state", "state"))
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    experiment: Mapped[str] = mapped_column(ForeignKey("experiments.id"))
    round: Mapped[int]
    kind: Mapped[str] = mapped_column(String(32))
    subject: Mapped[str] = mapped_column(String(64), default="")
    state: Mapped[str] = mapped_column(String(16))
    owner: Mapped[str | None] = mapped_column(String(64))
    lease_until: Mapped[int | None]
    due_at: Mapped[int]
    attempt: Mapped[int] = mapped_column(default=0)
    failures: Mapped[int] = mapped_column(default=0)
    result: Mapped[str | None] = mapped_column(Text)
    digest: Mapped[str | None] = mapped_column(String(64))
    error: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[int]
    finished_at: Mapped[int | None]


class SessionRow(Base):
    """A session of parties. ``terms``: what the parties must agree on, as JSON. ``reason``: why it ended."""

    __tablename__ = "sessions"
    __table_args__ = (Index("ix_sessions_state", "state", "expires_at"),)
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(String(200))
    terms: Mapped[str] = mapped_column(Text)
    party_quota: Mapped[int]
    session_quota: Mapped[int]
    message_ttl_ms: Mapped[int]
    state: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str | None] = mapped_column(String(64))
    detail: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[int]
    expires_at: Mapped[int]
    ended_at: Mapped[int | None]


class PartyRow(Base):
    """A role of a session, and the party that has taken it. ``token``: what it is joined with. ``party``: the id by
    which its requests are signed; null until somebody joined.
    """

    __tablename__ = "session_parties"
    session: Mapped[str] = mapped_column(ForeignKey("sessions.id"), primary_key=True)
    role: Mapped[str] = mapped_column(String(64), primary_key=True)
    token: Mapped[str] = mapped_column(ForeignKey("tokens.id"), unique=True)
    party: Mapped[str | None] = mapped_column(String(64), unique=True)
    public: Mapped[str | None] = mapped_column(String(64))
    joined_at: Mapped[int | None]
    seen_at: Mapped[int | None]


WAITING = text("expires_at IS NOT NULL AND acknowledged_at IS NULL")


class MailboxRow(Base):
    """A message from one client to another, or a bundle from one to all (``recipient`` ``*``, ``sequence`` 0).

    ``session``: the attempt, or the session of parties, that it belongs to and is deleted with. ``body``: its bytes,
    where they are few; ``parts``: the name of the parts in the store that make it up, otherwise. What it holds for its
    recipients is sealed end to end. ``is_whole``: false while its parts come in; its size is reserved then, and nobody
    is given it. ``expires_at``: null for what stays as long as its attempt. ``acknowledged_at``: when its recipient had
    it, and its bytes went.
    """

    __tablename__ = "mailbox"
    __table_args__ = (
        Index(
            "ix_mailbox_waiting",
            "session",
            "sender",
            "size",
            "expires_at",
            sqlite_where=WAITING,
            postgresql_where=WAITING,
        ),
    )
    session: Mapped[str] = mapped_column(String(64), primary_key=True)
    stage: Mapped[str] = mapped_column(String(32), primary_key=True)
    sender: Mapped[str] = mapped_column(String(64), primary_key=True)
    recipient: Mapped[str] = mapped_column(String(64), primary_key=True)
    sequence: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    body: Mapped[bytes | None] = mapped_column(LargeBinary, deferred=True)
    parts: Mapped[str | None] = mapped_column(String(128))
    size: Mapped[int]
    sha256: Mapped[str | None] = mapped_column(String(64))
    is_whole: Mapped[bool] = mapped_column(default=True)
    created_at: Mapped[int]
    expires_at: Mapped[int | None]
    acknowledged_at: Mapped[int | None]


class ParticipationRow(Base):
    """What an experiment remembers of a device that has contributed: when last, how often, and what it reported."""

    __tablename__ = "participations"
    experiment: Mapped[str] = mapped_column(ForeignKey("experiments.id"), primary_key=True)
    device: Mapped[str] = mapped_column(ForeignKey("devices.id"), primary_key=True)
    last_round: Mapped[int]
    times: Mapped[int]
    examples: Mapped[int]
    loss: Mapped[float | None] = mapped_column(Float)
    seconds: Mapped[float] = mapped_column(Float)
    at: Mapped[int]


class MembershipRow(Base):
    """What an edge aggregator pinned when it joined the coordinator above it: one row, or none."""

    __tablename__ = "memberships"
    url: Mapped[str] = mapped_column(String(400), primary_key=True)
    device: Mapped[str] = mapped_column(String(64))
    population: Mapped[str] = mapped_column(ForeignKey("populations.name"))
    coordinator_key: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[int]


class UpstreamTaskRow(Base):
    """A task that an edge aggregator has of the coordinator above, answered by its round ``number`` of ``experiment``.

    ``min_clients``: of how many clients the answer must be at least. ``upload``: the accumulator's file; ``answer``:
    what it is made of where there is no file, as JSON.
    """

    __tablename__ = "upstream_tasks"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    experiment: Mapped[str] = mapped_column(ForeignKey("experiments.id"), index=True)
    number: Mapped[int]
    message: Mapped[str] = mapped_column(Text)
    state: Mapped[str] = mapped_column(String(16), index=True)
    min_clients: Mapped[int]
    upload: Mapped[str | None] = mapped_column(String(64))
    answer: Mapped[str | None] = mapped_column(Text)
    detail: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[int]
    finished_at: Mapped[int | None]


class ModelRow(Base):
    """A model version in the lineage of an experiment. Round 0 is the initial version. ``before``: the head of the
    chain of those before it (`coterie.protocol.lineage`), so each row is a link.
    """

    __tablename__ = "models"
    experiment: Mapped[str] = mapped_column(ForeignKey("experiments.id"), primary_key=True)
    round: Mapped[int] = mapped_column(primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64), index=True)
    parent: Mapped[str | None] = mapped_column(String(64))
    before: Mapped[str] = mapped_column(String(64))
    size: Mapped[int]
    metrics: Mapped[str] = mapped_column(Text)
    created_at: Mapped[int]


class CounterRow(Base):
    """The last number that was given out. Whoever takes the next ones holds the row until it commits."""

    __tablename__ = "counters"
    name: Mapped[str] = mapped_column(String(32), primary_key=True)
    value: Mapped[int] = mapped_column(BigInteger)


class EventRow(Base):
    """Something that happened. Ids grow without a gap, in the order of commits: see `events.number`. ``population``
    where the event names one; that of most follows from their experiment.
    """

    __tablename__ = "events"
    id: Mapped[int] = mapped_column(Serial, primary_key=True, autoincrement=False)
    type: Mapped[str] = mapped_column(String(64))
    experiment: Mapped[str | None] = mapped_column(String(64), index=True)
    population: Mapped[str | None] = mapped_column(String(100))
    data: Mapped[str] = mapped_column(Text)
    at: Mapped[int]


class NonceRow(Base):
    """A nonce that a request which changed something has used."""

    __tablename__ = "nonces"
    nonce: Mapped[str] = mapped_column(String(128), primary_key=True)
    expires_at: Mapped[int] = mapped_column(index=True)


class IdempotencyRow(Base):
    """The answer to a creating request, kept for its repetition."""

    __tablename__ = "idempotency"
    __table_args__ = (UniqueConstraint("principal", "key"),)
    id: Mapped[int] = mapped_column(Serial, primary_key=True, autoincrement=True)
    principal: Mapped[str] = mapped_column(String(64))
    key: Mapped[str] = mapped_column(String(200))
    request: Mapped[str] = mapped_column(String(64))
    resource: Mapped[str] = mapped_column(String(200))
    created_at: Mapped[int] = mapped_column(index=True)


class AuditRow(Base):
    """An administrative action. Append-only; each row's hash covers the row before."""

    __tablename__ = "audit"
    id: Mapped[int] = mapped_column(Serial, primary_key=True, autoincrement=False)
    at: Mapped[int]
    principal: Mapped[str] = mapped_column(String(64))
    action: Mapped[str] = mapped_column(String(64))
    target: Mapped[str] = mapped_column(String(200))
    detail: Mapped[str] = mapped_column(Text)
    previous: Mapped[str] = mapped_column(String(64))
    digest: Mapped[str] = mapped_column(String(64))


class ChainRow(Base):
    """The end of a hash chain: of the audit trail, and of each population's ledger. Every entry moves it by one
    conditional update, so of two writers that have seen the same end only one goes on.
    """

    __tablename__ = "chains"
    name: Mapped[str] = mapped_column(String(120), primary_key=True)
    sequence: Mapped[int]
    digest: Mapped[str] = mapped_column(String(64))


class LedgerRow(Base):
    """An entry of a population's ledger. Append-only; each digest covers the entry before, and is signed."""

    __tablename__ = "ledger"
    population: Mapped[str] = mapped_column(ForeignKey("populations.name"), primary_key=True)
    sequence: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    at: Mapped[int]
    event: Mapped[str] = mapped_column(Text)
    previous: Mapped[str] = mapped_column(String(64))
    digest: Mapped[str] = mapped_column(String(64))
    signature: Mapped[str] = mapped_column(String(88))
