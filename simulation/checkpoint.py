"""A run between two rounds, on disk: whoever was killed continues bit for bit.

``checkpoint.json`` names everything by its SHA-256: the versions that lie beside it, and the states of the clients and
of the server in ``states/``. It is written last and whole, so a folder always holds one consistent moment.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from coterie.aggregation.experiment import Experiment
from coterie.aggregation.plan.bundle import Plan
from coterie.aggregation.progress import ExperimentProgress, Reason
from coterie.aggregation.record import RoundRecord
from coterie.aggregation.server_optimizers import OptimizerState
from coterie.errors import ExperimentError, InputError
from coterie.protocol.arrays import FloatArrays
from coterie.protocol.canonical import canonical_json, sha256_hex
from coterie.protocol.conversion import from_text, to_json
from coterie.protocol.files import create_durably, make_folder, write_durably
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.tensors import decode_tensors, encode_tensors
from coterie.simulation.claim import Claim
from coterie.simulation.population import ParticipationRecord
from coterie.simulation.versions import damaged, read_named

FILE = "checkpoint.json"
STATES = "states"
_FORMAT = "coterie-simulation-3"
# Of what is known by a digest alone there is no more to say.
_NAMES = {"plan": "name, model, loss, optimizer, method, data schema or codecs", "initial": "the first weights"}


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What a simulation needs to go on.

    progress: with every begun round over.
    clients: the states of those that keep any.
    participation: what is known of those that took part.
    informed: who has the plan.
    air, before: of buffered rounds, the tasks that are out or came back, and the last round.
    """

    progress: ExperimentProgress
    records: Sequence[RoundRecord]
    clients: Mapping[int, FloatArrays]
    server: OptimizerState
    participation: Mapping[int, ParticipationRecord]
    informed: frozenset[int]
    air: Mapping[str, Any] | None = None
    before: str | None = None


def identity(experiment: Experiment, plan: Plan, initial: str, clients: int) -> Mapping[str, Any]:
    """What must be equal for a run to be continued, by name, as JSON values: all but the number of rounds and their
    schedule, which may grow.

    initial: the first version's digest. Data is not part of it: whoever continues gives the same clients.
    """
    policy = experiment.rounds.model_dump(mode="json", exclude={"rounds", "hyper_schedule"})
    server = experiment.server_optimizer
    return {
        "plan": plan.id,
        "initial": initial,
        "clients": clients,
        "seed": experiment.seed,
        "policy": json.dumps(policy, sort_keys=True),
        "reducer": experiment.reducer,
        "secure": None if experiment.secure is None else experiment.secure.model_dump(mode="json"),
        "privacy": None if experiment.privacy is None else experiment.privacy.model_dump(mode="json"),
        "server": json.dumps([server.name, dict(server.parameters)], sort_keys=True),
    }


class CheckpointFolder:
    """Where a run is kept.

    identity: see `identity`.
    policy: how many rounds there are to be, and their schedule.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any], policy: RoundPolicy) -> None:
        """Raises ConfigurationError (``run_in_use``) where another process keeps a run."""
        self._folder = folder
        self._claim = Claim(folder)
        self._made_of = identity
        self._identity = sha256_hex(canonical_json(identity))
        self._policy = policy
        self._named: dict[int, tuple[FloatArrays, str]] = {}

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, then drop the states that only an older one needs.

        Only what changed since the last call is written. Raises StorageError.
        """
        make_folder(self._folder / STATES)
        self._named = {number: self._name(number, state) for number, state in checkpoint.clients.items()}
        clients = {str(number): digest for number, (_, digest) in sorted(self._named.items())}
        server = self._write(checkpoint.server) if checkpoint.server else None
        value = {
            "format": _FORMAT,
            "identity": self._identity,
            "made_of": dict(self._made_of),
            "planned": {"rounds": self._policy.rounds, "schedule": dict(self._policy.hyper_schedule or {})},
            "progress": to_json(checkpoint.progress),
            "rounds": [record.to_dict() for record in checkpoint.records],
            "clients": clients,
            "server": server,
            "standings": {str(number): asdict(record) for number, record in checkpoint.participation.items()},
            "informed": sorted(checkpoint.informed),
            "air": checkpoint.air,
            "before": checkpoint.before,
        }
        write_durably(self._folder / FILE, json.dumps(value).encode())
        needed = {*clients.values(), server}
        for path in (self._folder / STATES).iterdir():
            if path.stem not in needed:
                path.unlink()

    def load(self) -> Checkpoint | None:
        """The last checkpoint; None when there is none.

        Raises ExperimentError (``checkpoint_mismatch``) for one of another experiment, or of more rounds, or of rounds
        with another schedule, naming what differs, or of another version of coterie; StorageError
        (``checkpoint_damaged``) for one that cannot be read.
        """
        path = self._folder / FILE
        if not path.exists():
            return None
        try:
            value = cast(dict[str, Any], json.loads(path.read_bytes()))
            other = None if value["format"] == _FORMAT else str(value["format"])
            if other is None and self._identity == value["identity"] and self._goes_on(**value["planned"]):
                return Checkpoint(
                    progress=from_text(ExperimentProgress, json.dumps(value["progress"])),
                    records=[RoundRecord.from_dict(record) for record in value["rounds"]],
                    clients={int(number): self._read(digest) for number, digest in value["clients"].items()},
                    server=self._read(value["server"]) if value["server"] else {},
                    participation={int(n): ParticipationRecord(**record) for n, record in value["standings"].items()},
                    informed=frozenset(int(number) for number in value["informed"]),
                    air=_of_kind(value["air"], dict, None),
                    before=_of_kind(value["before"], str, None),
                )
            found = "" if other else self._differences(value.get("made_of"), value["planned"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, InputError) as error:
            raise damaged(path, str(error)) from error
        if other is not None:
            raise ExperimentError(
                f"The checkpoint {path} has the format {other[:40]!r}; this version of coterie reads {_FORMAT!r}.",
                hint="Continue with the version of coterie that wrote it, or use another folder.",
                code="checkpoint_mismatch",
            )
        raise ExperimentError(
            f"The checkpoint {path} is of another experiment, seed, round policy or number of clients{found}.",
            hint="Continue with the same settings (only the number of rounds may grow), or use another folder.",
            code="checkpoint_mismatch",
        )

    def clear(self) -> None:
        """Forget the checkpoint, since a new run begins here."""
        (self._folder / FILE).unlink(missing_ok=True)

    def _name(self, number: int, state: FloatArrays) -> tuple[FloatArrays, str]:
        kept = self._named.get(number)
        # A state that a later round counted is another object, so an equal one has not changed.
        return kept if kept is not None and kept[0] is state else (state, self._write(state))

    def _write(self, tensors: FloatArrays | OptimizerState) -> str:
        data = encode_tensors(tensors)
        digest = sha256_hex(data)
        create_durably(self._folder / STATES / f"{digest}.safetensors", data)
        return digest

    def _read(self, digest: str) -> dict[str, Any]:
        return decode_tensors(read_named(self._folder / STATES / f"{digest}.safetensors", digest))

    def _differences(self, there: Mapping[str, Any] | None, planned: Mapping[str, Any]) -> str:
        """What differs between the checkpoint's run and this one, in a few words; nothing where it does not tell."""
        if there is None:
            return ""
        told = [
            f"{_NAMES[name]} differ" if name in _NAMES else f"{name} was {_format(was)} and is {_format(now)}"
            for name, was, now in _unequal(there, self._made_of)
        ]
        if planned["rounds"] > self._policy.rounds:
            told.append(f"rounds was {planned['rounds']} and is {self._policy.rounds}")
        elif not self._goes_on(**planned):
            told.append("the schedule of its rounds differs")
        return f": {'; '.join(told)}" if told else ""

    def _goes_on(self, rounds: int, schedule: Mapping[str, Sequence[float]]) -> bool:
        """Whether this policy has those rounds, as they were, and perhaps more."""
        mine = {name: list(values[:rounds]) for name, values in (self._policy.hyper_schedule or {}).items()}
        return rounds <= self._policy.rounds and mine == {name: list(values) for name, values in schedule.items()}


def _unequal(there: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """(name, there, here) of what differs; of the round policy each setting by itself."""
    for name, now in here.items():
        was = there.get(name)
        if was == now:
            continue
        if name != "policy":
            yield name, was, now
            continue
        before, after = json.loads(str(was)), json.loads(now)
        yield from ((key, before.get(key), after[key]) for key in after if before.get(key) != after[key])


def _format(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _of_kind(value: Any, *kinds: type | None) -> Any:
    """The value. Raises TypeError for one of another kind."""
    if not isinstance(value, tuple(type(None) if kind is None else kind for kind in kinds)):
        raise TypeError(f"{str(value)[:40]!r} has the wrong type")
    return value


def between_rounds(progress: ExperimentProgress) -> ExperimentProgress:
    """A progress whose next round was begun but not done, as if it were not begun."""
    return progress if progress.finished is not None else replace(progress, started=progress.started - 1)


def go_on(progress: ExperimentProgress, rounds: int) -> ExperimentProgress:
    """A progress that completed all of its rounds, as if it went on, if there are more now."""
    more = progress.finished is Reason.COMPLETED and progress.started < rounds
    return replace(progress, finished=None) if more else progress
