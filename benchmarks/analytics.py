"""What queries find, beside the truth and the error that they state: what docs/algorithms.md quotes.

    python benchmarks/analytics.py [--only quantiles ...] [--json] [--quick]

20 clients with 1000 rows each: ages (gamma, cut to 0..120), words (Zipf, whole numbers below 1024). All clients answer
every round. A survey finds the ages' mean and deviation and the words as texts; a calibration the extremes of a small
network's activations on the ages. Printed: rounds, the largest error found over what is asked, the error that the query
states, kilobytes that a client uploads a round, and seconds. A figure above its stated error ends the program with 1.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.aggregation.analytics import ask, count, heavy_hitters, histogram, mean, quantiles
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.preparation import Category, Draft, Number, Survey
from coterie.aggregation.preparation.calibration import Calibration
from coterie.compute import nn, optim, quant
from coterie.compute.nn import zoo
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
    found = dict(query.answer(run.weights).found)
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


def _all(clients: list[Arrays], column: str) -> npt.NDArray[Any]:
    return np.concatenate([client[column] for client in clients])


def measure(name: str, rows: int) -> dict[str, Any]:
    """One query's figures."""
    begun = time.monotonic()
    run, off, stated = QUERIES[name](population(rows))
    rounds = run.history.rounds
    return {
        "query": name,
        "rounds": len(rounds),
        "error": off,
        "stated": stated,
        "within": off <= stated,
        "kilobytes": sum(record.bytes_up for record in rounds) / len(rounds) / CLIENTS / 1e3,
        "seconds": time.monotonic() - begun,
    }


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(QUERIES), default=list(QUERIES))
    parser.add_argument("--json", action="store_true", help="one JSON line for each query")
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, to see that it runs")
    options = parser.parse_args()
    results = [measure(name, 100 if options.quick else 1000) for name in options.only]
    for found in results:
        text = (
            "{query:<14} {rounds} rounds  error {error:.3g} (stated {stated:.3g})  {kilobytes:.1f} kB  {seconds:.1f} s"
        )
        print(json.dumps(found) if options.json else text.format(**found))
    if not all(found["within"] for found in results):
        sys.exit("A query was off by more than it states.")


if __name__ == "__main__":
    main()
