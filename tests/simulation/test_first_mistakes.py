"""What people give `simulate` at first, and the sentence that they get for it."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from simulation_kit import CLIENTS, experiment

from coterie.errors import ConfigurationError, CoterieError, DataError, ExperimentError
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
    ({"trainer": 3}, "A trainer has train"),
    ({"trainer": train}, "A trainer has train"),
    ({"trainer": Mine}, "A trainer has train"),
    ({"workers": True}, "workers must be a whole number"),
    ({"experiment": "digits"}, "takes an Experiment first"),
    ({"engine": None}, "no engine 'None'"),
    ({"on_event": None}, "on_event must be a function"),
    ({"watch": 3}, "watch must be a function"),
]


@pytest.mark.parametrize(("given", "sentence"), GIVEN)
def test_what_is_of_another_kind_is_refused_by_what_it_should_be(given: dict[str, Any], sentence: str) -> None:
    arguments: dict[str, Any] = {"experiment": experiment(), **given}
    with pytest.raises(CoterieError, match=sentence):
        simulate(arguments.pop("experiment"), CLIENTS, **arguments)
