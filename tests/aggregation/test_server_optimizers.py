"""Server optimizers: rebuilt from their names, pure, and at rest where nothing changes."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie import errors
from coterie.aggregation.server_optimizers import (
    SERVER_OPTIMIZERS,
    ServerOptimizer,
    server_adagrad,
    server_adam,
    server_optimizer,
    server_sgd,
    server_yogi,
)

RULES = {
    "sgd": server_sgd(0.7),
    "momentum": server_sgd(0.7, 0.9),
    "adagrad": server_adagrad(0.2, 0.05),
    "adam": server_adam(0.2, 0.8, 0.9, 0.05),
    "yogi": server_yogi(0.2, 0.8, 0.9, 0.05),
}
each = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)


@each
def test_a_rule_is_rebuilt_from_its_name_and_numbers(rule: ServerOptimizer) -> None:
    again = server_optimizer(rule.name, rule.parameters)
    assert again == rule
    delta = np.linspace(-1, 1, 7)
    assert again.update(delta, again.init(7))[0].tobytes() == rule.update(delta, rule.init(7))[0].tobytes()


@each
@settings(max_examples=20)
@given(seed=st.integers(0, 1000), size=st.integers(1, 9))
def test_it_is_pure_keeps_its_state_s_shape_and_works_in_float64(rule: ServerOptimizer, seed: int, size: int) -> None:
    random = np.random.default_rng(seed)
    state = rule.init(size)
    for _ in range(3):
        delta = random.normal(size=size)
        before = {name: value.tobytes() for name, value in state.items()} | {"delta": delta.tobytes()}
        step, after = rule.update(delta, state)
        assert {name: value.tobytes() for name, value in state.items()} | {"delta": delta.tobytes()} == before
        assert step.dtype == np.float64 and step.shape == (size,) and np.isfinite(step).all()
        assert {name: (value.shape, value.dtype) for name, value in after.items()} == {
            name: (value.shape, np.dtype(np.float64)) for name, value in state.items()
        }
        state = after


@each
def test_nothing_moves_at_first_where_nothing_changes(rule: ServerOptimizer) -> None:
    step, _ = rule.update(np.array([0.0, 0.5]), rule.init(2))
    assert step[0] == 0 and step[1] > 0


@each
def test_each_weight_moves_by_its_own_change_alone(rule: ServerOptimizer) -> None:
    """So that a slice which no update covers can keep its state."""
    random = np.random.default_rng(0)
    whole, part = rule.init(6), rule.init(3)
    for _ in range(3):
        delta = random.normal(size=6)
        (step, whole), (alone, part) = rule.update(delta, whole), rule.update(delta[:3], part)
        np.testing.assert_array_equal(step[:3], alone)


WRONG: dict[str, Callable[[], ServerOptimizer]] = {
    "rate": lambda: server_adam(lr=0.0),
    "endless rate": lambda: server_adagrad(lr=float("inf")),
    "beta1": lambda: server_adam(beta1=1.0),
    "beta2": lambda: server_yogi(beta2=-0.1),
    "tau": lambda: server_yogi(tau=0.0),
    "not a number": lambda: server_adagrad(tau=float("nan")),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_number_out_of_range_is_refused(kind: str) -> None:
    with pytest.raises(errors.ExperimentError) as caught:
        WRONG[kind]()
    assert caught.value.reason == "server_optimizer"


def test_the_table_is_whole() -> None:
    assert {rule.name for rule in RULES.values()} == set(SERVER_OPTIMIZERS)
