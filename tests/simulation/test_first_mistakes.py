"""What people give `simulate` at first, and the sentence that they get for it."""

import re
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from simulation_kit import CLIENTS, SCHEMA, experiment

from coterie.aggregation.experiment import Experiment
from coterie.aggregation.external_model import ExternalModel
from coterie.client_sdk.device.trainers.external import ExternalTrainer, FitResult, FitTask, Params
from coterie.errors import ConfigurationError, CoterieError, DataError, ExperimentError
from coterie.protocol.rounds import RoundPolicy
from coterie.simulation import VirtualClients, simulate

X, Y = CLIENTS[0]["x"], CLIENTS[0]["y"]


def kind(value: object) -> str:
    """A case's name."""
    return type(value).__name__


@pytest.mark.parametrize(
    "clients",
    [6, None, "rows.csv", CLIENTS[0], dict(enumerate(CLIENTS)), (client for client in CLIENTS), np.zeros((6, 4))],
    ids=kind,
)
def test_clients_that_are_no_list_are_refused(clients: Any) -> None:
    with pytest.raises(ExperimentError, match="clients must be a list with the rows of each client, not a ") as caught:
        simulate(experiment(), clients)
    assert caught.value.reason == "experiment_invalid"


@pytest.mark.parametrize("rows", [None, (X, Y), X, 3], ids=kind)
@pytest.mark.parametrize("virtual", [False, True])
def test_rows_that_are_no_arrays_by_name_are_refused_with_the_clients_number(rows: Any, virtual: bool) -> None:
    clients: Any = VirtualClients(6, lambda number: rows) if virtual else [*CLIENTS, rows]
    with pytest.raises(DataError, match=r"^client \d: its rows must be arrays by feature and label name") as caught:
        simulate(experiment(), clients)
    assert caught.value.reason == "data_missing"


MAKES: list[Callable[[], object]] = [
    lambda: VirtualClients(cast(Any, "6"), lambda number: CLIENTS[number]),
    lambda: VirtualClients(cast(Any, 6.0), lambda number: CLIENTS[number]),
    lambda: VirtualClients(True, lambda number: CLIENTS[number]),
    lambda: VirtualClients(6, cast(Any, CLIENTS)),
]


@pytest.mark.parametrize("make", MAKES)
def test_virtual_clients_are_a_number_and_a_function(make: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"whole number of clients|rows must be a function"):
        make()


def train(params: Any, task: Any) -> Any:
    """A function where a trainer must be."""
    return params


class Mine:
    """A class where its instance must be."""

    train = evaluate = staticmethod(train)


GIVEN: list[tuple[dict[str, Any], str]] = [
    ({"trainer": 3}, "A trainer needs train"),
    ({"trainer": train}, "A trainer needs train"),
    ({"trainer": Mine}, "A trainer needs train"),
    ({"workers": True}, "workers must be a whole number"),
    ({"experiment": "digits"}, "takes an Experiment first"),
    ({"engine": None}, "no engine 'None'"),
    ({"folder": 5}, "folder must be a path"),
    ({"folder": "run\0"}, "folder must be a path"),
    ({"on_event": "no"}, "on_event must be a function"),
    ({"watch": 3}, "watch must be a function"),
]


@pytest.mark.parametrize(("given", "sentence"), GIVEN)
def test_what_is_of_another_kind_is_refused_by_what_it_should_be(given: dict[str, Any], sentence: str) -> None:
    arguments: dict[str, Any] = {"experiment": experiment(), **given}
    with pytest.raises(CoterieError, match=sentence):
        simulate(arguments.pop("experiment"), CLIENTS, **arguments)


def fails(params: Params, task: FitTask) -> FitResult:
    raise ZeroDivisionError("on purpose")


@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_trainer_of_ones_own_raises_says_at_which_client(workers: int) -> None:
    policy = RoundPolicy(rounds=2, cohort=4, evaluate_every=0)
    external = Experiment(name="own", model=ExternalModel({"w": (3,)}), schema=SCHEMA, rounds=policy)
    with pytest.raises(ZeroDivisionError, match="on purpose") as raised:
        simulate(external, CLIENTS, trainer=ExternalTrainer(fails), workers=workers)
    assert re.fullmatch(r"Raised by virtual client \d in round 1\.", "\n".join(raised.value.__notes__))


@pytest.mark.parametrize("engine", ["threads", "batched"])
def test_what_reading_rows_raises_says_whose_they_are(engine: str) -> None:
    def rows(number: int) -> dict[str, Any]:
        if number == 2:
            raise KeyError("no such file")
        return CLIENTS[number]

    everybody = RoundPolicy(rounds=1, cohort=4)
    with pytest.raises(KeyError, match="no such file") as raised:
        simulate(experiment(rounds=everybody), VirtualClients(4, rows), engine=engine)
    assert raised.value.__notes__ == ["Raised while the rows of virtual client 2 were read."]
    given: list[Any] = [*CLIENTS[:3], lambda: {"y": np.zeros(1)}]
    with pytest.raises(DataError) as missing:
        simulate(experiment(rounds=everybody), given, engine=engine)
    assert missing.value.__notes__ == ["Raised while the rows of virtual client 3 were read."]
