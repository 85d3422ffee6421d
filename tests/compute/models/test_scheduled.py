"""Schedules in the step: the numbers of a schedule, step by step, without anybody feeding them."""

from math import inf, nan
from typing import Any

import numpy as np
import pytest

from coterie.compute import optim
from coterie.compute.array import Array
from coterie.compute.optim import Optimizer, Schedule, cosine, step_decay, warmup
from coterie.compute.training import accumulate
from coterie.errors import InputError

RULES: dict[str, tuple[Optimizer, dict[str, Schedule]]] = {
    "sgd": (optim.sgd(0.5), {"lr": warmup(cosine(0.5, length=6), length=3)}),
    "momentum": (
        optim.sgd(0.5, momentum=0.9),
        {"lr": cosine(0.5, length=9), "momentum": step_decay(0.9, factor=0.5, every=2)},
    ),
    "adam": (optim.adam(0.1), {"lr": lambda step: 0.1 / (1 + step)}),
    "clipped": (optim.clipped(optim.adam(0.1), 1.0), {"clip_norm": lambda step: 2.0 - 0.1 * step}),
}
SHAPES = {"w": (3, 2), "b": (2,), "s": ()}


def drawn(seed: int) -> dict[str, Array]:
    generator = np.random.Generator(np.random.PCG64(seed))
    return {name: Array(np.asarray(generator.normal(size=shape), np.float32)) for name, shape in SHAPES.items()}


def number(value: float) -> Array:
    return Array(np.array([value], np.float32))


@pytest.mark.parametrize("name", RULES)
def test_a_scheduled_optimizer_takes_the_steps_of_one_that_is_fed_each_number(name: str) -> None:
    rule, schedules = RULES[name]
    own = optim.scheduled(rule, 8, schedules)
    assert own.hyper.keys() == rule.hyper.keys() - schedules.keys()
    ours = theirs = drawn(0)
    state, kept = own.init(ours), rule.init(theirs)
    left = {key: number(value) for key, value in own.hyper.items()}
    for step in range(12):
        fed = {key: number(schedule(min(step, 7))) for key, schedule in schedules.items()}
        gradients = drawn(step + 1)
        ours, state = own.update(gradients, state, ours, left, number(1))
        theirs, kept = rule.update(gradients, kept, theirs, {**left, **fed}, number(1))
        for tensor, value in theirs.items():
            np.testing.assert_array_equal(ours[tensor].numpy(), value.numpy())


def test_a_step_that_does_not_count_leaves_the_number_of_the_step() -> None:
    rule = optim.scheduled(optim.sgd(1.0), 3, {"lr": lambda step: float(step)})
    params = drawn(0)
    state = rule.init(params)
    for active, expected in ((1, 1), (0, 1), (1, 2)):
        params, state = rule.update(drawn(1), state, params, {}, number(active))
        assert state["schedule.step"].numpy().tolist() == [expected]


def test_inside_an_accumulation_a_group_is_a_step() -> None:
    rule = accumulate(optim.scheduled(optim.sgd(1.0), 2, {"lr": lambda step: (1.0, 10.0)[step]}), 2)
    params, ones = drawn(0), {name: Array(np.ones(shape, np.float32)) for name, shape in SHAPES.items()}
    state, start = rule.init(params), params["b"].numpy()
    hyper = {name: number(value) for name, value in rule.hyper.items()}
    for step, moved in enumerate((0, 1, 1, 11)):
        params, state = rule.update(ones, state, params, hyper, number(1))
        np.testing.assert_allclose(params["b"].numpy(), start - moved, rtol=1e-5, err_msg=str(step))


def lr(schedule: Schedule) -> dict[str, Schedule]:
    return {"lr": schedule}


def as_text(step: int) -> Any:
    return "0.1"


def steady(step: int) -> float:
    return 0.1


REFUSED: list[tuple[Any, str]] = [
    ((optim.sgd(0.1), 3, {"rate": steady}), r"test_scheduled.py:\d+: .*no hyper-parameter rate; sgd"),
    ((optim.sgd(0.1), 3, {}), "there is no schedule"),
    ((optim.sgd(0.1), 3, lr(lambda step: 0.2 - 0.1 * step - 0.05)), "schedule 'lr' gives -0.0.* at step 2"),
    ((optim.sgd(0.1), 3, lr(lambda step: nan)), "schedule 'lr' gives nan at step 0"),
    ((optim.sgd(0.1), 3, lr(lambda step: inf)), "schedule 'lr' gives inf at step 0"),
    ((optim.sgd(0.1), 3, lr(as_text)), "schedule 'lr' gives '0.1' at step 0"),
    ((optim.sgd(0.1), 0, lr(steady)), "steps must be a whole number of at least 1"),
    ((optim.sgd(0.1), 10**9, lr(steady)), "at most 100000 steps"),
    ((optim.scheduled(optim.adam(0.1), 3, lr(steady)), 3, {"beta1": steady}), "it has schedules already"),
    ((optim.scheduled(optim.sgd(0.1), 3, lr(steady)), 3, lr(steady)), "it has schedules already"),
    ((optim.sgd(0.1), 3, lr(lambda step: 1e39)), "schedule 'lr' gives 1e\\+39 at step 0"),
    ((optim.sgd(0.1), 3, lr(lambda step: 1 / step)), "raises ZeroDivisionError at step 0: division by zero"),
    ((optim.sgd(0.1), 3, {"lr": 0.1}), "schedules are functions of a step's number"),
    ((optim.sgd(0.1), 3, ["lr"]), "schedules are functions of a step's number"),
    ((optim.sgd(0.1), 3, {"lr": steady, 5: steady}), "no hyper-parameter 5"),
    ((0.1, 3, lr(steady)), "needs an Optimizer"),
]


@pytest.mark.parametrize(("arguments", "words"), REFUSED)
def test_a_schedule_that_cannot_be_is_refused_where_it_was_written(arguments: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        optim.scheduled(*arguments)
