"""Every method against its paper's algorithm, written down again in NumPy with gradients by central differences."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from methods_kit import (
    Batch,
    Federation,
    Vector,
    count,
    cross_entropy,
    descend,
    gradient,
    mean_loss,
    softmax_regression,
)

from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.horizontal import (
    IFCA,
    Algorithm,
    FedAvg,
    FedDyn,
    FedExP,
    FedNova,
    FedProx,
    FedSGD,
    Moon,
    QFedAvg,
    Scaffold,
)
from coterie.aggregation.server_optimizers import (
    ServerOptimizer,
    server_adagrad,
    server_adam,
    server_sgd,
    server_yogi,
)
from coterie.compute import nn
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.optim import sgd
from coterie.protocol.tensors import read_file

RATE = 0.2
CLIENTS = 4
ROUNDS: Sequence[tuple[int, ...]] = ((0, 1, 2), (1, 3), (0, 1, 2, 3))

Start = Callable[..., Federation]


@pytest.fixture(name="start")
def start_fixture(make_experiment: Any, drive: Any, tmp_path: Path) -> Start:
    def start(algorithm: Algorithm, **changes: Any) -> Federation:
        values: dict[str, Any] = {"model": nn.Sequential(nn.Linear(4, 3)), "optimizer": sgd(RATE), "metrics": {}}
        wanted = make_experiment(algorithm=algorithm, **(values | changes))
        return Federation(wanted, compile_plan(wanted), drive, tmp_path)

    return start


@pytest.fixture(name="data")
def data_fixture(make_batch: Any) -> Mapping[int, Sequence[Batch]]:
    """Clients that differ in rows, in steps and in what they hold."""
    return {
        client: [make_batch(seed=10 * client + step, real=6 - client) for step in range(client + 1)]
        for client in range(CLIENTS)
    }


Data = Mapping[int, Sequence[Batch]]


def shares(data: Data, cohort: Sequence[int]) -> Mapping[int, float]:
    total = sum(count(data[client]) for client in cohort)
    return {client: count(data[client]) / total for client in cohort}


def mean(data: Data, vectors: Mapping[int, Vector]) -> Vector:
    """Weighted by rows."""
    weights = shares(data, list(vectors))
    return sum((weights[client] * vector for client, vector in vectors.items()), start=np.zeros(()))


def assert_same_rounds(federation: Federation, data: Data, round: Callable[[Vector, Sequence[int]], Vector]) -> None:
    """All rounds of both, compared after each."""
    weights = federation.vector()
    for cohort in ROUNDS:
        federation.round({client: data[client] for client in cohort})
        weights = round(weights, cohort)
        np.testing.assert_allclose(federation.vector(), weights, rtol=0, atol=1e-5)


def test_fedavg(start: Start, data: Data) -> None:
    def round(x: Vector, cohort: Sequence[int]) -> Vector:
        return mean(data, {client: descend(x, data[client], RATE) for client in cohort})

    assert_same_rounds(start(FedAvg()), data, round)


def test_fedavg_with_momentum_on_the_server(start: Start, data: Data) -> None:
    velocity = np.zeros(15)

    def round(x: Vector, cohort: Sequence[int]) -> Vector:
        nonlocal velocity
        velocity = 0.9 * velocity + mean(data, {client: descend(x, data[client], RATE) - x for client in cohort})
        return x + 0.5 * velocity

    assert_same_rounds(start(FedAvg(), server_optimizer=server_sgd(0.5, 0.9)), data, round)


Adaptive = Callable[[Vector, Vector], Vector]
TAU = 0.01
ADAPTIVE: Mapping[str, tuple[ServerOptimizer, float, Adaptive]] = {
    "adagrad": (server_adagrad(0.3, TAU), 0.0, lambda v, d: v + d * d),
    "adam": (server_adam(0.3, 0.9, 0.95, TAU), 0.9, lambda v, d: 0.95 * v + 0.05 * d * d),
    "yogi": (server_yogi(0.3, 0.9, 0.95, TAU), 0.9, lambda v, d: v - 0.05 * d * d * np.sign(v - d * d)),
}


@pytest.mark.parametrize("name", ADAPTIVE)
def test_adaptive_server_optimizers(start: Start, data: Data, name: str) -> None:
    """Algorithm 2 of Reddi et al., with v = tau² at first."""
    rule, beta1, second = ADAPTIVE[name]
    m, v = np.zeros(15), np.full(15, TAU**2)

    def round(x: Vector, cohort: Sequence[int]) -> Vector:
        nonlocal m, v
        change = mean(data, {client: descend(x, data[client], RATE) - x for client in cohort})
        m, v = beta1 * m + (1 - beta1) * change, second(v, change)
        return x + 0.3 * m / (np.sqrt(v) + TAU)

    assert_same_rounds(start(FedAvg(), server_optimizer=rule), data, round)


def test_fedsgd(start: Start, data: Data) -> None:
    """Gradients over all rows of a client, however they are batched."""

    def whole(x: Vector, batches: Sequence[Batch]) -> Vector:
        rows = count(batches)
        return sum(
            (
                batch["sample_weight"].sum()
                / rows
                * gradient(lambda w, b=batch: mean_loss(softmax_regression, w, b), x)
                for batch in batches
            ),
            start=np.zeros(()),
        )

    def round(x: Vector, cohort: Sequence[int]) -> Vector:
        return x - RATE * mean(data, {client: whole(x, data[client]) for client in cohort})

    assert_same_rounds(start(FedSGD()), data, round)


def test_fedprox(start: Start, data: Data) -> None:
    mu = 0.7

    def round(x: Vector, cohort: Sequence[int]) -> Vector:
        pulled = {
            client: descend(x, data[client], RATE, correct=lambda slopes, w: slopes + mu * (w - x)) for client in cohort
        }
        return mean(data, pulled)

    assert_same_rounds(start(FedProx(mu)), data, round)


def test_scaffold(start: Start, data: Data) -> None:
    """Algorithm 1, option II, with a global step size of 0.8."""
    c, own = np.zeros(15), {client: np.zeros(15) for client in data}

    def round(x: Vector, cohort: Sequence[int]) -> Vector:
        nonlocal c
        moved, changed = dict[int, Vector](), dict[int, Vector]()
        for client in cohort:
            correction = c - own[client]
            y = descend(x, data[client], RATE, correct=lambda slopes, w, add=correction: slopes + add)
            after = own[client] - c + (x - y) / (len(data[client]) * RATE)
            moved[client], changed[client], own[client] = y - x, after - own[client], after
        c = c + len(cohort) / CLIENTS * mean(data, changed)
        return x + 0.8 * mean(data, moved)

    federation = start(Scaffold(CLIENTS), server_optimizer=server_sgd(0.8))
    assert_same_rounds(federation, data, round)
    np.testing.assert_allclose(federation.vector("variate/"), c, rtol=0, atol=2e-5)
    for client, variate in own.items():
        np.testing.assert_allclose(federation.state(client), variate, rtol=0, atol=2e-5)


@pytest.mark.parametrize("rho", [0.0, 0.8, 0.9999])
def test_fednova(start: Start, data: Data, rho: float) -> None:
    """With a_i = (1 − rho^tau, …, 1 − rho) / (1 − rho) written out."""

    def length(tau: int) -> float:
        return float(sum(rho**step for last in range(tau) for step in range(last + 1)))

    def round(x: Vector, cohort: Sequence[int]) -> Vector:
        lengths = {client: length(len(data[client])) for client in cohort}
        directions = {client: (descend(x, data[client], RATE, momentum=rho) - x) / lengths[client] for client in cohort}
        effective = sum(share * lengths[client] for client, share in shares(data, cohort).items())
        return x + effective * mean(data, directions)

    assert_same_rounds(start(FedNova(), optimizer=sgd(RATE, momentum=rho)), data, round)


def test_feddyn(start: Start, data: Data) -> None:
    alpha = 0.3
    h, own = np.zeros(15), {client: np.zeros(15) for client in data}

    def round(x: Vector, cohort: Sequence[int]) -> Vector:
        nonlocal h
        reached = dict[int, Vector]()
        for client in cohort:
            kept = own[client]
            reached[client] = descend(
                x, data[client], RATE, correct=lambda slopes, w, kept=kept: slopes - kept + alpha * (w - x)
            )
            own[client] = kept - alpha * (reached[client] - x)
        h = h - alpha * len(cohort) / CLIENTS * (mean(data, reached) - x)
        return mean(data, reached) - h / alpha

    federation = start(FedDyn(CLIENTS, alpha))
    assert_same_rounds(federation, data, round)
    for client, gradients in own.items():
        np.testing.assert_allclose(federation.state(client), gradients, rtol=0, atol=1e-5)


def test_fedexp(start: Start, data: Data) -> None:
    epsilon, lengths = 1e-3, list[float]()

    def round(x: Vector, cohort: Sequence[int]) -> Vector:
        moved = {client: descend(x, data[client], RATE) - x for client in cohort}
        step = mean(data, moved)
        square = sum(share * moved[client] @ moved[client] for client, share in shares(data, cohort).items())
        lengths.append(max(1.0, float(square / (2 * (step @ step + epsilon)))))
        return x + lengths[-1] * step

    assert_same_rounds(start(FedExP(epsilon)), data, round)
    assert max(lengths) > 1


@pytest.mark.parametrize("q", [0.0, 0.5, 2.0])
def test_qfedavg(start: Start, data: Data, q: float) -> None:
    def round(x: Vector, cohort: Sequence[int]) -> Vector:
        above, below = dict[int, Vector](), dict[int, Vector]()
        for client in cohort:
            real = [batch["sample_weight"] > 0 for batch in data[client]]
            rows = [
                np.concatenate([batch[name][counts] for batch, counts in zip(data[client], real, strict=True)])
                for name in ("x", "y")
            ]
            loss = float(softmax_regression(x, *rows).mean())
            slope = (x - descend(x, data[client], RATE)) / RATE
            above[client] = loss**q * slope
            below[client] = np.array(q * loss ** (q - 1) * slope @ slope + loss**q / RATE)
        return x - mean(data, above) / mean(data, below)

    assert_same_rounds(start(QFedAvg(q)), data, round)


def test_qfedavg_of_clients_that_have_nothing_left_to_learn_stays_where_it_is(start: Start, data: Data) -> None:
    """The paper's q goes up to 15, at which float32 holds no power of a small loss."""

    def nothing(prediction: Array, label: Array) -> Array:
        return xp.sum(0.0 * prediction, axis=1)

    federation = start(QFedAvg(15.0), loss=nothing)
    before = federation.vector()
    federation.round({client: data[client] for client in (0, 1, 3)})
    np.testing.assert_array_equal(federation.vector(), before)


def two_layers(weights: Vector, x: Any) -> tuple[Vector, Vector]:
    """(representation, logits) of Linear(4, 5), Tanh, Linear(5, 3)."""
    first, second = weights[:25], weights[25:]
    hidden = np.tanh(x.astype(np.float64) @ first[:20].reshape(5, 4).T + first[20:])
    return hidden, hidden @ second[:15].reshape(3, 5).T + second[15:]


def cosine(a: Vector, b: Vector) -> Vector:
    return (a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1))


def test_moon(start: Start, data: Data) -> None:
    mu, temperature = 1.5, 0.4
    own = dict[int, Vector]()

    def round(x: Vector, cohort: Sequence[int]) -> Vector:
        reached = dict[int, Vector]()
        for client in cohort:
            last = own.get(client, x)

            def loss(w: Vector, rows: Any, y: Any, last: Vector = last) -> Vector:
                z, logits = two_layers(w, rows)
                near, past = (np.exp(cosine(z, two_layers(v, rows)[0]) / temperature) for v in (x, last))
                return cross_entropy(logits, y) - mu * np.log(near / (near + past))

            reached[client] = own[client] = descend(x, data[client], RATE, loss=loss)
        return mean(data, reached)

    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    federation = start(Moon(mu, temperature), model=model)
    assert_same_rounds(federation, data, round)
    for client, model in own.items():
        np.testing.assert_allclose(federation.state(client, "last/"), model, rtol=0, atol=1e-5)


def test_ifca(start: Start, data: Data) -> None:
    """Three models; nobody needs to choose the third."""
    federation = start(IFCA(3))
    models = [federation.vector(f"{number}/") for number in range(3)]
    chosen = set[int]()
    for cohort in ROUNDS:
        reached: list[dict[int, Vector]] = [{}, {}, {}]
        for client in cohort:
            rows = count(data[client])
            losses = [
                sum(mean_loss(softmax_regression, model, b) * b["sample_weight"].sum() / rows for b in data[client])
                for model in models
            ]
            best = int(np.argmin(losses))
            chosen.add(best)
            reached[best][client] = descend(models[best], data[client], RATE)
        models = [mean(data, found) if found else model for found, model in zip(reached, models, strict=True)]
        federation.round({client: data[client] for client in cohort})
        for number, model in enumerate(models):
            np.testing.assert_allclose(federation.vector(f"{number}/"), model, rtol=0, atol=1e-5)
    assert len(chosen) > 1


@pytest.mark.parametrize("rule", [Scaffold(CLIENTS), FedDyn(CLIENTS, 0.3)], ids=["scaffold", "feddyn"])
def test_where_all_weigh_the_same_the_server_keeps_the_mean_of_what_clients_keep(
    start: Start, make_batch: Any, rule: Algorithm
) -> None:
    """As in the papers, and with cohorts that are a part of all."""
    data = {client: [make_batch(seed=9 * client + step, real=5) for step in range(2)] for client in range(CLIENTS)}
    federation = start(rule)
    for cohort in ((0, 1), (1, 2, 3), (0,), (3, 1)):
        federation.round({client: data[client] for client in cohort})
    kept = np.mean([federation.state(client) for client in range(CLIENTS)], axis=0)
    state = federation.server_state
    told = federation.vector("variate/") if state is None else read_file(state)["method/h"]
    np.testing.assert_allclose(told, kept, rtol=0, atol=1e-6)
