"""What a device does for one task, without the network: train or evaluate, and encode what leaves.

Every engine ends here, in whatever thread, process or machine.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.evaluate import evaluation_sections
from coterie.aggregation.fold.part import Slices
from coterie.aggregation.plan.bundle import Plan
from coterie.aggregation.plan.manifest import Manifest
from coterie.aggregation.private.contribution import NOT_FINITE, STEPS, WEIGHT, Contribution, contribution, zeros
from coterie.aggregation.private.local_noise import privatised
from coterie.client_sdk.device.trainers.base import LocalResult, LocalWork, Rows, Trainer, TrainOptions
from coterie.errors import CoterieError, InputError, UpdateRefused
from coterie.privacy.dp.noise.source import NoiseSource
from coterie.privacy.entropy import Entropy
from coterie.privacy.secagg.encoding import Binding, encode, vector_spec
from coterie.protocol.arrays import FloatArrays
from coterie.protocol.claims import LocalTerms
from coterie.protocol.codecs.table import choose
from coterie.protocol.finite import all_finite
from coterie.protocol.secagg import SecureTerms
from coterie.protocol.sections import SectionSpec
from coterie.protocol.update import EncodedUpdate, encode_update, of_plan
from coterie.randomness import derive, stream
from coterie.simulation.assignment import Assignment, local_task, task_id

PLAIN = "float32"
DIVERGED = "metric_invalid"
"""The reason by which sums of metrics are refused that a model which diverges gives."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a client sends back, and the state that stays pending with it.

    sections: the vectors, for a codec that changes no value, which are usable.
    update: else the update's bytes, as on the wire, or what goes into a secret sum (see `coterie.simulation.ring`).
    size: the bytes that cross the wire in either case.
    loss: the mean while training, where it was measured.
    refused: why there is no update, where what the client has trained is not usable.
    diverged: whether that is for NaN or infinity.
    slices: of sections that it covers in part, what it holds of them.
    """

    number: int
    task: str
    weight: int
    steps: int
    size: int
    loss: float | None = None
    refused: str | None = None
    diverged: bool = False
    slices: Mapping[str, Slices] = field(default_factory=dict[str, Slices])
    sections: Mapping[str, NDArray[Any]] = field(default_factory=dict[str, NDArray[Any]], repr=False)
    update: bytes | None = field(default=None, repr=False)
    state: FloatArrays = field(default_factory=dict[str, NDArray[np.float32]], repr=False)


@dataclass(frozen=True, kw_only=True)
class ClientEvaluation:
    """A client's evaluation: the bytes of its update, which holds sums over its held-out rows, or what goes into a
    secret sum.

    refused: why there is none.
    size: the bytes that cross the wire.
    """

    number: int
    update: bytes
    size: int
    refused: str | None = None


class Workplace:
    """A plan and a trainer, at which clients work one after another or several at once."""

    def __init__(self, plan: Plan, frozen: FloatArrays, trainer: Trainer) -> None:
        self.plan = plan
        self.frozen = frozen
        self.trainer = trainer
        self._codec = choose(plan.manifest.codecs)
        self._sizes: dict[tuple[object, ...], int] = {}

    def train(
        self, number: int, rows: Rows, state: FloatArrays, weights: FloatArrays, assignment: Assignment
    ) -> Trained:
        """A client's update. Errors name the client."""
        try:
            result = self.trainer.train(self.training(number, rows, state, weights, assignment))
        except Exception as error:
            if assignment.promised and isinstance(error, CoterieError) and error.reason in NOT_FINITE:
                return self._put_in(number, zeros(self.plan.manifest.sections, of_plan(state)), state, assignment)
            if isinstance(error, CoterieError) and error.reason in NOT_FINITE:
                return Trained(
                    number=number,
                    task=task_id(assignment.round, number),
                    weight=0,
                    steps=0,
                    size=0,
                    refused=error.message,
                    diverged=True,
                )
            _name(error, number, assignment)
            raise
        return self.outgoing(number, result, state, assignment)

    def training(
        self, number: int, rows: Rows, state: FloatArrays, weights: FloatArrays, assignment: Assignment
    ) -> LocalWork:
        """What a client's trainer is given. What a device draws by itself follows here from the seed: see `in_ring`."""
        seed = derive(f"{assignment.seed}/rows/{assignment.round}/{number}".encode(), "coterie-simulation")
        return LocalWork(
            plan=self.plan,
            task=local_task(assignment, "train", number),
            weights=weights,
            frozen=self.frozen,
            rows=rows,
            client_state=of_plan(state),
            options=TrainOptions(threads=assignment.threads, entropy=repeatable(seed)),
            whole=assignment.secure is not None or assignment.promised,
        )

    def outgoing(self, number: int, result: LocalResult, state: FloatArrays, assignment: Assignment) -> Trained:
        """A finished training as it leaves the client; ``refused`` where it cannot. Under a promise of privacy, what
        cannot be used is sent as zeros.
        """
        if assignment.promised:
            specs, before = self.plan.manifest.sections, of_plan(state)
            made = contribution(specs, result.sections, before=before, after=result.client_state)
            return self._put_in(number, made, state, assignment)
        trained = Trained(
            number=number,
            task=task_id(assignment.round, number),
            weight=result.weight,
            steps=result.steps,
            size=0,
            loss=self._loss(result),
            sections=result.sections,
            state=result.client_state,
            slices=result.slices,
        )
        return self._encode_result(trained, state, assignment, result.finite)

    def _put_in(self, number: int, made: Contribution, state: FloatArrays, assignment: Assignment) -> Trained:
        """What a client sends under a promise of privacy, whatever became of its training."""
        trained = Trained(
            number=number,
            task=task_id(assignment.round, number),
            weight=WEIGHT,
            steps=STEPS,
            size=0,
            sections=made.sections,
            state=made.state,
        )
        if assignment.local is not None:
            trained = self._with_local_noise(trained, assignment)
        left = self._encode_result(trained, state, assignment, frozenset())
        if left.refused is None:
            return left
        instead = zeros(self.plan.manifest.sections, of_plan(state))
        silent = replace(trained, sections=instead.sections, state=instead.state)
        return self._encode_result(silent, state, assignment, frozenset())

    def _encode_result(
        self, trained: Trained, state: FloatArrays, assignment: Assignment, finite: frozenset[str]
    ) -> Trained:
        """What was made, as it crosses the wire; ``refused`` where it cannot.

        finite: sections that need no look.
        """
        if assignment.secure is not None:
            return self._encode_in_ring(trained, assignment)
        if self._codec == PLAIN:
            return self._plain_result(trained, assignment, finite)
        try:
            update, codec_state = self._encode(trained, state, assignment)
        except UpdateRefused as error:
            # As on a device: what its codec cannot hold is not sent.
            return replace(trained, sections={}, **_unusable(error))
        return replace(trained, size=len(update), sections={}, update=update, state={**trained.state, **codec_state})

    def evaluate(
        self, number: int, rows: Rows, state: FloatArrays, weights: FloatArrays, assignment: Assignment
    ) -> ClientEvaluation:
        """What a client says of its held-out rows."""
        manifest = self.plan.manifest
        work = LocalWork(
            plan=self.plan,
            task=local_task(assignment, "evaluate", number),
            weights=weights,
            frozen=self.frozen,
            rows=rows,
            client_state=of_plan(state),
            options=TrainOptions(threads=assignment.threads),
        )
        try:
            sums = self.trainer.evaluate(work)
        except Exception as error:
            if isinstance(error, InputError) and error.reason == DIVERGED:
                return ClientEvaluation(number=number, update=b"", size=0, refused=error.message)
            _name(error, number, assignment)
            raise
        specs, sections = manifest.sections_for("evaluate"), evaluation_sections(manifest, sums)
        weight = min(int(sums.examples), assignment.weight_cap)
        if assignment.secure is not None:
            try:
                update, size = in_ring(manifest, "evaluate", number, sections, weight, assignment)
            except UpdateRefused as error:
                return ClientEvaluation(number=number, update=b"", size=0, refused=error.message)
            return ClientEvaluation(number=number, update=update, size=size)
        update, _ = encode_update(
            task=task_id(assignment.round, number),
            plan=self.plan.id,
            base=assignment.base,
            weight=weight,
            steps=0,
            specs=specs,
            sections=sections,
        )
        return ClientEvaluation(number=number, update=update, size=len(update))

    def _loss(self, result: LocalResult) -> float | None:
        """The mean loss of a training; None where it diverged, which whoever looks at the sections refuses."""
        try:
            return result.metrics(self.plan).means().get("loss")
        except InputError as error:
            if error.reason != DIVERGED:
                raise
            return None

    def _with_local_noise(self, trained: Trained, assignment: Assignment) -> Trained:
        """With local noise, from the experiment's seed: see `in_ring`."""
        terms = LocalTerms.model_validate_json(assignment.local or "")
        seed = derive(f"{assignment.seed}/local/{assignment.round}/{trained.number}".encode(), "coterie-simulation")
        sections = privatised(self.plan.manifest, trained.sections, terms, NoiseSource(seed))
        return replace(trained, sections=sections)

    def _encode_in_ring(self, trained: Trained, assignment: Assignment) -> Trained:
        weight = min(trained.weight, assignment.weight_cap)
        try:
            update, size = in_ring(self.plan.manifest, "train", trained.number, trained.sections, weight, assignment)
        except UpdateRefused as error:
            return replace(trained, sections={}, **_unusable(error))
        return replace(trained, size=size, sections={}, update=update)

    def _plain_result(self, trained: Trained, assignment: Assignment, finite: frozenset[str]) -> Trained:
        """The result itself, checked here, where clients work side by side; those of ``finite`` are not."""
        size = self._plain_size(trained, assignment)
        try:
            for spec in self.plan.manifest.sections:
                part = trained.slices.get(spec.name)
                _check(spec.part(part) if part else spec, trained.sections[spec.name], known_finite=spec.name in finite)
        except UpdateRefused as error:
            return replace(trained, size=size, sections={}, **_unusable(error))
        return replace(trained, size=size)

    def _encode(self, trained: Trained, state: FloatArrays, assignment: Assignment) -> EncodedUpdate:
        specs = self.plan.manifest.sections
        return encode_update(
            task=trained.task,
            plan=self.plan.id,
            base=assignment.base,
            weight=trained.weight,
            steps=trained.steps,
            specs=specs,
            sections=trained.sections,
            codecs={spec.name: self._codec for spec in specs if not spec.is_extra},
            state=state,
            round=assignment.round,
            slices=trained.slices,
        )

    def _plain_size(self, trained: Trained, assignment: Assignment) -> int:
        """The length of the update file, which depends on nothing but the dtypes and the digits in its header."""
        dtypes = tuple(vector.dtype.str for vector in trained.sections.values())
        key = (tuple(trained.slices.items()), dtypes, len(str(trained.weight)), len(str(trained.steps)))
        if key not in self._sizes:
            # Of zeros: whether the values can be used is not asked here.
            zeros = {name: np.zeros_like(vector) for name, vector in trained.sections.items()}
            self._sizes[key] = len(self._encode(replace(trained, sections=zeros), {}, assignment).data)
        return self._sizes[key]


def in_ring(
    manifest: Manifest,
    kind: Literal["train", "evaluate"],
    number: int,
    sections: Mapping[str, NDArray[Any]],
    weight: int,
    assignment: Assignment,
) -> tuple[bytes, int]:
    """A client's part of a secret sum: the words of its vector, and the bytes that would cross the wire under a mask.

    Masks cancel, so none are made. What a device draws from its system's generator follows here from the experiment's
    seed, so that a run can be repeated: whoever knows the seed can take such noise off. Raises errors.UpdateRefused.
    """
    terms = SecureTerms.model_validate_json(assignment.secure or "")
    seed = derive(f"{assignment.seed}/ring/{kind}/{assignment.round}/{number}".encode(), "coterie-simulation")
    made = encode(
        terms.sections,
        manifest.sections_for(kind),
        sections,
        weight=weight,
        weight_cap=terms.weight_cap,
        binding=Binding(manifest.id, assignment.base),
        entropy=repeatable(seed),
        noise=terms.noise,
    )
    return made.vector.tobytes(), vector_spec(terms.sections).packed_bytes


def repeatable(seed: bytes) -> Entropy:
    """A source of entropy that gives the same bytes again for the same seed (32 bytes), one after another."""
    place = 0

    def draw(count: int) -> bytes:
        nonlocal place
        start, place = place, place + count
        return stream(seed, start, place)

    return draw


def _unusable(error: UpdateRefused) -> dict[str, Any]:
    return {"refused": error.message, "diverged": error.reason == "not_finite"}


def _check(spec: SectionSpec, vector: NDArray[Any], *, known_finite: bool) -> None:
    """Refuse what the wire would have refused."""
    if vector.shape != (spec.length,):
        raise UpdateRefused(
            f"Section {spec.name!r} has {vector.size} elements; the plan says {spec.length}.", code="wrong_length"
        )
    if not (known_finite or all_finite(vector)):
        at = int(np.argmin(np.isfinite(vector)))
        raise UpdateRefused(f"Section {spec.name!r} holds {vector[at]} at element {at}.", code="not_finite")
    if spec.value_range is not None:
        low, high = spec.value_range
        if not bool(((vector >= low) & (vector <= high)).all()):
            raise UpdateRefused(f"Section {spec.name!r} is outside the range {low} to {high}.", code="out_of_range")


def _name(error: Exception, number: int, assignment: Assignment) -> None:
    error.add_note(f"Raised by virtual client {number} in round {assignment.round}.")
