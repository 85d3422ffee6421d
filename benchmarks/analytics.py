"""What queries find, beside the truth and the error that they state: what docs/algorithms.md quotes.

    python benchmarks/analytics.py [--only quantiles ...] [--json] [--quick]
    python benchmarks/analytics.py --noised [--seeds 10] [--only mean ...] [--json] [--quick]

20 clients with 1000 rows each: ages (gamma, cut to 0..120), words (Zipf, whole numbers below 1024). All clients answer
every round. A survey finds the ages' mean and deviation and the words as texts; a calibration the extremes of a small
network's activations on the ages. Printed: rounds, the largest error found over what is asked, the error that the query
states (its budget), kilobytes that a client uploads a round, and seconds; a line each (see lines.py). A figure above
its stated error ends the program with 1.

--noised asks the same of 1000 devices of 80 rows at ε = 1 in all (8 where devices noise alone) and δ = 10⁻⁶ with a
clip of 80 rows, under secure aggregation unless devices noise alone, --seeds times with other noise each. Printed: the
root of the mean square of the errors found, the standard error stated (of a quantile: half of its interval), the share
of answers that lie within two stated errors (of quantiles: within their interval; of heavy hitters: of values that
occur `sure_from` times or more and were found), and seconds beside those of the same query in the open and without
noise. Less than 80 % within what is stated ends the program with 1: 95 % are promised.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from lines import Line, at_least, at_most, show

from coterie.aggregation.analytics import Query, ask, count, heavy_hitters, histogram, mean, quantiles
from coterie.aggregation.analytics.noise import NoisyPrivacy
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.preparation import Category, Draft, Number, Survey
from coterie.aggregation.preparation.calibration import Calibration
from coterie.compute import nn, optim, quant
from coterie.compute.nn import zoo
from coterie.protocol.privacy import LocalLevel, UserLevel
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.simulation import Simulation, simulate_full

Arrays = dict[str, npt.NDArray[Any]]
Found = tuple[Simulation, float, float]

CLIENTS, LEVELS, FRACTION = 20, (0.1, 0.5, 0.9, 0.99), 0.02
SCHEMA = DataSchema(
    features=(Feature(name="age", low=0, high=120), Feature(name="word", dtype="int32")),
    label=Label(name="ill", low=0, high=1),
)


def population(rows: int) -> list[Arrays]:
    """The rows of every client; ages differ from client to client."""
    generator = np.random.Generator(np.random.PCG64(7))
    return [
        {
            "age": generator.gamma(5 + number / 2, 5, rows).clip(0, 120).astype(np.float32),
            "word": (generator.zipf(1.6, rows) % 1024).astype(np.int32),
            "ill": generator.integers(0, 2, rows).astype(np.int32),
        }
        for number in range(CLIENTS)
    ]


def _count(clients: list[Arrays]) -> Found:
    query = count("age")
    run = simulate_full(ask(query, SCHEMA, clients=CLIENTS, secure_aggregation=False), clients)
    return run, abs(query.answer(run.weights).rows - len(_all(clients, "age"))), 0.0


def _mean(clients: list[Arrays]) -> Found:
    query = mean("age", low=0, high=120)
    run = simulate_full(ask(query, SCHEMA, clients=CLIENTS, secure_aggregation=False), clients)
    truth = float(_all(clients, "age").astype(np.float64).mean())
    # The bound at worst: float32 sums of a client's rows, each relative 2**-24.
    return run, abs(float(query.answer(run.weights).mean[0]) - truth), truth * len(clients[0]["age"]) * 2.0**-24


def _histogram(clients: list[Arrays]) -> Found:
    query = histogram("age", low=0, high=120, bins=24)
    run = simulate_full(ask(query, SCHEMA, clients=CLIENTS, secure_aggregation=False), clients)
    truth = np.histogram(_all(clients, "age"), 24, (0, 120))[0]
    return run, float(np.abs(query.answer(run.weights).counts - truth).max()), 0.0


def _quantiles(clients: list[Arrays]) -> Found:
    query = quantiles("age", LEVELS, low=0, high=120, rounds=2)
    run = simulate_full(ask(query, SCHEMA, clients=CLIENTS, secure_aggregation=False), clients)
    truth = np.quantile(_all(clients, "age"), LEVELS, method="inverted_cdf")
    answers = query.answer(run.weights).quantiles
    off = max(abs(answer.value - float(true)) for answer, true in zip(answers, truth, strict=True))
    return run, off, max(answer.error for answer in answers)


def _heavy_hitters(clients: list[Arrays]) -> Found:
    query = heavy_hitters("word", bits=10, fraction=FRACTION)
    run = simulate_full(ask(query, SCHEMA, clients=CLIENTS, secure_aggregation=False), clients)
    values, counts = np.unique(_all(clients, "word"), return_counts=True)
    often = counts >= FRACTION * counts.sum()
    truth = dict(zip(values[often].tolist(), counts[often].tolist(), strict=True))
    found = dict(query.answer(run.weights).counts)
    return run, float(sum(found.get(word) != truth.get(word) for word in {*found, *truth})), 0.0


def _survey(clients: list[Arrays]) -> Found:
    survey = Survey(Draft((Number("age"), Category("word")), label=SCHEMA.label), share=FRACTION, most=32, tail=0.0)
    run = simulate_full(survey.ask(clients=CLIENTS, secure_aggregation=False), clients)
    answer = survey.answer(run.weights)
    values, counts = np.unique(_all(clients, "word"), return_counts=True)
    often = counts >= FRACTION * counts.sum()
    truth = {str(value): count for value, count in zip(values[often].tolist(), counts[often].tolist(), strict=True)}
    (age,), (words,) = answer.numbers, answer.categories
    ages = _all(clients, "age").astype(np.float64)
    off = max(abs(age.mean - float(ages.mean())), abs(age.deviation - float(ages.std())))
    return run, off if dict(words.counts) == truth else math.inf, age.error


def _calibrate(clients: list[Arrays]) -> Found:
    schema = DataSchema((Feature(name="age", shape=(1,), low=0, high=120),), SCHEMA.label)
    rows = [{"age": client["age"][:, None], "ill": client["ill"]} for client in clients]
    begun = Experiment(
        name="network",
        model=zoo.mlp((1, 16, 2)),
        schema=schema,
        loss=nn.losses.softmax_cross_entropy,
        optimizer=optim.sgd(1e-4),
        rounds=RoundPolicy(rounds=1, cohort=CLIENTS, evaluate_every=0),
        secure_aggregation=False,
    )
    model = simulate_full(begun, rows).infer()
    calibration = Calibration(model, schema)
    run = simulate_full(calibration.ask(clients=CLIENTS, rows=1000, secure_aggregation=False), rows)
    ages = np.concatenate([part["age"] for part in rows])
    truth = quant.observe(model, [{"batch/age": ages}])
    off, stated = 0.0, math.inf
    for name, seen in calibration.answer(run.weights).items():
        off = max(off, abs(seen.low - truth[name].low), abs(seen.high - truth[name].high))
        low, high = seen.bounds or (0.0, 0.0)
        stated = min(stated, 2 * (high - low) / seen.counts.size)
    return run, off, stated


QUERIES: Mapping[str, Callable[[list[Arrays]], Found]] = {
    "count": _count,
    "mean": _mean,
    "histogram": _histogram,
    "quantiles": _quantiles,
    "heavy_hitters": _heavy_hitters,
    "survey": _survey,
    "calibrate": _calibrate,
}


DEVICES, ROWS, TIMES = 1000, 80, 2.0
LEAST_SHARE = 0.8
COORDINATOR = UserLevel(clip=ROWS, epsilon=1.0, delta=1e-6)
TOGETHER = UserLevel(clip=ROWS, epsilon=1.0, delta=1e-6, mechanism="discrete_gaussian")
# At 1 its noise leaves nothing to say of a thousand devices.
ALONE = LocalLevel(mechanism="gaussian", clip=ROWS, epsilon=8.0, delta=1e-6)
Judged = tuple[list[float], float, list[bool]]
"""Errors found, the one that is stated, and which answers lie within what is stated."""


def devices(count: int) -> list[Arrays]:
    """The rows of small devices, all alike."""
    generator = np.random.Generator(np.random.PCG64(11))
    return [
        {
            "age": generator.gamma(9, 5, ROWS).clip(0, 120).astype(np.float32),
            "word": (generator.zipf(1.6, ROWS) % 1024).astype(np.int32),
            "ill": generator.integers(0, 2, ROWS).astype(np.int32),
        }
        for _ in range(count)
    ]


def _judge(errors: npt.NDArray[np.float64], stated: float) -> Judged:
    return np.abs(errors).tolist(), stated, (np.abs(errors) <= TIMES * stated).tolist()


def _count_off(answer: Any, clients: list[Arrays]) -> Judged:
    return _judge(np.array([answer.rows - len(_all(clients, "age"))]), answer.error)


def _mean_off(answer: Any, clients: list[Arrays]) -> Judged:
    return _judge(answer.mean - _all(clients, "age").astype(np.float64).mean(), float(answer.error[0]))


def _histogram_off(answer: Any, clients: list[Arrays]) -> Judged:
    truth = np.histogram(_all(clients, "age"), 24, (0, 120))[0]
    return _judge(answer.counts - truth, answer.error)


def _quantiles_off(answer: Any, clients: list[Arrays]) -> Judged:
    (median,) = answer.quantiles
    truth = float(np.quantile(_all(clients, "age"), 0.5, method="inverted_cdf"))
    return [abs(median.value - truth)], median.error, [median.lower <= truth < median.upper]


def _heavy_hitters_off(answer: Any, clients: list[Arrays]) -> Judged:
    values, counts = np.unique(_all(clients, "word"), return_counts=True)
    truth = dict(zip(values.tolist(), counts.tolist(), strict=True))
    errors = [abs(found - truth.get(word, 0)) for word, found in answer.counts.items()]
    return errors, answer.error, [word in answer.counts for word, times in truth.items() if times >= answer.sure_from]


NOISED: Mapping[str, tuple[Query[Any], NoisyPrivacy, Callable[[Any, list[Arrays]], Judged]]] = {
    "count": (count("age"), COORDINATOR, _count_off),
    "mean": (mean("age", low=0, high=120), COORDINATOR, _mean_off),
    "mean, devices' noise": (mean("age", low=0, high=120), TOGETHER, _mean_off),
    "mean, local, ε = 8": (mean("age", low=0, high=120), ALONE, _mean_off),
    "histogram": (histogram("age", low=0, high=120, bins=24), COORDINATOR, _histogram_off),
    "quantiles": (quantiles("age", (0.5,), low=0, high=120, bins=4, rounds=6), COORDINATOR, _quantiles_off),
    "heavy_hitters": (heavy_hitters("word", bits=10, fraction=0.05, step=5), COORDINATOR, _heavy_hitters_off),
}


def measure_noised(name: str, clients: list[Arrays], seeds: int) -> Line:
    """One noised query, over several draws of the noise; and the seconds of the exact one."""
    query, privacy, judge = NOISED[name]
    begun = time.monotonic()
    simulate_full(ask(query, SCHEMA, clients=len(clients), secure_aggregation=False), clients)
    exact = time.monotonic() - begun
    errors: list[float] = []
    stated: list[float] = []
    held: list[bool] = []
    secure = False if privacy is ALONE else None
    begun = time.monotonic()
    for seed in range(seeds):
        asked = ask(query, SCHEMA, clients=len(clients), seed=seed, privacy=privacy, secure_aggregation=secure)
        off, said, within = judge(query.answer(simulate_full(asked, clients).weights), clients)
        errors += off
        stated.append(said)
        held += within
    share = float(np.mean(held)) if held else math.nan
    details = {
        "rounds": query.rule.rounds,
        "answers": len(held),
        "error": float(np.sqrt(np.mean(np.square(errors)))) if errors else math.nan,
        "stated": float(np.median(stated)),
        "seconds": (time.monotonic() - begun) / seeds,
        "exact_seconds": exact,
    }
    return Line(name, share, "of the answers within what is stated", budget=at_least(LEAST_SHARE), details=details)


def _all(clients: list[Arrays], column: str) -> npt.NDArray[Any]:
    return np.concatenate([client[column] for client in clients])


def measure(name: str, rows: int) -> Line:
    """One query: its error, beside what it states."""
    begun = time.monotonic()
    run, off, stated = QUERIES[name](population(rows))
    rounds = run.history.rounds
    details = {
        "rounds": len(rounds),
        "kilobytes": sum(record.bytes_up for record in rounds) / len(rounds) / CLIENTS / 1e3,
        "seconds": time.monotonic() - begun,
    }
    return Line(name, off, "of error", budget=at_most(stated), details=details)


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple({**QUERIES, **NOISED}))
    parser.add_argument("--noised", action="store_true", help="with differential privacy, beside what is stated")
    parser.add_argument("--seeds", type=int, default=10, help="how often each noised query is asked")
    parser.add_argument("--json", action="store_true", help="one JSON line for each query")
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, to see that it runs")
    options = parser.parse_args()
    if options.noised:
        clients = devices(DEVICES // 10 if options.quick else DEVICES)
        names = [name for name in options.only or NOISED if name in NOISED]
        measured = (measure_noised(name, clients, options.seeds) for name in names)
    else:
        names = [name for name in options.only or QUERIES if name in QUERIES]
        measured = (measure(name, 100 if options.quick else 1000) for name in names)
    within = True
    for found in measured:
        within = within and found.met is True
        show(found, as_json=options.json)
    if not within:
        sys.exit("A query was off by more than it states.")


if __name__ == "__main__":
    main()
