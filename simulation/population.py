"""The clients of a simulation: rows that are made when they are needed, and the state that each one keeps."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast, overload

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.eligibility import ClientHistory, Holdings, candidate, eligible
from coterie.aggregation.selection import Candidate
from coterie.client_sdk.device.holdout import split
from coterie.client_sdk.rows.loading import DataSource, check_source, load_rows
from coterie.compute.data.supply import AnyRows, bytes_of, column_of, row_count
from coterie.errors import ConfigurationError, ExperimentError
from coterie.protocol.arrays import ArraysByName, FloatArrays
from coterie.protocol.device import TaskKind
from coterie.protocol.frames import is_frame
from coterie.protocol.privacy import Privacy
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema
from coterie.simulation.partition.value import rows_of

CACHED = 128 << 20
"""Bytes of rows that are kept ready for a client's next turn."""


class VirtualClients(Sequence[DataSource]):
    """``count`` clients whose rows are made when a client is chosen and dropped afterwards, so that ten thousand cost
    no more memory than ten.

    rows(number): a client's rows, by feature and label name, or whatever else a device takes as its data; the same for
        the same number each time, and callable from several threads.
    Raises ConfigurationError for a count below one.
    """

    def __init__(self, count: int, rows: Callable[[int], DataSource]) -> None:
        if isinstance(count, bool) or not isinstance(cast(object, count), int | np.integer) or count < 1:
            raise ConfigurationError(f"There must be a whole number of clients of at least one, not {count!r}.")
        if not callable(rows):
            raise ConfigurationError(
                f"rows must be a function of a client's number that gives its rows, not a {type(rows).__name__}.",
                hint="Give a list of clients to simulate(...) as it is, and parts to VirtualClients.of(arrays, parts).",
            )
        self._count = int(count)
        self._rows = rows

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> DataSource: ...
    @overload
    def __getitem__(self, index: slice) -> "VirtualClients": ...
    def __getitem__(self, index: int | slice) -> "DataSource | VirtualClients":
        numbers = range(self._count)[index]
        if isinstance(numbers, int):
            return self._rows(numbers)
        return VirtualClients(len(numbers), lambda number: self._rows(numbers[number]))

    @staticmethod
    def of(arrays: ArraysByName, parts: Sequence[NDArray[np.int64]]) -> "VirtualClients":
        """Clients over one data set, each with the rows of its part, taken out when it is chosen.

        arrays: of one common length.
        parts: row numbers, one array per client, as the partitioners return them; the changes that belong to a
            partition are made each time.
        """
        return VirtualClients(len(parts), lambda number: rows_of(arrays, parts, number))


@dataclass(frozen=True)
class Shard:
    """A client's rows: those it trains on and those it holds out; of a data set no more is in memory than a batch."""

    train: AnyRows
    held_out: AnyRows

    @property
    def can_evaluate(self) -> bool:
        """Whether any row is held out."""
        return row_count(self.held_out) > 0

    @property
    def examples(self) -> int:
        """How many rows it trains on."""
        return row_count(self.train)

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return bytes_of(self.train) + bytes_of(self.held_out)


@dataclass(frozen=True)
class Facts:
    """How many rows a client trains on, the classes among them, and whether it holds out any."""

    examples: int
    labels: frozenset[int]
    can_evaluate: bool


@dataclass(frozen=True)
class Client:
    """One client in one round.

    state: what it has committed.
    shard(): its rows, loaded when asked for.
    source: the name of its data where that is a file, a folder or ``module:function``, which another process can read
        itself.
    """

    number: int
    state: FloatArrays
    shard: Callable[[], Shard]
    source: str | None = None

    def rows(self, kind: TaskKind) -> AnyRows:
        """The rows that a job of this kind is about."""
        shard = self.shard()
        return shard.train if kind == "train" else shard.held_out


@dataclass(frozen=True)
class ParticipationRecord:
    """What is known of a client that took part: its mean loss then, the round, and how often it did."""

    loss: float | None
    last_round: int
    times: int


class Population:
    """All clients. Rows are checked as a device checks them and split as it splits them; those used last are kept,
    up to a bound. May be used from several threads.

    A list or tuple of arrays is checked whole at the start; anything else when a client is first chosen.
    Raises DataError naming the client (or the file); ExperimentError for no clients.
    """

    def __init__(
        self, schema: DataSchema, sources: Sequence[DataSource], holdout: float, *, cached: int = CACHED
    ) -> None:
        given = cast(object, sources)
        if (
            isinstance(given, str | Path | Mapping | np.ndarray)
            or is_frame(given)
            or not (hasattr(given, "__len__") and hasattr(given, "__getitem__"))
        ):
            raise ExperimentError(
                f"clients must be a list with the rows of each client, not a {type(cast(object, sources)).__name__}.",
                hint="Give [rows_of_one, rows_of_another, ...], each arrays by name, or VirtualClients(...).",
                code="experiment_invalid",
            )
        if not len(sources):
            raise ExperimentError(
                "A simulation needs at least one client.",
                hint="Give the rows of each client: paths, or arrays by name.",
                code="no_clients",
            )
        self._schema = schema
        self._sources = sources
        self._holdout = holdout
        self._cached = cached
        self._lock = threading.Lock()
        self._ready: OrderedDict[int, Shard] = OrderedDict()
        self._bytes = 0
        self._facts: dict[int, Facts] = {}
        self.states: dict[int, FloatArrays] = {}
        self.participation: dict[int, ParticipationRecord] = {}
        if isinstance(sources, list | tuple):
            for number, source in enumerate(cast(Sequence[DataSource], sources)):
                if isinstance(source, Mapping):
                    schema.check(cast(ArraysByName, source), f"client {number}")
                else:
                    check_source(source, f"client {number}: its rows")

    def __len__(self) -> int:
        return len(self._sources)

    def client(self, number: int) -> Client:
        """A client as it stands now."""
        source = self._sources[number] if isinstance(self._sources, list | tuple) else None
        name = str(source) if isinstance(source, str | Path) else None
        return Client(number, self.states.get(number, {}), lambda: self.shard(number), name)

    def keep(self, number: int, state: FloatArrays, round: int, loss: float | None) -> None:
        """What becomes of a client when a round counted its update. Methods without state leave it empty."""
        if state:
            self.states[number] = dict(state)
        before = self.participation.get(number)
        self.participation[number] = ParticipationRecord(loss, round, 1 + (before.times if before else 0))

    def candidates(self, policy: RoundPolicy, round: int, privacy: Privacy | None) -> list[Candidate]:
        """The clients that a round may choose from, by the rules of eligibility.

        privacy: what is accounted for.

        What a policy asks of the rows is looked up in them, once for each client; a policy that asks nothing loads
        nobody's rows.
        """
        weighs = policy.selection not in ("uniform", "cyclic")
        found: list[Candidate] = []
        for number in range(len(self)):
            past, ask = self._contribution(number), partial(self._holdings, number)
            if eligible(policy, ask, past, round=round, privacy=privacy):
                found.append(candidate(policy, name_of(number), ask() if weighs else None, past))
        return found

    def _holdings(self, number: int) -> Holdings:
        facts = self.facts(number)
        return Holdings(facts.examples, facts.labels)

    def _contribution(self, number: int) -> ClientHistory | None:
        record = self.participation.get(number)
        if record is None:
            return None
        return ClientHistory(last_round=record.last_round, times=record.times, loss=record.loss)

    def facts(self, number: int) -> "Facts":
        """What a client would say of its rows."""
        if number not in self._facts:
            shard = self.shard(number)
            label = self._schema.label
            classes: list[int] = np.unique(column_of(shard.train, label.name)).tolist() if label.is_class else []
            self._facts[number] = Facts(shard.examples, frozenset(classes), shard.can_evaluate)
        return self._facts[number]

    def shard(self, number: int) -> Shard:
        """A client's rows."""
        with self._lock:
            if number in self._ready:
                self._ready.move_to_end(number)
                return self._ready[number]
        shard = Shard(*split(self._load(number), self._holdout))
        with self._lock:
            if number not in self._ready and shard.size <= self._cached:
                self._ready[number] = shard
                self._bytes += shard.size
                while self._bytes > self._cached:
                    self._bytes -= self._ready.popitem(last=False)[1].size
        return shard

    def _load(self, number: int) -> AnyRows:
        """Arrays, whose errors name the client; anything else as a device reads it, whose errors name the file, if
        there is one, and get a note of whose it is.
        """
        try:
            source = self._sources[number]
            if not isinstance(source, Mapping):
                check_source(source, f"client {number}: its rows")
                return load_rows(source, self._schema)
        except Exception as error:
            error.add_note(f"Raised while the rows of virtual client {number} were read.")
            raise
        return self._schema.check(cast(ArraysByName, source), f"client {number}")


def name_of(number: int) -> str:
    """A client as selectors know it: names sort as numbers do."""
    return f"{number:09d}"
