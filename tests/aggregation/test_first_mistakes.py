"""What people write at first: values of the wrong kind, and wishes that exclude each other."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from coterie import errors
from coterie.aggregation.horizontal import IFCA, FedAsync, FedDyn, FedExP, FedProx, Moon, QFedAvg, Scaffold
from coterie.aggregation.reducers import aggregate
from coterie.aggregation.selection import Candidate, select
from coterie.aggregation.server_optimizers import server_adagrad, server_adam, server_sgd, server_yogi
from coterie.protocol.rounds import RoundPolicy

TEXT: Any = "0.1"
METHODS: dict[str, Callable[[Any], object]] = {
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "feddyn": lambda value: FedDyn(4, value),
    "fedexp": FedExP,
    "moon": Moon,
    "qfedavg": QFedAvg,
    "ifca": IFCA,
    "fedasync": FedAsync,
}
SERVERS: dict[str, Callable[..., object]] = {
    "sgd": server_sgd, "adagrad": server_adagrad, "adam": server_adam, "yogi": server_yogi,
}  # fmt: skip


@pytest.mark.parametrize("value", [TEXT, None, True, [1.0]], ids=str)
@pytest.mark.parametrize("name", METHODS)
def test_what_is_no_number_is_refused_by_the_method(name: str, value: Any) -> None:
    with pytest.raises(errors.ExperimentError, match="needs .* number of at least") as caught:
        METHODS[name](value)
    assert caught.value.reason == "algorithm_parameter"


@pytest.mark.parametrize("value", [TEXT, None, True, [1.0]], ids=str)
@pytest.mark.parametrize("name", SERVERS)
def test_what_is_no_number_is_refused_by_the_server_optimizer(name: str, value: Any) -> None:
    with pytest.raises(errors.ExperimentError, match="The server's lr must be positive") as caught:
        SERVERS[name](lr=value)
    assert caught.value.reason == "server_optimizer"


def test_numpys_numbers_are_numbers() -> None:
    assert server_adam(lr=np.float32(0.5)).parameters["lr"] == 0.5  # pyright: ignore[reportArgumentType]
    assert Scaffold(np.int64(4)).parameters == Scaffold(4).parameters  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("codec", [None, 3, ("int8",)], ids=str)
def test_a_codec_that_is_no_name_is_refused(make_experiment: Any, codec: Any) -> None:
    with pytest.raises(errors.ExperimentError, match="codecs must be names such as 'int8'") as caught:
        make_experiment(codecs=(codec,))
    assert caught.value.reason == "experiment_invalid"


def test_a_scheduled_number_that_float32_does_not_hold_is_refused(make_experiment: Any) -> None:
    policy = RoundPolicy(rounds=2, cohort=2, hyper_schedule={"lr": (0.1, 1e39)})
    with pytest.raises(errors.ExperimentError, match="does not fit float32"):
        make_experiment(rounds=policy)


@pytest.mark.parametrize(
    ("reference", "error", "reason"),
    [
        ("x", errors.InputError, "updates_shape"),
        ([[1.0, 1.0]], errors.InputError, "updates_shape"),
        ([], errors.InputError, "updates_shape"),
        ([1.0, np.nan], errors.UpdateRefused, "not_finite"),
    ],
)
def test_a_reference_that_is_none_is_refused_as_what_it_is(
    reference: Any, error: type[errors.CoterieError], reason: str
) -> None:
    with pytest.raises(error, match=r"^The reference ") as caught:
        aggregate("fltrust", [[1.0, 2.0], [1.0, 1.0]], reference=reference)
    assert caught.value.reason == reason


@pytest.mark.parametrize("rest", [{"rest_rounds": 1}, {"rest_s": 60.0}])
@pytest.mark.parametrize("selection", ["cyclic", "cyclic()"])
def test_turns_and_rest_do_not_go_together(make_experiment: Any, selection: str, rest: dict[str, Any]) -> None:
    with pytest.raises(errors.ExperimentError, match='selection="least_recent"') as caught:
        make_experiment(rounds=RoundPolicy(rounds=3, cohort=1, selection=selection, **rest))
    assert caught.value.reason == "experiment_combination"
    make_experiment(rounds=RoundPolicy(rounds=3, cohort=1, selection="least_recent", **rest))


@pytest.mark.parametrize(("clients", "count", "rest"), [(4, 1, 1), (6, 2, 1), (7, 1, 3)])
def test_least_recent_gives_everybody_a_turn_who_rests_in_between(clients: int, count: int, rest: int) -> None:
    """In the same places a count through those who may be asked never comes to some."""
    last: dict[str, int] = {}
    times: Counter[str] = Counter()
    for round in range(1, 10 * clients + 1):
        rested = [f"{number:03d}" for number in range(clients)]
        rested = [name for name in rested if name not in last or round - last[name] > rest]
        candidates = [Candidate(id=name, last_round=last.get(name)) for name in rested]
        for chosen in select("least_recent", candidates, count, round=round, seed=0):
            last[chosen] = round
            times[chosen] += 1
    assert len(times) == clients and max(times.values()) - min(times.values()) <= 1


def test_evaluation_rows_of_no_known_kind_are_refused(make_experiment: Any) -> None:
    with pytest.raises(errors.ExperimentError, match="evaluation must be a mapping .* a file, a folder, .* not '3'"):
        make_experiment(evaluation=3)
