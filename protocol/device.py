"""The device plane's messages (``/v1/device/…``): what a device says and what it is told.

Times that cross the wire are relative (milliseconds); only the coordinator's clock counts. Requests are signed
as `coterie.protocol.http_signatures` says.
"""

from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from coterie.errors import CoterieError
from coterie.protocol.canonical import canonical_json
from coterie.protocol.claims import LocalTerms, PrivacyTerms
from coterie.protocol.endorsements import Endorsement
from coterie.protocol.lineage import Lineage
from coterie.protocol.schema import WireSchema
from coterie.protocol.secagg import SecureTerms
from coterie.protocol.signing import Domain, SigningKey, verify, verify_plan
from coterie.protocol.wire import (
    BlobRef,
    ClassId,
    Detail,
    DeviceId,
    DisplayName,
    ExperimentId,
    FiniteNumber,
    Identifier,
    Milliseconds,
    Nonce,
    NotNegative,
    Positive,
    ProtocolVersion,
    PublicKey,
    Request,
    Response,
    Sha256,
    Signature,
    Signed,
    Size,
    Slug,
    TaskId,
    Whole,
)

PROTOCOL_VERSIONS: tuple[int, ...] = (1,)
SECURE_AGGREGATION = "secagg/1"
LOCAL_NOISE = "local_noise/1"
"""The secure aggregation of this version: a device that does not say that it knows it gets no task that asks for it."""

NONCE_HEADER = "Coterie-Nonce"
"""Of answers: the nonce of the device's next request."""
UPLOAD_OFFSET_HEADER = "Upload-Offset"
UPLOAD_LENGTH_HEADER = "Upload-Length"
DIGEST_HEADER = "Repr-Digest"
PROBLEM_MEDIA_TYPE = "application/problem+json"

TaskKind = Literal["train", "evaluate"]
TaskPhase = Literal["downloading", "checking", "training", "evaluating", "encoding", "uploading"]
WITH_ROWS: Final = frozenset[TaskPhase](("training", "evaluating", "encoding"))
"""The phases of a task whose outcome may depend on rows: of a task under a promise of privacy, nobody is told of it."""
DIVERGED: Final = "training_diverged"
"""The reason by which a device gives up a task whose training gave NaN or infinity, where others may hear of it."""
Settlement = Literal["counted", "rolled_back"]


class RetryWindow(Response):
    """Come back after a time drawn evenly from [min_ms, max_ms]."""

    min_ms: Milliseconds
    max_ms: Milliseconds

    @model_validator(mode="after")
    def _require_order(self) -> Self:
        if self.max_ms < self.min_ms:
            raise ValueError(f"max_ms {self.max_ms} must not be below min_ms {self.min_ms}")
        return self


class Capabilities(Request):
    """What a device has: versions, codecs by name, trainers, kinds of secrecy, and the caps it trains under.

    opset: the newest ONNX opset that its runtime takes.
    features: of `coterie.protocol.features`; it gets no task that needs another.

    yardstick_us: microseconds that one fixed small inference takes there on one thread, measured, to two digits; None
    where it was not measured.
    """

    sdk: Identifier = "coterie-python/0"
    runtime: Identifier = "onnxruntime/0"
    opset: Annotated[int, Field(strict=True, ge=1, le=1000)] = 17
    codecs: Annotated[tuple[Identifier, ...], Field(max_length=32)] = ("float32",)
    trainers: Annotated[tuple[Literal["plan", "external"], ...], Field(min_length=1, max_length=2)] = ("plan",)
    secure: Annotated[tuple[Identifier, ...], Field(max_length=8)] = ()
    features: Annotated[tuple[Identifier, ...], Field(max_length=64)] = ()
    threads: Annotated[int, Field(strict=True, ge=1, le=4096)] = 1
    memory_bytes: Size | None = None
    yardstick_us: Positive | None = None


class PopulationInfo(Response):
    """What a newcomer must know before it joins.

    The schema its data must fit, the keys it shall pin, the versions spoken here.
    """

    population: Slug
    data_schema: WireSchema
    schema_digest: Sha256
    signers: Annotated[tuple[PublicKey, ...], Field(max_length=64)]
    coordinator_key: PublicKey
    protocol: Annotated[tuple[ProtocolVersion, ...], Field(min_length=1, max_length=16)] = PROTOCOL_VERSIONS


class EnrolRequest(Request):
    """A device's public key, and the digest of the schema that its data was checked against.

    endorsement: of that key, for populations that ask for one.
    """

    public_key: PublicKey
    schema_digest: Sha256
    name: DisplayName | None = None
    capabilities: Capabilities = Capabilities()
    endorsement: Endorsement | None = None
    protocol: Annotated[tuple[ProtocolVersion, ...], Field(min_length=1, max_length=16)] = PROTOCOL_VERSIONS


class EnrolResponse(Response):
    """The device's id and the nonce of its first signed request."""

    device_id: DeviceId
    nonce: Nonce


class DataReport(Request):
    """What a device says of its data, if its owner lets it: how many rows it trains on, and which classes are among
    their labels (empty where labels are no classes).
    """

    examples: Whole
    labels: Annotated[tuple[ClassId, ...], Field(max_length=1000)] = ()


class CheckIn(Request):
    """A device asks for a task.

    pending: tasks that the device began to send and of which no answer said yet what became: it asks for that.
    experiments: those whose status an edge aggregator asks for.
    data: for experiments that choose by it; None keeps it to itself.
    """

    pending: Annotated[tuple[TaskId, ...], Field(max_length=64)] = ()
    experiments: Annotated[tuple[ExperimentId, ...], Field(max_length=64)] = ()
    data: DataReport | None = None
    capabilities: Capabilities = Capabilities()
    protocol: Annotated[tuple[ProtocolVersion, ...], Field(min_length=1, max_length=16)] = PROTOCOL_VERSIONS


class PlanRef(Signed):
    """A plan by its id (SHA-256 of its canonical manifest) and its researcher's signature over that id."""

    id: Sha256
    signature: Signature
    signer: PublicKey

    def verify(self) -> None:
        """Raise errors.Unauthenticated unless `signer` signed `id`.

        Whether the signer is allowed is for the caller to say.
        """
        verify_plan(self.signer, self.id, self.signature)


class EdgeTerms(Signed):
    """What a task asks of an edge aggregator beside what it asks of its devices.

    reducer: the rule whose accumulator it sends.
    min_clients, max_clients: of how many clients the accumulator is, at least and at most.
    deadline_ms: milliseconds left of the round when the task is handed out.
    selection, min_examples, labels, rest_rounds, rest_s: as in `RoundPolicy`; they hold for its devices, which only the
        edge aggregator knows.
    """

    reducer: Detail
    min_clients: Positive
    max_clients: Positive
    deadline_ms: Milliseconds
    selection: Detail
    min_examples: Positive | None
    labels: Annotated[tuple[ClassId, ...], Field(max_length=1000)]
    rest_rounds: Whole
    rest_s: NotNegative


class Task(Signed):
    """What one device is assigned, signed by the coordinator.

    device: the only device it is for.
    hyper: runtime scalars by name.
    codecs: by preference.
    lease_ms: milliseconds left when it was handed out.
    weight_cap: the most that `weight` may claim.
    upload_limit: the most bytes that the update may have.
    seed: of shuffling and dropout; under ``secure`` each device draws its own instead.
    edge: for an edge aggregator only, which holds its devices to the rest, so `weight_cap` is that of each of its
        clients.
    secure: of a task whose update is masked, and never sent in clear.
    privacy: what the experiment promises.
    local: noise that the device adds before anything leaves it.
    lineage: where ``model`` stands among the experiment's versions; None behind an edge aggregator.

    Every field is given a value when a task is made; a reader keeps unknown ones, since the signature covers them.
    """

    id: TaskId
    device: DeviceId
    experiment: ExperimentId
    round: Positive
    kind: TaskKind
    plan: PlanRef
    model: BlobRef
    frozen: BlobRef | None
    hyper: Annotated[dict[Identifier, FiniteNumber], Field(max_length=64)]
    codecs: Annotated[tuple[Identifier, ...], Field(min_length=1, max_length=32)]
    lease_ms: Milliseconds
    weight_cap: Positive
    upload_limit: Size
    seed: Whole
    edge: EdgeTerms | None
    secure: SecureTerms | None = None
    privacy: PrivacyTerms | None = None
    local: LocalTerms | None = None
    lineage: Lineage | None = None
    signature: Signature | Literal[""] = ""

    def signed_bytes(self) -> bytes:
        """What the signature covers: the canonical JSON of every field as given but `signature` itself."""
        return canonical_json(self.model_dump(mode="json", exclude={"signature"}, exclude_unset=True))

    def signed(self, key: SigningKey) -> "Task":
        """This task under the coordinator's signature, every field of it given."""
        whole = Task.model_validate(self.model_dump(mode="json"))
        signature = key.sign(Domain.TASK, whole.signed_bytes())
        return Task.model_validate({**whole.model_dump(mode="json"), "signature": signature})

    def verify(self, coordinator_key: str) -> None:
        """Raise errors.Unauthenticated (``signature_invalid``) unless the coordinator signed exactly this task."""
        verify(coordinator_key, Domain.TASK, self.signed_bytes(), self.signature)


Idle = Literal["no_experiment", "no_place", "trainer_own", "trainer_plan", "secrecy", "features"]
"""Why there is no task: no experiment runs; its rounds have no place for this device now; or a place is free for
others: those with a trainer of their own, those that run the plan's steps, those that know its secrecy, those that have
its features.
"""


class CheckInResponse(Response):
    """A task or none, and why.

    When to come back if the task's upload is accepted, and if it is not (or there is no task); what became of
    `pending`; which of `CheckIn.experiments` are over.
    """

    task: Task | None = None
    idle: Idle | None = None
    retry_if_accepted: RetryWindow
    retry_if_rejected: RetryWindow
    settled: Annotated[dict[TaskId, Settlement], Field(max_length=64)] = {}
    ended: Annotated[tuple[ExperimentId, ...], Field(max_length=64)] = ()
    protocol: ProtocolVersion = 1


class Progress(Request):
    """A device tells where it is with a task; the task's lease starts anew, its round's deadline does not move."""

    phase: TaskPhase


class Abort(Request):
    """A device gives a task up.

    code: the error's stable code.
    detail: for people, without data.
    """

    phase: TaskPhase
    code: Identifier
    detail: Detail = ""


class UploadReceipt(Response):
    """The update is stored durably. ``already``: these very bytes had been accepted before.

    next: of a masked vector, the list of survivors, where the client waited and it came in time.
    """

    state: Literal["accepted", "already"]
    sha256: Sha256
    next: dict[str, Any] | None = Field(default=None, exclude_if=lambda message: message is None)


class Fault(Response):
    """One fault of a request: a JSON pointer into its body and a sentence."""

    pointer: str = ""
    detail: str = ""


class Problem(Response):
    """An error's body (RFC 9457) with a stable `code`, a `hint` and a documentation path `doc`."""

    type: str = "about:blank"
    title: str = ""
    status: Annotated[int, Field(ge=100, le=599)] = 500
    detail: str = ""
    instance: str | None = None
    code: str = "error"
    hint: str | None = None
    doc: str | None = None
    trace_id: str | None = None
    errors: tuple[Fault, ...] = ()
    retry_after_ms: Annotated[int, Field(ge=0)] | None = None

    @staticmethod
    def of(error: CoterieError, *, title: str, instance: str | None = None, status: int | None = None) -> "Problem":
        """The problem that tells a client of `error`."""
        faults = error.details.get("errors", ())
        return Problem(
            type=f"/problems/{error.reason.replace('_', '-')}",
            title=title,
            status=status or error.status,
            detail=error.message,
            instance=instance,
            code=error.reason,
            hint=error.hint,
            doc=error.doc,
            errors=tuple(Fault.model_validate(fault) for fault in faults),
        )
