"""What each tensor that a file holds is for: a weight, a running statistic, or a constant."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from onnx import defs

from coterie.compute.ir import FLOATS, NDArray
from coterie.compute.onnx.importer.checks import refuse_broken
from coterie.compute.onnx.importer.declared import Declared, warn_of_folded_convolutions, warn_of_folding
from coterie.compute.onnx.importer.graph import Foreign, Held, Input, Step
from coterie.compute.onnx.importer.table import KNOWN_INPUTS, STATISTICS

_PRODUCTS = frozenset(("Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul"))
_WEIGHING = _PRODUCTS | frozenset(
    (
        "BatchNormalization",
        "GRU",
        "GroupNormalization",
        "InstanceNormalization",
        "LSTM",
        "LayerNormalization",
        "PRelu",
        "RNN",
    )
)


def sorted_by_use(
    *,
    opset: int,
    inputs: tuple[Input, ...],
    outputs: Sequence[str],
    steps: Sequence[Step],
    held: Held,
    listed: Collection[str],
    declared: Declared | None,
) -> Foreign:
    """The file as values, what it holds sorted by what it is for. Raises GraphRefused for weights that are broken.

    listed: the tensors that stand in the list of initialisers. declared: what the exporter says of them; where it has
    kept a module's parameters, these are the weights and nothing else is.

    Weights are float tensors of at least one axis that are read as data, and finite: infinite numbers are masks, where
    nothing is multiplied by them. Sizes, first states and running statistics are none. A single number is one where a
    product, a normalisation or a recurrent layer reads it, or where it is added to a product; elsewhere it is a factor
    or an epsilon of the author's.
    """
    steps = _without_unread(steps, outputs)
    folded = declared is not None and declared.is_folded(held, listed, _read_as_data(steps, held))
    if declared is None or folded:
        steps, held = _told_apart(opset, steps, held)
    means, variances = ({step.inputs[places[i]] for step, places in _normalising(steps)} for i in (0, 1))
    moved = means | variances
    trained = _read_as_data(steps, held) - moved
    if declared is None:
        warn_of_folded_convolutions(steps)
    elif folded:
        warn_of_folding(declared, held)
        trained -= declared.others
    else:
        read_at_all = {name for step in steps for name in step.inputs}
        trained = {name for name in declared.parameters & read_at_all if name in held} - moved
    weights = {name: array for name, array in held.items() if name in trained}
    statistics = {name: array for name, array in held.items() if name in moved}
    weighing = {name for step in steps if step.operator in _WEIGHING for name in step.inputs}
    refuse_broken(weights, statistics, variances, weighing)
    weights = {name: array for name, array in weights.items() if np.isfinite(array).all()}
    read = {*outputs, *(name for step in steps for name in step.inputs)}
    return Foreign(
        opset=opset,
        inputs=inputs,
        outputs=tuple(outputs),
        steps=tuple(steps),
        weights=weights,
        statistics=statistics,
        constants={name: held[name] for name in held if name in read and name not in {*weights, *statistics}},
    )


def _without_unread(steps: Sequence[Step], outputs: Sequence[str]) -> list[Step]:
    """The steps without outputs that nobody reads, which some translations do not make. A split counts its parts."""
    read = {*outputs, *(name for step in steps for name in step.inputs)}

    def kept(step: Step) -> tuple[str, ...]:
        names = [name if name in read else "" for name in step.outputs]
        while names and not names[-1]:
            names.pop()
        return tuple(names)

    return [step if step.operator == "Split" else replace(step, outputs=kept(step)) for step in steps]


def is_uniform(array: NDArray) -> bool:
    """Whether all numbers of a tensor are the same."""
    return bool(array.size) and bool((array == array.reshape(-1)[0]).all())


def _told_apart(opset: int, steps: Sequence[Step], held: Held) -> tuple[list[Step], dict[str, NDArray]]:
    """Exporters write one tensor for several that happen to be equal, as the scales, offsets and running statistics of
    a new model are. Trained, they must not move together: a float tensor of equal numbers that is read more than once
    becomes one for each reading, called NODE.INPUT. Others that are read more than once are one weight, as in the file.
    """
    alike = {name for name, array in held.items() if array.dtype.name in FLOATS and array.size > 1 and array.ndim}
    alike = {name for name in alike if is_uniform(held[name])}
    apart, seen, made = dict(held), set[str](), list[Step]()
    taken = {*held, *(name for step in steps for name in (*step.inputs, *step.outputs))}
    for step in steps:
        names = list(step.inputs)
        for index, name in enumerate(names):
            if name not in alike or index in KNOWN_INPUTS.get(step.operator, ()):
                continue
            if name in seen:
                names[index] = _unused(f"{step.name}.{_input_name(step.operator, opset, index)}", taken)
                apart[names[index]] = held[name]
                taken.add(names[index])
            seen.add(name)
        made.append(replace(step, inputs=tuple(names)))
    return made, apart


def _unused(name: str, taken: Collection[str]) -> str:
    """The name, or with a number behind it where a tensor has it already: names of nodes need not differ."""
    return next(each for each in (name, *(f"{name}.{n}" for n in range(2, len(taken) + 3))) if each not in taken)


def _input_name(operator: str, opset: int, index: int) -> str:
    try:
        inputs = defs.get_schema(operator, opset).inputs
    except defs.SchemaError:
        return str(index)
    return inputs[index].name if index < len(inputs) else str(index)


def _normalising(steps: Iterable[Step]) -> list[tuple[Step, tuple[int, int]]]:
    """The steps with running statistics, and where these stand."""
    found = [(step, STATISTICS[step.operator]) for step in steps if step.operator in STATISTICS]
    return [(step, places) for step, places in found if len(step.inputs) > max(places)]


def _read_as_data(steps: Iterable[Step], held: Mapping[str, NDArray]) -> set[str]:
    floats = {name for name, array in held.items() if array.dtype.name in FLOATS and array.ndim}
    makers: dict[str, str] = {}
    found: set[str] = set()
    for step in steps:
        before = {makers.get(name) for name in step.inputs}
        weighing = step.operator in _WEIGHING or (step.operator == "Add" and before & _PRODUCTS)
        others = KNOWN_INPUTS.get(step.operator, ())
        # Exporters write normalisation by groups as one by instances of a reshaped array, with a scale and an offset
        # of its own that do nothing; those that are trained follow.
        if step.operator == "InstanceNormalization" and makers.get(step.inputs[0] if step.inputs else "") == "Reshape":
            others = (1, 2) if all(name in held and is_uniform(held[name]) for name in step.inputs[1:]) else others
        found.update(
            name
            for index, name in enumerate(step.inputs)
            if name in floats and index not in others and (weighing or held[name].size > 1)
        )
        makers.update(dict.fromkeys(step.outputs, step.operator))
    return found
