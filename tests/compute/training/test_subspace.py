"""Training in the subspace of principal components: exact on quadratics, restoring on rejection (H3)."""

# The tables hold small lambdas, whose parameters have no declared types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from coterie.compute import nn
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.ir import NDArray
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.optim import dimension_reduction, principal_subspace, sgd
from coterie.compute.training.trainer import Trainer
from coterie.errors import InputError

RNG = np.random.default_rng(0)
SIZE = 60
ROTATION, _ = np.linalg.qr(RNG.normal(size=(SIZE, SIZE)))
HESSIAN = (ROTATION * np.geomspace(1, 300, SIZE)) @ ROTATION.T
TARGET = RNG.normal(size=SIZE)
Tree = dict[str, Any]


def quadratic(tree: Tree) -> Array:
    away = xp.concat([tree["b"], xp.reshape(tree["w"], (40,))]) - Array(TARGET)
    return 0.5 * xp.sum(away * (Array(HESSIAN) @ away))


def as_tree(x: NDArray) -> Tree:
    return {"b": x[:20], "w": x[20:].reshape(8, 5)}


def descent(count: int) -> list[NDArray]:
    """Checkpoints of noisy gradient descent."""
    noise = np.random.default_rng(count)  # of its own, so that tests do not depend on their order
    x, found = np.zeros(SIZE), list[NDArray]()
    for _ in range(count):
        x = x - 0.003 * (HESSIAN @ (x - TARGET) + noise.normal(size=SIZE))
        found.append(x)
    return found


@pytest.mark.parametrize("size", [4, 32])
def test_h3_a_quadratic_is_at_its_minimum_after_as_many_steps_as_directions(size: int) -> None:
    checkpoints = descent(48)
    space = principal_subspace([as_tree(x) for x in checkpoints], size)
    assert space.size == size
    np.testing.assert_allclose(space.directions @ space.directions.T, np.eye(size), atol=1e-10)
    training = dimension_reduction(quadratic, space)
    state = training.init(as_tree(checkpoints[-1]))
    first = None
    for _ in range(size):
        state = training.update(state)
        first = state.gradient if first is None else first
    last = training.update(state)
    # The minimum within the subspace, by linear algebra.
    flat = space.flat.vector(as_tree(checkpoints[-1]))
    along = space.directions
    exact = flat - along.T @ np.linalg.solve(along @ HESSIAN @ along.T, along @ HESSIAN @ (flat - TARGET))
    assert state.value == pytest.approx(0.5 * (exact - TARGET) @ HESSIAN @ (exact - TARGET), rel=1e-6)
    # At the minimum itself a step may find nothing lower, to the last digit, and be taken back.
    assert first is not None and last.gradient < 1e-6 * first
    np.testing.assert_allclose(space.flat.vector(state.params), exact, atol=1e-6)


def test_h3_a_rejected_step_restores_the_weights_bit_for_bit() -> None:
    checkpoints = [as_tree(x.astype(np.float32)) for x in descent(40)]
    space = principal_subspace(checkpoints, 32)
    kink = {name: value.copy() for name, value in checkpoints[-1].items()}
    kink["w"][0, 0] = -0.0

    def worse_everywhere(tree: Tree, sign: Array) -> Array:
        """Lowest at the start, with a slope all the same: nothing lower can be found."""
        away = sum((xp.sum(xp.abs(tree[name] - Array(kink[name]))) for name in kink), xp.zeros(()))
        return away + sign * 1e-3 * xp.sum(tree["b"])

    training = dimension_reduction(worse_everywhere, space)
    state = training.init(kink)
    after = training.update(state, np.float32(1))
    assert not after.accepted and (after.steps, after.rejected) == (1, 1)
    for name, value in kink.items():
        assert after.params[name].numpy().tobytes() == value.tobytes()
    assert np.array_equal(after.inverse, np.eye(32)), "what was known of the curvature is forgotten"


def test_a_value_never_rises_and_parameters_stay_in_the_subspace() -> None:
    space = principal_subspace([as_tree(x) for x in descent(12)], 5)

    def bumpy(tree: Tree) -> Array:
        return quadratic(tree) + 30.0 * xp.sum(xp.cos(3.0 * tree["b"]))

    training, start = dimension_reduction(bumpy, space), as_tree(np.ones(SIZE))
    state, values = training.init(start), list[float]()
    for _ in range(15):
        state = training.update(state)
        values.append(state.value)
    assert (np.diff(values) <= 0).all() and values[-1] < values[0]
    moved = space.flat.vector(state.params) - 1.0
    np.testing.assert_allclose(moved, (space.directions @ moved) @ space.directions, atol=1e-9)


def test_h3_two_stages_train_a_network() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(120, 6)).astype(np.float32)
    y = (np.abs(x[:, :3]).argmax(axis=1)).astype(np.int32)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    trainer = Trainer(model, softmax_cross_entropy, sgd(0.2, momentum=0.5), batch_size=30, seed=2)
    checkpoints: list[Tree] = []
    for _ in range(40):
        trainer.fit({"x": x, "y": y}, steps=4)
        checkpoints.append(trainer.params)
    before = trainer.evaluate({"x": x, "y": y})["loss"]

    def whole(params: Tree, x: Array, y: Array) -> Array:
        return xp.mean(softmax_cross_entropy(model(params, x), y))

    training = dimension_reduction(whole, principal_subspace(checkpoints, 32))
    state = training.init(checkpoints[-1])
    for _ in range(30):
        state = training.update(state, x, y)
    trainer.fit({"x": x, "y": y}, steps=30)
    assert state.value < 0.8 * before and state.value < trainer.evaluate({"x": x, "y": y})["loss"]


def test_directions_that_are_only_rounding_are_left_out() -> None:
    line = np.outer(np.arange(40.0), RNG.normal(size=SIZE)) + 3.0
    assert principal_subspace([as_tree(x) for x in line], 32).size == 1


MISTAKES: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: principal_subspace(
            [{"w": np.full(shape, 0.5 * at)} for at, shape in enumerate([(2, 3), (3, 2), 6])], 2
        ),
        r"The trees differ: w is float64\[3,2\] in one, float64\[2,3\] in another",
    ),
    (
        lambda: principal_subspace([{"w": np.full(2, value)} for value in (0.0, 1.0, np.nan)], 2),
        "hold numbers that are not finite",
    ),
    (
        lambda: principal_subspace([as_tree(x) for x in descent(32)]),
        "32 directions need more than 32 checkpoints, got 32",
    ),
    (lambda: principal_subspace([as_tree(np.ones(SIZE))] * 4, 2), "all the same"),
    (lambda: principal_subspace([as_tree(np.ones(SIZE)), {"w": np.ones(60)}], 1), "different structures"),
]


@pytest.mark.parametrize(("make", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_mistakes_are_named(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
