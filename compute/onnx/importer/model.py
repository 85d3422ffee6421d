"""A foreign inference graph as a function of its weights and inputs."""

from collections.abc import Mapping
from os import PathLike
from typing import Any, final

from coterie.compute.array import Array, ArrayLike, as_array
from coterie.compute.ir import NDArray
from coterie.compute.onnx.importer.operation import Operation
from coterie.compute.onnx.importer.reading import Foreign, Input, Step, read
from coterie.compute.onnx.importer.table import TRANSLATIONS
from coterie.compute.source import replaying, user_source
from coterie.compute.trace import TensorSpec
from coterie.errors import DTypeError, GraphRefused, InputError, ShapeError


@final
class ImportedModel:
    """``model(params, *inputs)``: what the graph computes; a pure function, so it can be differentiated with respect to
    ``params`` and inputs, compiled, mapped and exported like any other.

    parameters: the weights in the file, by name: float tensors that are read as data. Running statistics of
    normalisation and everything else in the file are constants. One output is given as an array, several as a tuple in
    the order of ``outputs``. inputs: name, dtype and sizes, where a name or None stands for any size; the sizes of a
    call fix them.
    """

    def __init__(self, foreign: Foreign) -> None:
        self._foreign = foreign
        self.parameters: dict[str, NDArray] = dict(foreign.parameters)
        self.inputs: tuple[Input, ...] = foreign.inputs
        self.outputs: tuple[str, ...] = foreign.outputs
        self._constants = {name: Array(value) for name, value in foreign.constants.items()}

    def specs(self, **sizes: int) -> tuple[TensorSpec, ...]:
        """The inputs with their open sizes given by name, for ``trace``. Raises InputError for a missing size."""

        def fixed(given: Input) -> TensorSpec:
            found = [sizes.get(size) if isinstance(size, str) else size for size in given.sizes]
            if None in found:
                raise InputError(
                    f"The input {given.name!r} has the sizes {list(given.sizes)}, and not all are given.",
                    hint="Name them, e.g. specs(batch=8).",
                )
            return TensorSpec(tuple(size for size in found if size is not None), given.dtype)

        return tuple(fixed(given) for given in self.inputs)

    def __call__(self, params: Mapping[str, ArrayLike], *inputs: ArrayLike) -> Any:
        """The outputs. Raises InputError for parameters or inputs that are missing, ShapeError and DTypeError for
        inputs that are not what the file says, GraphRefused where a size is computed from data.
        """
        environment: dict[str, Array] = dict(self._constants)
        environment.update(self._weights(params))
        environment.update(self._checked(inputs))
        with replaying(user_source()):
            for step in self._foreign.steps:
                results = self._applied(step, environment)
                environment.update(zip(step.outputs, results, strict=False))
        found = tuple(environment[name] for name in self.outputs)
        return found[0] if len(found) == 1 else found

    def _weights(self, params: Mapping[str, ArrayLike]) -> dict[str, Array]:
        if missing := [name for name in self.parameters if name not in params]:
            raise InputError(
                f"The model needs the parameters {', '.join(missing)}.", hint="Pass all of model.parameters, changed."
            )
        weights = {name: as_array(params[name]) for name in self.parameters}
        for name, array in weights.items():
            if array.shape != self.parameters[name].shape:
                raise ShapeError(
                    f"{user_source()}: the parameter {name!r} is {array.type}, and the file says "
                    f"{list(self.parameters[name].shape)}."
                )
        return weights

    def _checked(self, inputs: tuple[ArrayLike, ...]) -> dict[str, Array]:
        if len(inputs) != len(self.inputs):
            told = ", ".join(given.name for given in self.inputs)
            raise InputError(f"The model takes {len(self.inputs)} inputs ({told}), got {len(inputs)}.")
        sizes: dict[str, int] = {}
        arrays: dict[str, Array] = {}
        for given, x in zip(self.inputs, inputs, strict=True):
            array = as_array(x)
            where = f"{user_source()}: the input {given.name!r}"
            if array.type.dtype != given.dtype:
                raise DTypeError(
                    f"{where} is {given.dtype}, got {array.type}.", hint="Convert it with astype(x, dtype)."
                )
            named = [
                sizes.setdefault(size, n) if isinstance(size, str) else size
                for size, n in zip(given.sizes, array.shape, strict=False)
            ]
            fits = all(want in (None, n) for want, n in zip(named, array.shape, strict=False))
            if array.ndim != len(given.sizes) or not fits:
                raise ShapeError(f"{where} has the sizes {list(given.sizes)}, got {list(array.shape)}.")
            arrays[given.name] = array
        return arrays

    def _applied(self, step: Step, environment: Mapping[str, Array]) -> list[Array]:
        inputs = tuple(environment[name] if name else None for name in step.inputs)
        node = Operation(
            operator=step.operator,
            name=step.name,
            inputs=inputs,
            attributes=step.attributes,
            opset=self._foreign.opset,
            outputs=len(step.outputs),
        )
        try:
            results = TRANSLATIONS[step.operator](node)
        except GraphRefused:
            raise
        except InputError as error:
            message = f"The node {step.name!r} ({step.operator}): {error.message}"
            raise type(error)(message, hint=error.hint, code=error.reason, **error.details) from error
        except (ArithmeticError, LookupError, MemoryError, TypeError, ValueError) as error:
            # What a well-formed file cannot do: the translations trust types and numbers of arguments.
            told = f"{type(error).__name__}: {error}".rstrip(".")
            node.refuse(f"it does not fit its inputs ({told})", "The file is damaged: export it again.")
        return [results] if isinstance(results, Array) else list(results)


def load(source: str | PathLike[str] | bytes) -> ImportedModel:
    """An inference graph of operator set 13 to 21 from an ordinary exporter, by path or as bytes.

        model = compute.onnx.load("model.onnx")
        gradients = grad(lambda params: loss(model(params, x), labels))(model.parameters)

    Raises StorageError when the file cannot be read, GraphRefused (code import_refused) for what is no ONNX graph, and
    for an operator, dtype or operator set that is not translated, naming the node. Weights in a file beside it are read
    when the path is given.
    """
    return ImportedModel(read(source))
