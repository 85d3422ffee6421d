"""Choosing a model by what a device can bear, and searching for one: bounds kept, nothing better left behind."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from math import log2, nan
from time import process_time
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.compute import nn, optim
from coterie.compute.nn import zoo
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.metrics import accuracy
from coterie.compute.nn.zoo.cost import FILE
from coterie.compute.nn.zoo.limits import measures
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.yardstick import least_seconds, yardstick, yardstick_us
from coterie.compute.training import Trainer, measure
from coterie.errors import ArgumentValueError, ConfigurationError, InputError, InternalError, ShapeError

NAMES = [entry.name for entry in zoo.entries("images")]


@dataclass(frozen=True)
class Said:
    """A device's report."""

    yardstick_us: float | None = 100.0
    memory_bytes: int | None = None


def table(rows: list[tuple[float, float, int, int, float]]) -> zoo.Costs:
    """Costs of the models for images from latency, step, size, memory and accuracy."""
    made = {
        ("images", name): (
            zoo.Cost(latency_us=latency, step_us=step, size_bytes=size, memory_bytes=memory),
            accuracy,
        )
        for name, (latency, step, size, memory, accuracy) in zip(NAMES, rows, strict=False)
    }
    return zoo.Costs(machine="none", yardstick_us=100.0, models=made)


_few = st.sampled_from([1.0, 2.0, 3.0, 5.0])
ROWS = st.lists(
    st.tuples(
        _few.map(lambda n: n * 1e3),
        _few.map(lambda n: n * 1e3),
        _few.map(lambda n: int(n * 1e6)),
        _few.map(lambda n: int(n * 1e6)),
        st.sampled_from([0.5, 0.7, 0.9]),
    ),
    min_size=1,
    max_size=len(NAMES),
)
LIMIT = st.none() | st.sampled_from([0.5, 1.0, 2.0, 4.0, 20.0])


@pytest.mark.capability("G17")
@settings(max_examples=50)
@given(ROWS, LIMIT, LIMIT, LIMIT, LIMIT, st.sampled_from([50.0, 100.0, 300.0]), LIMIT)
def test_the_choice_keeps_every_limit_and_no_model_is_better(
    rows: list[tuple[float, float, int, int, float]],
    latency: float | None,
    step: float | None,
    size: float | None,
    memory: float | None,
    yardstick: float,
    room: float | None,
) -> None:
    costs = table(rows)
    limits = {"latency_ms": latency, "step_ms": step, "size_mb": size, "memory_mb": memory}
    device = Said(yardstick, None if room is None else int(room * 1e6))

    def fits(cost: zoo.Cost) -> bool:
        found = measures(cost.scaled(yardstick / 100.0))
        kept = all(limit is None or found[name] <= limit for name, limit in limits.items())
        return kept and (room is None or found["memory_mb"] <= room)

    feasible = {name: (cost, share) for (_, name), (cost, share) in costs.models.items() if fits(cost)}
    if not feasible:
        with pytest.raises(ArgumentValueError, match="No model of the zoo for images keeps"):
            zoo.select(task="images", device=device, costs=costs, **limits)  # pyright: ignore[reportArgumentType]
        return
    choice = zoo.select(task="images", device=device, costs=costs, **limits)  # pyright: ignore[reportArgumentType]
    cost, share = feasible[choice.entry.name]
    assert choice.cost == cost.scaled(yardstick / 100.0) and choice.accuracy == share == max(
        s for _, s in feasible.values()
    )
    for other, reached in feasible.values():
        better = reached >= share and other.latency_us <= cost.latency_us and other.size_bytes <= cost.size_bytes
        assert not better or (reached, other.latency_us, other.size_bytes) == (share, cost.latency_us, cost.size_bytes)
    for one in choice.candidates:
        assert bool(one.misses) == (one.entry.name not in feasible)


def test_a_slower_device_gets_a_smaller_model() -> None:
    costs = table([(10, 100, 10**5, 10**6, 0.8), (1000, 9000, 10**6, 10**7, 0.95)])
    same = {"task": "images", "latency_ms": 1.5, "costs": costs}
    fast = zoo.select(device=Said(100.0), **same)  # pyright: ignore[reportArgumentType]
    slow = zoo.select(device=Said(200.0), **same)  # pyright: ignore[reportArgumentType]
    assert (fast.entry.name, slow.entry.name) == (NAMES[1], NAMES[0])
    assert fast.cost.latency_us == 1000 and slow.cost.latency_us == 20
    small = zoo.select(device=Said(100.0, memory_bytes=2 * 10**6), **same)  # pyright: ignore[reportArgumentType]
    assert small.entry.name == NAMES[0]
    assert "latency_ms 2" in str(slow) and str(slow).count("chosen") == 1 and len(str(slow).splitlines()) == 3


@pytest.mark.capability("G17")
def test_the_recorded_table_is_of_the_models_as_they_are() -> None:
    costs = zoo.recorded()
    assert set(costs.models) == {(entry.task, entry.name) for entry in zoo.ENTRIES}
    assert costs.machine and costs.yardstick_us > 0
    for entry in zoo.ENTRIES:
        cost, share = costs.models[entry.task, entry.name]
        assert 0 < cost.latency_us < cost.step_us and cost.memory_bytes > 4 * entry.parameters
        # The file is its weights, and operators.
        assert 4 * entry.parameters <= cost.size_bytes <= 4 * entry.parameters + 40_000
        assert 1 / entry.classes < share < 1
    raw = FILE.read_text(encoding="utf-8")
    assert json.loads(raw) == costs.to_json() and zoo.Costs.from_json(json.loads(raw)) == costs


@pytest.mark.capability("G17")
def test_measuring_tells_the_small_from_the_large() -> None:
    small, large = (
        measure(zoo.entry("images", name).build(), zoo.entry("images", name).inputs, rounds=2, clock=process_time)
        for name in ("logistic_regression", "lenet")
    )
    for name, value in measures(small).items():
        assert 0 < value < measures(large)[name]
    again = measure(zoo.logistic_regression(784, 10), zoo.Input((1, 28, 28)), rounds=1)
    assert (again.size_bytes, again.memory_bytes) == (small.size_bytes, small.memory_bytes)


def test_models_with_dropout_and_running_statistics_are_measured() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    cost = measure(model, zoo.Input((6,)), rounds=1)
    assert 0 < cost.latency_us and 0 < cost.step_us and cost.size_bytes > 4 * model.count()


def test_the_yardstick_is_one_graph_that_runs() -> None:
    executable = Executable(yardstick())
    (y,) = executable.run({"x": np.full((1, 1, 28, 28), 0.5, np.float32)}).values()
    assert y.shape == (1, 10) and np.isfinite(y).all() and y.std() > 0
    assert yardstick() == yardstick() and yardstick_us(rounds=1) > 0


def test_the_least_block_counts() -> None:
    # Ten calls of one tick; then the clock jumps, as when another process has the machine.
    ticks = iter([*range(11), *range(100, 1100, 100)])
    now = [0.0]

    def run() -> None:
        now[0] = float(next(ticks, 1e6))

    assert least_seconds(run, rounds=2, clock=lambda: now[0], block_s=5) == pytest.approx(1.0)


# Searching.

WIDTHS = (4, 8, 16, 32, 64, 128)
SPACE = zoo.Space(widths=WIDTHS, depth=(1, 4), build=lambda widths: nn.zoo.mlp((16, *widths, 4)))


def by_count(model: nn.Module) -> zoo.Cost:
    """A cost that is known exactly."""
    size = 4 * model.count()
    return zoo.Cost(latency_us=model.count() / 10, step_us=model.count(), size_bytes=size, memory_bytes=3 * size)


def smooth(model: nn.Module) -> float:
    """Best at three layers of 32, 64 and 32."""
    wanted = np.log2([32, 64, 32])
    widths = [spec.shape[0] for name, spec in model.specs().items() if name.endswith("weight")][:-1]
    found = np.log2(widths)
    shared = min(len(found), len(wanted))
    return -float(np.abs(found[:shared] - wanted[:shared]).sum() + 2 * abs(len(found) - len(wanted)))


@pytest.mark.capability("G17")
def test_a_search_over_all_of_a_space_finds_its_best() -> None:
    space = replace(SPACE, widths=(8, 32, 64), depth=(1, 3))
    for limit in (0.009, 0.02, 1.0):
        found = zoo.search(space, smooth, by_count, size_mb=limit, evaluations=space.size)
        every = (space.build(widths) for layers in (1, 2, 3) for widths in product(space.widths, repeat=layers))
        best = max(smooth(model) for model in every if 4 * model.count() <= limit * 1e6)
        assert found.best.score == best and found.best.cost.size_bytes <= limit * 1e6


@pytest.mark.capability("G17")
def test_evolution_beats_drawing_at_random() -> None:
    """In a space of 1554 models, 40 looks each, over 20 seeds: drawing is a search whose population is never full."""
    evolved, drawn = (
        [zoo.search(SPACE, smooth, by_count, evaluations=40, population=population, seed=seed).best.score
         for seed in range(20)]
        for population in (8, 1000)
    )  # fmt: skip
    assert np.mean([score or 0.0 for score in evolved]) > np.mean([score or 0.0 for score in drawn]) + 0.5


def test_a_search_scores_no_model_that_misses_a_limit_and_none_twice() -> None:
    scored: list[nn.Module] = []

    def score(model: nn.Module) -> float:
        scored.append(model)
        return smooth(model)

    found = zoo.search(SPACE, score, by_count, size_mb=0.01, latency_ms=0.2, evaluations=25)
    for trial in found.trials:
        assert (trial.score is None) == bool(trial.misses)
        assert trial.misses or (trial.cost.size_bytes <= 1e4 and trial.cost.latency_us <= 200)
    assert len(scored) == len(set(map(repr, scored))) == sum(trial.score is not None for trial in found.trials) <= 25
    assert len({trial.widths for trial in found.trials}) == len(found.trials)
    assert any(trial.misses for trial in found.trials)
    again = zoo.search(SPACE, smooth, by_count, size_mb=0.01, latency_ms=0.2, evaluations=25)
    assert again == found
    assert zoo.search(SPACE, smooth, by_count, size_mb=0.01, latency_ms=0.2, evaluations=25, seed=1) != found


def test_of_equal_scores_the_faster_model_is_best() -> None:
    found = zoo.search(replace(SPACE, depth=(1, 1)), lambda _: 1.0, by_count, evaluations=6)
    assert found.best.widths == (4,)


def test_a_search_with_measured_costs_and_trained_scores() -> None:
    rng = np.random.default_rng(3)
    y = rng.integers(0, 4, 192).astype(np.int32)
    rows = {"x": (rng.normal(size=(4, 16))[y] + rng.normal(size=(192, 16))).astype(np.float32), "y": y}

    def score(model: nn.Module) -> float:
        trainer = Trainer(model, softmax_cross_entropy, optim.adam(0.02), metrics={"accuracy": accuracy})
        trainer.fit(rows, epochs=3)
        return trainer.evaluate(rows)["accuracy"]

    cost: Callable[[nn.Module], zoo.Cost] = lambda model: measure(model, zoo.Input((16,)), rounds=1)  # noqa: E731
    found = zoo.search(replace(SPACE, depth=(1, 2)), score, cost, size_mb=0.02, evaluations=5)
    assert found.best.score is not None and found.best.score > 0.6 and found.best.cost.size_bytes <= 20_000


IMAGES = zoo.Input((1, 28, 28))
REFUSED: dict[str, tuple[Callable[[], object], type[InputError | InternalError], str]] = {
    "a limit of 0": (lambda: zoo.select(task="images", size_mb=0), ArgumentValueError, "size_mb must be a number"),
    "no number": (lambda: zoo.select(task="images", latency_ms=nan), ArgumentValueError, "latency_ms must be a number"),
    "a task": (lambda: zoo.select(task="speech"), ArgumentValueError, "no task 'speech'"),  # pyright: ignore[reportArgumentType]
    "a device that did not measure": (
        lambda: zoo.select(task="images", device=Said(None)), ConfigurationError, "has yardstick_us None"),
    "a device that takes no time": (
        lambda: zoo.select(task="images", device=Said(0.0)), ConfigurationError, "has yardstick_us 0.0"),
    "a device that is no report": (
        lambda: zoo.select(task="images", device=cast(Any, {"memory": 5})), InputError, "is of type dict"),
    "a limit of yes": (lambda: zoo.select(task="images", size_mb=True), ArgumentValueError, "size_mb must be a number"),
    "nothing fits": (
        lambda: zoo.select(task="images", size_mb=0.001), ArgumentValueError, "logistic_regression has size_mb 0.03"),
    "a table without the task": (
        lambda: zoo.select(task="rows", costs=table([])), ArgumentValueError, "no model of the zoo for rows"),
    "a table": (lambda: zoo.Costs.from_json({"machine": "x"}), InternalError, "cannot be read"),
    "widths out of order": (lambda: replace(SPACE, widths=(8, 4)), ArgumentValueError, "no space of models"),
    "no widths": (lambda: replace(SPACE, widths=()), ArgumentValueError, "no space of models"),
    "one depth": (
        lambda: replace(SPACE, depth=3), ArgumentValueError, "depth is (least, most)"),  # pyright: ignore[reportArgumentType]
    "depths": (lambda: replace(SPACE, depth=(3, 2)), ArgumentValueError, "no space of models"),
    "a width of 0": (lambda: replace(SPACE, widths=(0, 4)), InputError, "widths[0] must be a whole number"),
    "no evaluation": (lambda: zoo.search(SPACE, smooth, by_count, evaluations=0), InputError, "evaluations must be"),
    "too small a limit": (
        lambda: zoo.search(SPACE, smooth, by_count, size_mb=1e-6), ArgumentValueError, "even the smallest model"),
    "a score of NaN": (lambda: zoo.search(SPACE, lambda _: nan, by_count), ArgumentValueError, "score of the model"),
    "a score that nobody returned": (
        lambda: zoo.search(SPACE, lambda _: cast(Any, None), by_count),
        ArgumentValueError,
        "of widths (4,) is None",
    ),
    "a regression": (
        lambda: measure(nn.Sequential(nn.Flatten(), nn.MeanPool()), IMAGES), InputError, "MeanPool"),
    "one number": (lambda: measure(_Sum(), IMAGES), ShapeError, "not logits"),
    "no thread": (lambda: measure(zoo.lenet(), IMAGES, threads=0), InputError, "threads must be"),
}  # fmt: skip


@dataclass(frozen=True)
class _Sum(nn.Module):
    """One number an example."""

    def specs(self) -> dict[str, nn.ParameterSpec]:
        return {}

    def __call__(self, params: nn.Parameters, x: object, mode: nn.Mode = nn.EVAL) -> object:  # type: ignore[override]
        from coterie.compute import numpy as xp

        return xp.sum(x, axis=(1, 2, 3))  # type: ignore[arg-type]


@pytest.mark.parametrize(("make", "error", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused_by_name(
    make: Callable[[], object], error: type[InputError | InternalError], reason: str
) -> None:
    with pytest.raises(error) as refused:
        make()
    assert reason in refused.value.message


def test_the_smooth_score_has_its_best_where_it_says() -> None:
    assert smooth(SPACE.build((32, 64, 32))) == 0.0 and log2(32) == 5
