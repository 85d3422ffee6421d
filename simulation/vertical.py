"""A split network in one process, over the rows of all of its roles: plan, stages and messages are those of a session,
without a coordinator (`coterie.client_sdk.party.learner`).
"""

import os
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from coterie import errors
from coterie.aggregation.plan.check_session import SessionPlan
from coterie.aggregation.plan.stage import PREDICTION, TaskName
from coterie.aggregation.vertical.compile import compile_split
from coterie.aggregation.vertical.experiment import VerticalExperiment
from coterie.aggregation.vertical.split import SplitNetwork
from coterie.aggregation.vertical.tables import TableSource
from coterie.client_sdk.party.cut_messages import read_message
from coterie.client_sdk.party.job_table import TableChoice
from coterie.client_sdk.party.learner_store import SECRET_BYTES, LearnerCall, call_of
from coterie.client_sdk.party.role_work import BatchDone, BatchWork, MessageAwaited, RoleWork, Sent, WorkEvent
from coterie.client_sdk.rows.loading import DataSource
from coterie.draws import batch_order
from coterie.privacy.audit.cut import LabelLeak, label_leak
from coterie.protocol.arrays import ArraysByName
from coterie.protocol.metrics import MetricSums
from coterie.protocol.tensors import open_tensors
from coterie.randomness import seed_of
from coterie.simulation.jobs import SimulatedJob, simulate_job

RowsOfRoles = Mapping[str, DataSource]


@dataclass(frozen=True)
class Seen:
    """Numbers that a role has got from another in the last epoch of a training, as it got them.

    rows: which row of the data each is about, ``[n]``. values: ``[n, w]``.
    """

    rows: NDArray[np.int64]
    values: NDArray[np.float32]


@dataclass
class Traffic:
    """What one role has sent another: how many messages, and their bytes before they are sealed."""

    messages: int = 0
    size: int = 0


@dataclass
class _Role:
    """One role in its work on a call."""

    work: BatchWork
    call: LearnerCall
    tensors: ArraysByName
    event: WorkEvent | None = None
    outputs: ArraysByName = field(default_factory=dict[str, NDArray[Any]])
    done: bool = False


class VerticalRun:
    """All roles of a split network in this process; see `simulate_vertical`.

    plan: what they run.
    secrets: of each role, 32 bytes, of which it draws its first weights, noise and rounding.
    session: the name under which it draws noise and rounding.
    epochs: the metric sums of each epoch of the last training, as the role with the labels has them.
    client_state: each role's part of the model and of its optimizer's state.
    traffic: by (sender, recipient), of all calls.
    """

    def __init__(self, plan: SessionPlan, secrets: Mapping[str, bytes], *, session: str = "simulation") -> None:
        self.plan = plan
        self.epochs: tuple[MetricSums, ...] = ()
        self.client_state: dict[str, ArraysByName] = {}
        self.traffic: dict[tuple[str, str], Traffic] = {}
        self._roles = {
            role: RoleWork(plan, role, secret=secrets[role], session=session) for role in plan.manifest.roles
        }
        self._label_role = next(part.role for part in plan.manifest.parts if part.shape == "split_labels")
        self._labels: NDArray[Any] = np.zeros(0)
        self._seen: dict[tuple[str, str, str], list[tuple[NDArray[np.int64], NDArray[np.float32]]]] = {}
        self._calls, self._trained = 0, 0

    def train(self, rows: RowsOfRoles, *, on_epoch: Callable[[int, Mapping[str, float]], None] | None = None) -> None:
        """Train on rows, from where the last training ended. Raises as `simulate_vertical` does."""
        self._seen = {}
        given = self._read("train", rows)
        self._labels = given[self._label_role][self.plan.manifest.part(self._label_role).schema.label.name]
        ended = self._run("train", given, on_epoch)[self._label_role]
        self.epochs = tuple(MetricSums(sums) for sums in ended.call.epochs)
        self._trained += 1

    def evaluate(self, rows: RowsOfRoles) -> MetricSums:
        """The metric sums of the model on rows."""
        ended = self._run("evaluate", self._read("evaluate", rows), None)[self._label_role]
        return MetricSums(ended.call.epochs[0])

    def predict(self, rows: RowsOfRoles) -> NDArray[np.float32]:
        """What the model says of rows, ``[rows, …]``.

        rows: without labels; a role that has the label alone is left out.
        """
        ended = self._run("predict", self._read("predict", rows), None)[self._label_role]
        return ended.outputs[PREDICTION]

    def seen(self, sender: str, recipient: str, key: str) -> Seen:
        """What a role has got from another in the last epoch of the last training.

        key: ``embedding`` or ``gradient``. Raises errors.ArgumentValueError for what the plan does not send.
        """
        found = self._seen.get((sender, recipient, key))
        if not found:
            raise errors.ArgumentValueError(
                f"No training has sent {key!r} from {sender!r} to {recipient!r}.",
                hint="Roles with features send 'embedding' to the one with the labels, which sends 'gradient' back.",
            )
        return Seen(np.concatenate([rows for rows, _ in found]), np.concatenate([values for _, values in found]))

    def label_leak(self, role: str) -> LabelLeak:
        """How well a role with features could tell labels by the gradients of the last epoch; of two classes.

        Raises errors.ArgumentValueError as `seen` and `coterie.privacy.audit.cut.label_leak` do.
        """
        seen = self.seen(self._label_role, role, "gradient")
        return label_leak(seen.values, self._labels[seen.rows])

    def _read(self, task: TaskName, rows: RowsOfRoles) -> dict[str, ArraysByName]:
        bare = [role for role, work in self._roles.items() if task == "predict" and not work.part.schema.has_features]
        wanted = [role for role in self._roles if role not in bare]
        if set(rows) != set(wanted):
            raise errors.ArgumentValueError(
                f"The rows of {task} are those of the roles {', '.join(wanted)}, not of "
                f"{', '.join(map(str, rows)) or 'nobody'}."
            )
        found = {role: self._roles[role].rows_of(task, rows[role], None) for role in wanted}
        counts = {role: len(next(iter(arrays.values()))) for role, arrays in found.items()}
        if len(set(counts.values())) > 1:
            told = ", ".join(f"{role} {count}" for role, count in counts.items())
            raise errors.DataError(
                f"The roles have different numbers of rows: {told}.",
                hint="Row i of every role is about the same person or thing.",
                code="data_lengths",
            )
        return found | {role: self._roles[role].rows_of(task, next(iter(counts.values())), None) for role in bare}

    def _run(
        self,
        task: TaskName,
        given: Mapping[str, ArraysByName],
        on_epoch: Callable[[int, Mapping[str, float]], None] | None,
    ) -> dict[str, _Role]:
        roles: dict[str, _Role] = {}
        for role, work in self._roles.items():
            call = call_of(task, given[role], self._calls, threads=1, trained=self._trained)
            work.require_trained(call, "this simulation")
            tensors = self.client_state.get(role) or work.first_tensors()
            roles[role] = _Role(work.work(call, given[role], tensors), call, tensors)
        boxes: dict[tuple[str, str], deque[bytes]] = {}
        while not all(role.done for role in roles.values()):
            moved = [self._advance(name, role, boxes, on_epoch) for name, role in roles.items()]
            if not any(moved):
                raise errors.InternalError("The roles of a plan that was checked wait for one another.")
        self.client_state = {name: role.tensors for name, role in roles.items()}
        self._calls += 1
        return roles

    def _advance(
        self,
        name: str,
        role: _Role,
        boxes: dict[tuple[str, str], deque[bytes]],
        on_epoch: Callable[[int, Mapping[str, float]], None] | None,
    ) -> bool:
        """Let a role go on until it waits for a message that has not come. Whether it did anything."""
        moved = False
        while not role.done:
            answer: bytes | None = None
            match role.event:
                case None:
                    pass
                case Sent(other, body):
                    boxes.setdefault((name, other), deque()).append(body)
                    self._note(name, other, role.call, body)
                case MessageAwaited(other, _):
                    box = boxes.get((other, name))
                    if not box:
                        return moved
                    answer = box.popleft()
                case BatchDone(call, tensors, epoch):
                    role.call, role.tensors = call, tensors
                    if epoch and on_epoch and name == self._label_role:
                        on_epoch(len(call.epochs), MetricSums(call.epochs[-1]).means())
            _go_on(role, answer)
            moved = True
        return moved

    def _note(self, sender: str, recipient: str, call: LearnerCall, body: bytes) -> None:
        traffic = self.traffic.setdefault((sender, recipient), Traffic())
        traffic.messages, traffic.size = traffic.messages + 1, traffic.size + len(body)
        training = self.plan.manifest.training
        epoch, batch = divmod(call.step, -(-call.rows // training.batch_size))
        if call.task != "train" or epoch != training.epochs - 1:
            return
        outputs = [t for s in self.plan.manifest.part(sender).stages_of("train") for t in s.to_destination("message")]
        shapes = {t.key: t.shape for t in outputs if t.partner == recipient}
        first = batch * training.batch_size
        rows = batch_order(call.rows, training.seed, epoch)[first : first + training.batch_size]
        for key, values in read_message(self.plan.manifest.cut, open_tensors(body), shapes).items():
            kept = values.reshape(len(values), -1)[: len(rows)]
            self._seen.setdefault((sender, recipient, key), []).append((rows, kept))


@overload
def simulate_vertical(
    asked: SplitNetwork,
    rows: RowsOfRoles,
    *,
    seed: int | None = None,
    on_epoch: Callable[[int, Mapping[str, float]], None] | None = None,
) -> VerticalRun: ...
@overload
def simulate_vertical(
    asked: VerticalExperiment,
    rows: Mapping[str, TableSource],
    *,
    choices: Mapping[str, TableChoice],
    held_out: float | None = None,
    encrypted: bool = True,
    processes: int = 1,
    seed: int | None = None,
) -> SimulatedJob: ...
def simulate_vertical(
    asked: SplitNetwork | VerticalExperiment,
    rows: Any,
    *,
    choices: Mapping[str, TableChoice] | None = None,
    held_out: float | None = None,
    encrypted: bool = True,
    processes: int = 1,
    seed: int | None = None,
    on_epoch: Callable[[int, Mapping[str, float]], None] | None = None,
) -> VerticalRun | SimulatedJob:
    """Train over the rows of all roles in this process: what a session of these roles would do.

    asked: a split network, with the bits of a session where its roles draw the same numbers; or an experiment, whose
        steps are those of `coterie party run`.
    rows: of each role by its name. Of a split network as a device's data are given
        (`coterie.client_sdk.rows.loading.load_data`); row i of every role is about the same person or thing. Of an
        experiment tables: files, arrays by name or DataFrames, which have their ids where it aligns.
    choices: of an experiment, which columns of its table each role uses.
    held_out: of an experiment, the share of common rows that are not trained on.
    encrypted: False trains an experiment on the joined table in the open, much sooner: the same model.
    processes: that reckon for an experiment.
    seed: of first weights, noise and rounding, or of the rows that trees sample, so that a run can be made again; of
        the system's randomness, as in a session, when not given. What is drawn of a seed hides nothing.
    on_epoch: of a split network; gets the number of each epoch that ends, from 1, and the means of its metrics.

    Raises errors.ExperimentError as `compile_split` does, DataError, ConfigurationError (``role_unknown``,
    ``job_columns``, ``extra_missing``), ArgumentValueError for rows of other roles, InputError
    (``training_diverged``, ``intersection_small``).
    """
    if isinstance(asked, VerticalExperiment):
        return simulate_job(
            asked, rows, choices or {}, held_out=held_out, encrypted=encrypted, processes=processes, seed=seed
        )
    plan = compile_split(asked)
    secrets = {
        role: os.urandom(SECRET_BYTES) if seed is None else seed_of("coterie-simulate-vertical-1", str(seed), role)
        for role in plan.manifest.roles
    }
    run = VerticalRun(plan, secrets)
    run.train(rows, on_epoch=on_epoch)
    return run


def _go_on(role: _Role, answer: bytes | None) -> None:
    try:
        role.event = next(role.work) if answer is None else role.work.send(answer)
    except StopIteration as end:
        role.outputs, role.done = end.value, True
