"""A small model that learns from a large one besides from labels."""

from collections.abc import Mapping
from dataclasses import dataclass

from coterie.compute import numpy as xp
from coterie.compute import ops
from coterie.compute.array import Array
from coterie.compute.compress.given import Given
from coterie.compute.ir import NDArray
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import Module, Parameters, ParameterSpec, refuse_shape, require
from coterie.errors import InputError

_TEACHER = "teacher."


def distilled(
    student: Module,
    teacher: Module,
    weights: Mapping[str, NDArray],
    *,
    temperature: float = 2.0,
    weight: float = 1.0,
) -> Module:
    """The student, which in training also minimises weight · T² · KL(softmax(teacher / T) ‖ softmax(student / T)), T
    the temperature (Hinton, Vinyals and Dean 2015, arXiv 1503.02531).

    student, teacher: models of the same input with the same logits [B, ..., K]. weights: the teacher's parameters and
    buffers. They are frozen parameters called "teacher.<name>": a plan carries them once, beside the student, devices
    see them, and nobody uploads them. The student's parameters keep their names, so its versions are those of the
    student alone; evaluation and the exported graph compute the student alone.

    The reported loss is that of the labels; the term is added to what is minimised. Raises InputError for weights that
    are not the teacher's and for numbers out of range.
    """
    if not 0 < temperature < float("inf") or not 0 <= weight < float("inf"):
        raise InputError(
            f"distilled: the temperature must be above 0 and the weight at least 0, got {temperature} and {weight}."
        )
    shapes = {name: spec.shape for name, spec in teacher.specs().items()}
    given = {name: value.shape for name, value in weights.items()}
    if wrong := sorted(name for name in {*shapes, *given} if shapes.get(name) != given.get(name)):
        raise InputError(
            f"distilled: the weights are not those of the teacher: {', '.join(wrong[:5])} differ.",
            hint="Give all parameters and buffers of the trained teacher, such as Trainer.params.",
        )
    return Distilled(student, teacher, dict(weights), temperature, weight)


@dataclass(frozen=True, eq=False)
class Distilled(Module):
    """See :func:`distilled`, which makes it and checks its parts."""

    student: Module
    teacher: Module
    weights: Mapping[str, NDArray]
    temperature: float
    weight: float

    def specs(self) -> dict[str, ParameterSpec]:
        frozen = {
            _TEACHER + name: ParameterSpec(value.shape, Given(value), "frozen") for name, value in self.weights.items()
        }
        return self.student.specs() | frozen

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        logits = self.student({name: params[name] for name in self.student.specs() if name in params}, x, mode)
        if mode.training and mode.penalise is not None:
            told = self.teacher({name: require(params, _TEACHER + name, self) for name in self.weights}, x, EVAL)
            if told.shape != logits.shape:
                refuse_shape(
                    self, "a teacher and a student of the same logits", told, logits, hint="Give both as many classes."
                )
            mode.penalise(self.weight * _divergence(ops.stop_gradient(told), logits, self.temperature))
        return logits


def _divergence(teacher: Array, student: Array, temperature: float) -> Array:
    """T² KL(softmax(teacher / T) ‖ softmax(student / T)), meaned over all axes between the first and the last, [B]."""
    wanted, found = (ops.log_softmax(logits / temperature) for logits in (teacher, student))
    values = xp.sum(xp.exp(wanted) * (wanted - found), axis=-1) * temperature**2
    return values if values.ndim == 1 else xp.mean(values, axis=tuple(range(1, values.ndim)))
