"""Methods of a user's own: three of the literature, each in a file of the examples, against NumPy."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from simulation_kit import CLIENTS, example, experiment, rows

from coterie import errors
from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.horizontal.algorithm import Algorithm, ClientPart
from coterie.aggregation.methods import algorithm, register
from coterie.compute.nn.zoo import mlp
from coterie.compute.optim import sgd
from coterie.protocol.privacy import ExampleLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.simulation import simulate_full

DATA = rows(24, seed=5)
Floats = NDArray[np.float64]


def softmax(z: Floats) -> Floats:
    powers = np.exp(z - z.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


OWN = np.eye(3)[DATA["y"]]
X = np.concatenate([DATA["x"], np.ones((24, 1))], 1).astype(np.float64)


def plain(w: Floats) -> Floats:
    return X.T @ (softmax(X @ w) - OWN) / 24


def calibrated(w: Floats, base: Floats) -> Floats:
    return X.T @ (softmax(X @ w - 0.7 * OWN.sum(0) ** -0.25) - OWN) / 24


def sharp(w: Floats, base: Floats) -> Floats:
    gradient = plain(w)
    return plain(w + 0.3 * gradient / np.linalg.norm(gradient))


def distilled(w: Floats, base: Floats) -> Floats:
    def others(weights: Floats) -> Floats:
        return softmax(np.where(OWN > 0, -np.inf, X @ weights / 2.0))

    return plain(w) + 1.5 * X.T @ (others(w) - others(base)) / 2.0 / 24


@pytest.mark.parametrize(
    ("name", "maker", "numbers", "gradient"),
    [
        ("fedlc", "FedLC", {"classes": 3, "tau": 0.7}, calibrated),
        ("fedsam", "FedSAM", {"rho": 0.3}, sharp),
        ("fedntd", "FedNTD", {"beta": 1.5, "tau": 2.0}, distilled),
    ],
)
def test_a_method_of_the_literature_is_one_file_and_true_to_its_paper(
    name: str, maker: str, numbers: dict[str, float], gradient: Callable[[Floats, Floats], Floats]
) -> None:
    drawn = np.random.Generator(np.random.PCG64(1)).normal(size=(5, 3))
    initial = {"0.weight": drawn[:4].T.astype(np.float32), "0.bias": drawn[4].astype(np.float32)}
    asked = experiment(
        model=mlp((4, 3)),
        algorithm=getattr(example(name), maker)(**numbers),
        optimizer=sgd(0.5),
        initial=initial,
        batch_size=24,
        epochs=3,
        holdout=0.0,
        rounds=RoundPolicy(rounds=2, cohort=1, min_updates=1, evaluate_every=0),
    )
    done = simulate_full(asked, [DATA])
    w = drawn.astype(np.float32).astype(np.float64)
    for _ in range(2):
        base = w
        for _ in range(3):
            w = w - 0.5 * gradient(w, base)
    found = np.concatenate([done.weights["0.weight"].T, done.weights["0.bias"][None]])
    assert np.allclose(found, w, rtol=0, atol=2e-6)
    assert not np.allclose(w, drawn, atol=1e-2)


def test_a_method_is_unknown_until_it_is_registered_and_keeps_out_of_coteries_names() -> None:
    def Mine(strength: float = 2.0) -> Algorithm:
        return Algorithm(name="mine_alone", parameters={"strength": strength})

    asked = experiment(algorithm=Mine(), rounds=RoundPolicy(rounds=1, cohort=2, evaluate_every=0))
    with pytest.raises(errors.ExperimentError, match="register") as caught:
        simulate_full(asked, CLIENTS)
    assert caught.value.reason == "unknown_algorithm"
    register("mine_alone", Mine)
    assert simulate_full(asked, CLIENTS).history.rounds[0].state == "committed"
    for name, made in (("fedavg", Mine), ("my method", Mine), ("mine", Mine())):
        with pytest.raises(errors.ExperimentError) as caught:
            register(name, made)  # pyright: ignore[reportArgumentType]
        assert caught.value.reason == "algorithm_parameter"
    register("other_name", Mine)
    with pytest.raises(errors.ExperimentError):
        algorithm("other_name", {"strength": 1.0})


@pytest.mark.usefixtures("by_renyi")
def test_a_gradient_at_other_weights_is_refused_where_it_would_leave_without_noise() -> None:
    private = experiment(
        algorithm=example("fedsam").FedSAM(),
        privacy=ExampleLevel(epsilon=8.0, delta=1e-3, clip=1.0, rows=40),
        rounds=RoundPolicy(rounds=1, cohort=2, weight_cap=1, evaluate_every=0),
    )
    with pytest.raises(errors.ExperimentError, match="neither clips nor noises"):
        compile_plan(private)
    dropped = experiment(
        algorithm=Algorithm(name="x", client=ClientPart(gradient=lambda g, step: step.gradient_at(step.params)))
    )
    assert compile_plan(dropped).plan.id
