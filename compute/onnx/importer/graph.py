"""A foreign graph as plain values. It is read with the ONNX package; what is made of it needs NumPy alone."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from coterie.compute.ir import FLOATS, NDArray
from coterie.compute.primitives.basic import ONNX_DTYPES

Size: TypeAlias = int | str | None
Held: TypeAlias = Mapping[str, NDArray]
_FLOAT_CODES = frozenset(ONNX_DTYPES[dtype] for dtype in FLOATS)


@dataclass(frozen=True, slots=True)
class Step:
    """One node."""

    operator: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Input:
    """One input: dtype, and sizes, where a name or None stands for any size."""

    name: str
    dtype: str
    sizes: tuple[Size, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """What a file says. steps: in the order of use. weights: what a training would change. statistics: running means
    and variances of normalisation. constants: every other tensor that it holds.
    """

    opset: int
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    steps: tuple[Step, ...]
    weights: Held
    statistics: Held
    constants: Held

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of what is given and computed, in the order of computation."""
        made = (name for step in self.steps for name in step.outputs if name)
        return (*(given.name for given in self.inputs), *made)

    @property
    def floats(self) -> frozenset[str]:
        """The float dtypes of what is given and held."""
        held = (*self.weights.values(), *self.statistics.values(), *self.constants.values())
        dtypes = {*(given.dtype for given in self.inputs), *(array.dtype.name for array in held)}
        return frozenset(dtypes & set(FLOATS))

    def cut(self, outputs: Sequence[str]) -> "Foreign":
        """The part that these tensors need, and nothing else."""
        steps = needed(self.steps, outputs)
        read = {*outputs, *(name for step in steps for name in step.inputs)}

        def kept(held: Held) -> Held:
            return {name: array for name, array in held.items() if name in read}

        return replace(
            self,
            inputs=tuple(given for given in self.inputs if given.name in read),
            outputs=tuple(outputs),
            steps=steps,
            weights=kept(self.weights),
            statistics=kept(self.statistics),
            constants=kept(self.constants),
        )

    def astype(self, dtype: str) -> "Foreign":
        """The same with another dtype for all floats."""

        def cast(held: Held) -> Held:
            return {name: array.astype(dtype) if array.dtype.name in FLOATS else array for name, array in held.items()}

        return replace(
            self,
            inputs=tuple(replace(given, dtype=dtype) if given.dtype in FLOATS else given for given in self.inputs),
            steps=tuple(replace(step, attributes=_cast(step, dtype)) for step in self.steps),
            weights=cast(self.weights),
            statistics=cast(self.statistics),
            constants=cast(self.constants),
        )


def _cast(step: Step, dtype: str) -> Mapping[str, Any]:
    """The attributes of a step, those that name a float dtype changed to another one."""
    if step.operator == "Cast" and step.attributes.get("to") in _FLOAT_CODES:
        return {**step.attributes, "to": ONNX_DTYPES[dtype]}
    if step.operator == "ConstantOfShape":
        value = np.asarray(step.attributes.get("value", np.zeros(1, np.float32)))
        return {**step.attributes, "value": value.astype(dtype)} if value.dtype.name in FLOATS else step.attributes
    return step.attributes


def needed(steps: Iterable[Step], outputs: Collection[str]) -> tuple[Step, ...]:
    """Those of the steps, which stand in the order of use, that the outputs depend on."""
    wanted, kept = set(outputs), list[Step]()
    for step in reversed(list(steps)):
        if wanted.intersection(step.outputs):
            wanted.update(step.inputs)
            kept.append(step)
    return tuple(reversed(kept))
