"""The hosts that make a version of a round's updates: engines of a simulation, a coordinator's worker, edge aggregators
below it, and a masked sum. Each is called as the product calls it, over the same round.
"""

import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.compiling.compile import CompiledPlan
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.plan.manifest import Manifest
from coterie.aggregation.private.secure_aggregation import coordinator_noises
from coterie.client_sdk.rows.loading import DataSource
from coterie.privacy.secagg import server
from coterie.privacy.secagg.decoding import Decoded, decode
from coterie.privacy.secagg.encoding import Binding, vector_spec
from coterie.privacy.secagg.masked_file import MaskedHeader, encode_masked
from coterie.privacy.secagg.ring import reduced
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.codecs.table import choose
from coterie.protocol.conversion import to_json
from coterie.protocol.secagg import SecureTerms
from coterie.protocol.tensors import decode_tensors, encode_tensors, read_file
from coterie.protocol.update import encode_update, read_update
from coterie.server.store.objects import Shelf, key_of
from coterie.server.worker.process import perform
from coterie.simulation.assignment import Assignment, task_id
from coterie.simulation.engines.engine import Engine, Setting, open_engine
from coterie.simulation.engines.naming import PLAN_TRAINER
from coterie.simulation.population import Population
from coterie.simulation.secrecy import collector, with_terms
from coterie.simulation.shares import WorkShares
from coterie.simulation.versions import Versions
from coterie.simulation.work import Trained, in_ring
from tests.privacy.secagg import attempt_kit

Vector = NDArray[np.float32]
Leaves = Literal["never", "before training", "before its update is read", "after its update"]
"""When a client drops out of a round."""
COUNTED: tuple[Leaves, ...] = ("never", "after its update")


@dataclass(frozen=True)
class RoundMade:
    """A round that an engine's clients trained in, and what the simulation's fold made of it.

    updates: of those who count. lost: whose updates nobody can read. before, after: the server's state.
    """

    assignment: Assignment
    base: Vector
    before: Mapping[str, NDArray[Any]]
    updates: tuple[Trained, ...]
    lost: tuple[int, ...]
    version: Vector
    after: Mapping[str, NDArray[Any]]


@contextmanager
def opened(name: str, experiment: Experiment, compiled: CompiledPlan, shares: WorkShares) -> Generator[Engine]:
    """An engine with as many workers as there are threads to fold in."""
    setting = Setting(
        name=name,
        experiment=experiment,
        plan=compiled.plan,
        frozen=compiled.frozen,
        trainer=PLAN_TRAINER,
        workers=shares.threads,
        threads=1,
        shares=shares,
    )
    with closing(open_engine(setting)) as engine:
        yield engine


def simulated(
    engine: str,
    workers: int,
    experiment: Experiment,
    compiled: CompiledPlan,
    clients: Sequence[DataSource],
    rounds: Sequence[Sequence[Leaves]],
) -> list[RoundMade]:
    """Rounds one after another, each on the version, server's state and clients' state that the one before made.

    rounds: of each, when each client leaves.
    """
    manifest, made = compiled.plan.manifest, list[RoundMade]()
    population = Population(experiment.schema, clients, manifest.training.holdout)
    versions, state = Versions(manifest.layout, None), dict[str, NDArray[Any]]()
    base = versions.add_tensors(compiled.initial)
    with closing(WorkShares(workers)) as shares, opened(engine, experiment, compiled, shares) as runner:
        for number, leaves in enumerate(rounds, 1):
            assignment = Assignment(
                experiment=experiment.name,
                round=number,
                base=base,
                hyper=experiment.rounds.hyper(number),
                seed=experiment.seed,
                weight_cap=experiment.rounds.weight_cap,
            )
            here = [population.client(one) for one, when in enumerate(leaves) if when != "before training"]
            noised = coordinator_noises(experiment.privacy)
            into = collector(experiment, manifest, assignment, (), state, shares, noised=noised)
            updates, lost = list[Trained](), list[int]()
            for trained in runner.train(here, versions.read(base), assignment):
                if leaves[trained.number] in COUNTED:
                    assert into.add(trained)
                    # An engine may overwrite what it gave.
                    copied = {name: np.array(vector) for name, vector in trained.sections.items()}
                    updates.append(replace(trained, sections=copied))
                else:
                    lost.append(trained.number)
            result = into.result(versions, experiment.server_optimizer, state)
            for trained in updates:
                population.keep(trained.number, trained.state, number, trained.loss)
            updates.sort(key=lambda trained: trained.number)
            made.append(
                RoundMade(
                    assignment=assignment,
                    base=np.array(versions.vector(base)),
                    before=state,
                    updates=tuple(updates),
                    lost=tuple(sorted(lost)),
                    version=np.array(versions.vector(result.version)),
                    after=result.state,
                )
            )
            base, state = result.version, dict(result.state)
    return made


@dataclass
class Coordinator:
    """The jobs that a coordinator gives to its worker process, over blobs in a folder, for one round.

    experiment: whose rule and server optimizer they use.
    """

    folder: Path
    experiment: Experiment
    manifest: Manifest
    round: RoundMade
    _jobs: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        layout = self.manifest.layout
        self.base = self._put("blobs", encode_tensors(layout.unflatten(self.round.base)))
        assert self.base == self.round.assignment.base
        self.state = self._put("blobs", encode_tensors(self.round.before)) if self.round.before else None
        self.plan = self._put("blobs", self.manifest.data)

    def files(self) -> dict[str, str]:
        """The round's updates by task, as devices send them; of those that are lost, the digest alone."""
        kept = {update.task: self._put("updates", self._update_bytes(update)) for update in self.round.updates}
        lost = {task_id(self.round.assignment.round, number): "0" * 64 for number in self.round.lost}
        return kept | lost

    def version(self, updates: Mapping[str, str]) -> tuple[Vector, Mapping[str, NDArray[Any]]]:
        """The version and the server's state that the coordinator makes of update files."""
        answer = self._do(
            "aggregate",
            manifest=self.plan,
            base=self.base,
            updates=updates,
            server=self._server(),
            server_state=self.state,
            reducer=self.experiment.reducer,
            trusted=None,
            weight_cap=self.experiment.rounds.weight_cap,
            lags={"versions": {}, "bases": {}, "exponent": self.experiment.rounds.staleness_exponent},
            central=None,
        )
        return self._read_version(answer)

    def edge(self, name: str, updates: Mapping[str, str]) -> dict[str, str]:
        """The accumulator that an edge aggregator sends on, under its own task."""
        answer = self._do(
            "accumulate",
            manifest=self.plan,
            task=name,
            base=self.base,
            reducer=self.experiment.reducer,
            min_clients=1,
            max_clients=self.experiment.rounds.cohort,
            updates=updates,
            weight_cap=self.experiment.rounds.weight_cap,
        )
        made = answer["accumulator"]
        return {name: self._put("updates", Path(made["path"]).read_bytes())}

    def secret_version(self, secret: "Secret") -> tuple[Vector, Mapping[str, NDArray[Any]]]:
        """What it makes of masked vectors, some of whose clients vanish in each phase."""
        attempt = attempt_kit.start(len(secret.numbers), secret.terms)
        attempt.form()
        gone = {
            phase: [party.place for party in attempt.parties if secret.leaves[secret.numbers[party.index]] == when]
            for phase, when in (("masked", "before its update is read"), ("reveal", "after its update"))
        }
        attempt.deal()
        attempt.gone |= set(gone["masked"])
        attempt.mask(lambda index: secret.words[secret.numbers[index]])
        attempt.agree()
        attempt.gone |= set(gone["reveal"])
        asked = attempt.coordinator
        attempt.reveal()
        assert attempt.coordinator.phase is server.SecAggPhase.SUMMED
        opened = self._open_sum(secret, attempt, asked)
        total = self._put("updates", Path(opened["total"]["path"]).read_bytes())
        answer = self._do(
            "secure_aggregate",
            manifest=self.plan,
            terms=secret.terms.model_dump(mode="json"),
            base=self.base,
            sums=[{"total": total, "survivors": opened["survivors"]}],
            expected=self.experiment.rounds.cohort,
            reducer=self.experiment.reducer,
            central=None,
            server=self._server(),
            server_state=self.state,
        )
        return self._read_version(answer)

    def quantised(self, secret: "Secret") -> dict[str, str]:
        """The values that the masked vectors stand for, by task: each client's as a sum of its own, in float64, which
        loses nothing of them.
        """
        made: dict[str, str] = {}
        for update in self.round.updates:
            alone = secret.alone(update.number)
            data = encode_update(
                task=update.task,
                plan=self.manifest.id,
                base=self.base,
                weight=alone.weight,
                steps=update.steps,
                specs=self.manifest.sections,
                sections=alone.sections,
                kind="accumulator",
                clients=1,
            ).data
            made[update.task] = self._put("updates", data)
        return made

    def sections(self, update: Trained) -> dict[str, NDArray[Any]]:
        """What an update says once it is read."""
        read = read_update(self._update_bytes(update), self.manifest.sections)
        return {name: read.read(name) for name in read.sections}

    def _open_sum(self, secret: "Secret", attempt: attempt_kit.Attempt, asked: server.ServerState) -> Mapping[str, Any]:
        spec = vector_spec(secret.terms.sections)
        header = MaskedHeader(
            attempt=secret.terms.attempt, task="", plan=self.manifest.id, base=self.base, spec=spec.digest
        )
        tasks = {place: task_id(1, place) for place in attempt.coordinator.survivors}
        vectors = {
            task: self._put("updates", encode_masked(replace(header, task=task), attempt.masked[place]))
            for place, task in tasks.items()
        }
        revealed = {str(place): message.model_dump_json() for place, message in attempt.reveals.items()}
        return self._do(
            "unmask",
            cache=str(self.folder / "sum"),
            header=asdict(header),
            sections=[section.model_dump(mode="json") for section in secret.terms.sections],
            vectors=vectors,
            state=self._write("state", to_json(asked)),
            revealed=self._write("revealed", revealed),
        )

    def _do(self, job: str, **arguments: Any) -> dict[str, Any]:
        """A job's result. Each has a folder of its own for what it makes."""
        self._jobs += 1
        blobs = {"url": self.folder.as_uri(), "scratch": str(self.folder / "scratch")}
        out = self.folder / f"{job}-{self._jobs}"
        out.mkdir()
        answer = perform(json.dumps({"job": job, "arguments": {"blobs": blobs, "out": str(out)} | arguments}))
        assert "result" in answer, answer
        return answer["result"]

    def _read_version(self, answer: Mapping[str, Any]) -> tuple[Vector, Mapping[str, NDArray[Any]]]:
        weights = decode_tensors(Path(answer["weights"]["path"]).read_bytes())
        state = {} if answer["state"] is None else read_file(Path(answer["state"]["path"]))
        return self.manifest.layout.flatten(weights), state

    def _server(self) -> dict[str, Any]:
        optimizer = self.experiment.server_optimizer
        return {"name": optimizer.name, "parameters": dict(optimizer.parameters)}

    def _update_bytes(self, update: Trained) -> bytes:
        """As a device sends it."""
        if update.update is not None:
            return update.update
        specs, codec = self.manifest.sections, choose(self.manifest.codecs)
        return encode_update(
            task=update.task,
            plan=self.manifest.id,
            base=self.base,
            weight=update.weight,
            steps=update.steps,
            specs=specs,
            sections=update.sections,
            codecs={spec.name: codec for spec in specs if not spec.is_extra},
        ).data

    def _put(self, shelf: Shelf, data: bytes) -> str:
        digest = sha256_hex(data)
        path = self.folder / key_of(shelf, digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return digest

    def _write(self, name: str, value: object) -> str:
        path = self.folder / name
        path.write_text(json.dumps(value), encoding="utf-8")
        return str(path)


@dataclass
class Secret:
    """The same round as a secret sum.

    numbers: the clients that begin it. words: by client, what it adds.
    """

    manifest: Manifest
    base: str
    terms: SecureTerms
    numbers: Sequence[int]
    leaves: Sequence[Leaves]
    words: Mapping[int, NDArray[np.uint32]]

    @staticmethod
    def of(experiment: Experiment, coordinator: Coordinator, leaves: Sequence[Leaves]) -> "Secret":
        """The secret sum of a round's updates, as they are once they have been through their codec.

        experiment: with secure aggregation. Who is lost adds zeros, and is lost under its mask.
        Raises errors.ExperimentError where these sections have no place in a ring.
        """
        manifest, made = coordinator.manifest, coordinator.round
        assignment = with_terms(experiment, manifest, made.assignment, "train", made.before)
        terms = SecureTerms.model_validate_json(assignment.secure or "")
        length = vector_spec(terms.sections).length
        words = {number: np.zeros(length, np.uint32) for number in made.lost}
        for update in made.updates:
            sections, weight = coordinator.sections(update), min(update.weight, terms.weight_cap)
            data, _ = in_ring(manifest, "train", update.number, sections, weight, assignment)
            words[update.number] = np.frombuffer(data, np.uint32)
        return Secret(manifest, made.assignment.base, terms, sorted(words), leaves, words)

    def alone(self, number: int) -> Decoded:
        """What one client's vector says, were it the only one."""
        return decode(
            self.terms.sections,
            self.manifest.sections,
            reduced(self.words[number], vector_spec(self.terms.sections)),
            survivors=1,
            weight_cap=self.terms.weight_cap,
            binding=Binding(self.manifest.id, self.base),
        )

    def simulated(self, experiment: Experiment, made: RoundMade) -> Vector:
        """The version that a simulation makes of it, without masks."""
        versions = Versions(self.manifest.layout, None)
        versions.add(made.base)
        assignment = replace(made.assignment, secure=self.terms.model_dump_json())
        numbers = [update.number for update in made.updates]
        with closing(WorkShares(1)) as shares:
            noised = coordinator_noises(experiment.privacy)
            into = collector(experiment, self.manifest, assignment, numbers, made.before, shares, noised=noised)
            for update in made.updates:
                assert into.add(replace(update, sections={}, update=self.words[update.number].tobytes()))
            result = into.result(versions, experiment.server_optimizer, made.before)
        return np.array(versions.vector(result.version))
