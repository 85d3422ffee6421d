"""A student minimises what the paper says, and learns from its teacher what the labels do not tell."""

from typing import Any

import numpy as np
import pytest

from coterie.compute import nn, optim
from coterie.compute.array import Array
from coterie.compute.autodiff import value_and_grad
from coterie.compute.compress import distilled
from coterie.compute.ir import NDArray
from coterie.compute.nn import mode as modes
from coterie.compute.nn.initialisers import Constant
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.metrics import accuracy
from coterie.compute.training import Trainer
from coterie.errors import InputError, ShapeError

TEACHER = nn.Sequential(nn.Linear(2, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 3))
STUDENT = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))


def softmax(x: NDArray) -> NDArray:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


@pytest.mark.capability("G12")
def test_the_term_and_its_gradient_are_those_of_the_paper() -> None:
    """Hinton, Vinyals and Dean 2015, eq. 2: the gradient with respect to the student's logits is T (q - p), for the
    softened probabilities q of the student and p of the teacher.
    """
    rng = np.random.default_rng(0)
    x, teacher, student = (rng.normal(size=(5, k)).astype(np.float32) * 2 for k in (2, 3, 3))
    temperature = 3.0

    class Told(nn.Module):
        """Logits that are given: a parameter."""

        def specs(self) -> dict[str, nn.ParameterSpec]:
            return {"logits": nn.ParameterSpec((5, 3), Constant(0.0))}

        def __call__(self, params: Any, x: Array, mode: modes.Mode = modes.EVAL) -> Array:
            return params["logits"]

    model = distilled(Told(), Told(), {"logits": teacher}, temperature=temperature, weight=0.5)
    given = {name: Array(value) for name, value in model.init(0).items()}

    def term(logits: Array) -> Array:
        found: list[Array] = []
        mode = modes.Mode(training=True, penalise=found.append)
        model({**given, "logits": logits}, Array(x), mode)
        (values,) = found
        assert values.shape == (5,)
        return values.sum()

    value, gradient = value_and_grad(term)(Array(student))
    p, q = softmax(teacher / temperature), softmax(student / temperature)
    expected = 0.5 * temperature**2 * (p * (np.log(p) - np.log(q))).sum()
    np.testing.assert_allclose(value.numpy(), expected, rtol=1e-5)
    np.testing.assert_allclose(gradient.numpy(), 0.5 * temperature * (q - p), atol=1e-5)


def moons(count: int, seed: int) -> dict[str, NDArray]:
    """Three arms of a spiral: more than a few labelled rows tell a student alone."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, count)
    r = rng.uniform(0.2, 1, count)
    angle = r * 3 + y * 2 * np.pi / 3
    x = np.stack([r * np.cos(angle), r * np.sin(angle)], 1) * 2 + rng.normal(0, 0.08, (count, 2))
    return {"x": x.astype(np.float32), "y": y.astype(np.int32)}


def trainer(model: nn.Module, **options: Any) -> Trainer:
    return Trainer(
        model, softmax_cross_entropy, optim.adam(0.02), metrics={"accuracy": accuracy}, batch_size=32, **options
    )


@pytest.mark.capability("G12")
def test_a_student_learns_from_wrong_labels_what_the_teacher_knows() -> None:
    test = moons(600, 9)
    teacher = trainer(TEACHER)
    teacher.fit(moons(960, 0), epochs=8)
    assert teacher.evaluate(test)["accuracy"] > 0.9
    noisy = moons(480, 1)
    wrong = np.random.default_rng(2).random(480) < 0.5
    noisy["y"] = np.where(wrong, (noisy["y"] + 1) % 3, noisy["y"]).astype(np.int32)
    alone = trainer(STUDENT)
    alone.fit(noisy, epochs=12)
    model = distilled(STUDENT, TEACHER, teacher.params, weight=4.0)
    taught = trainer(model)
    fit = taught.fit(noisy, epochs=12)
    assert taught.evaluate(test)["accuracy"] > alone.evaluate(test)["accuracy"] + 0.1
    for name, value in teacher.params.items():
        np.testing.assert_array_equal(taught.params[f"teacher.{name}"], value, "the teacher does not move")
    # The loss that is told is that of the labels, which half of them contradict.
    assert fit.epochs[-1] > 0.5 and taught.evaluate(test)["loss"] < fit.epochs[-1]


@pytest.mark.capability("G12")
def test_evaluation_and_what_is_exported_are_the_student_alone() -> None:
    model = distilled(STUDENT, TEACHER, TEACHER.init(1))
    assert {name for name, spec in model.specs().items() if spec.role != "frozen"} == set(STUDENT.specs())
    x = Array(moons(7, 0)["x"])
    params = {name: Array(value) for name, value in STUDENT.init(0).items()}
    np.testing.assert_array_equal(model(params, x).numpy(), STUDENT(params, x).numpy())


def test_without_a_weight_it_is_training_without_a_teacher() -> None:
    data = moons(64, 3)
    plain, taught = trainer(STUDENT), trainer(distilled(STUDENT, TEACHER, TEACHER.init(0), weight=0.0))
    np.testing.assert_allclose(plain.fit(data, epochs=2).losses, taught.fit(data, epochs=2).losses, rtol=1e-5)


def test_mistakes_are_named() -> None:
    with pytest.raises(InputError, match=r"not those of the teacher: 0.bias"):
        distilled(STUDENT, TEACHER, {name: value for name, value in TEACHER.init(0).items() if name != "0.bias"})
    for options in ({"temperature": 0.0}, {"weight": -1.0}):
        with pytest.raises(InputError, match="temperature must be above 0"):
            distilled(STUDENT, TEACHER, TEACHER.init(0), **options)
    other = nn.Sequential(nn.Linear(2, 4))
    with pytest.raises(ShapeError, match="same logits"):
        trainer(distilled(STUDENT, other, other.init(0))).fit(moons(32, 0))
