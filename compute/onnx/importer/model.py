"""A foreign inference graph as a function of its weights and inputs."""

from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, cast, final

from coterie.compute.array import Array, ArrayLike, as_array
from coterie.compute.ir import FLOATS, NDArray
from coterie.compute.limits import TooLarge, at_most
from coterie.compute.onnx.importer.graph import Foreign, Input, Step
from coterie.compute.onnx.importer.operation import MOST_ELEMENTS, BatchNormaliser, Operation
from coterie.compute.onnx.importer.table import TRANSLATIONS
from coterie.compute.source import replaying, user_source
from coterie.compute.trace import TensorSpec
from coterie.errors import DTypeError, GraphRefused, InputError, ShapeError


@final
class ImportedModel:
    """``model(params, *inputs)``: what the graph computes; a pure function, so it can be differentiated with respect to
    ``params`` and inputs, compiled, mapped and exported like any other.

    parameters: the weights that are trained, by their names in the file: float tensors that are read as data. frozen:
    those that ``freeze`` took out of them, with the running statistics that it names. buffers: the other running
    statistics of batch normalisation, as the file has them. Everything else in the file is constant. One output is
    given as an array, several as a tuple in the order of ``outputs``. inputs: name, dtype and sizes, where a name or
    None stands for any size; the sizes of a call fix them. tensors: names of all that is given and computed, for
    ``cut``.

    Models are values: ``freeze``, ``unfreeze``, ``cut`` and ``astype`` give new ones.
    """

    def __init__(self, foreign: Foreign, frozen: Collection[str] = ()) -> None:
        self._foreign = foreign
        self._frozen = frozenset(frozen)
        self.parameters: dict[str, NDArray] = _without(foreign.weights, self._frozen)
        self.buffers: dict[str, NDArray] = _without(foreign.statistics, self._frozen)
        held = {**foreign.weights, **foreign.statistics}
        self.frozen: dict[str, NDArray] = {name: array for name, array in held.items() if name in self._frozen}
        self.inputs: tuple[Input, ...] = foreign.inputs
        self.outputs: tuple[str, ...] = foreign.outputs
        self.tensors: tuple[str, ...] = foreign.tensors
        self._constants = {name: Array(value) for name, value in foreign.constants.items()}
        self._last_readers = _last_readers(foreign.steps, foreign.outputs)

    def __repr__(self) -> str:
        ends = " → ".join((", ".join(given.name for given in self.inputs), ", ".join(self.outputs)))
        return f"ImportedModel({ends}, {len(self.parameters)} weights to train, {len(self.frozen)} frozen)"

    def freeze(self, *patterns: str) -> "ImportedModel":
        """The model with the weights of these names or patterns (``features.*``) frozen, and with them their running
        statistics: a layer of batch normalisation whose statistics are frozen uses them in training too.

        Raises InputError for a pattern that no name fits.
        """
        return ImportedModel(self._foreign, self._frozen | self._fitting(patterns))

    def unfreeze(self, *patterns: str) -> "ImportedModel":
        """The reverse of :meth:`freeze`: ``model.freeze("*").unfreeze("head.*")`` trains the head alone."""
        return ImportedModel(self._foreign, self._frozen - self._fitting(patterns))

    def cut(self, *tensors: str) -> "ImportedModel":
        """The part of the model that computes these tensors, given and returned in this order: without its last layers,
        say. Weights and inputs that they do not need are gone. Raises InputError for a name that is no tensor.
        """
        unknown = [name for name in tensors if name not in self.tensors]
        if unknown or not tensors:
            told = f"no tensor {unknown[0]!r}" if unknown else "no part without outputs"
            last = ", ".join(self.tensors[-12:])
            raise InputError(f"The model has {told}.", hint=f"Its last tensors are {last}; see model.tensors.")
        return ImportedModel(self._foreign.cut(tensors), self._frozen)

    def astype(self, dtype: str) -> "ImportedModel":
        """The model with weights, constants and inputs of this float dtype. Raises InputError for another dtype."""
        if dtype not in FLOATS:
            raise InputError(
                f"{dtype!r} is no float dtype that a model computes in.", hint=f"There are {', '.join(FLOATS)}."
            )
        if self._foreign.floats <= {dtype}:
            return self
        return ImportedModel(self._foreign.astype(dtype), self._frozen)

    def made_by(self, tensor: str) -> Step | None:
        """The node that computes a tensor; None for an input or a tensor that the file holds."""
        return next((step for step in self._foreign.steps if tensor in step.outputs), None)

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
        """The outputs. params: all of ``parameters``; frozen weights and buffers may be among them, and are those of
        the file otherwise.

        Raises InputError for parameters or inputs that are missing, ShapeError and DTypeError for inputs that are not
        what the file says, GraphRefused where a size is computed from data.
        """
        return self.run(params, inputs)

    def run(
        self,
        params: Mapping[str, ArrayLike],
        inputs: tuple[ArrayLike, ...],
        batch_norm: BatchNormaliser | None = None,
    ) -> Any:
        """As a call. batch_norm: called for every layer of batch normalisation instead of what the file says, which is
        to use its running statistics.
        """
        environment: dict[str, Array] = dict(self._constants)
        fixed, made = set(environment), 0
        environment.update(self._weights(params))
        environment.update(self._checked(inputs))
        with replaying(user_source()):
            for step, done in zip(self._foreign.steps, self._last_readers, strict=True):
                results = self._applied(step, environment, batch_norm)
                if fixed.issuperset(name for name in step.inputs if name):
                    fixed.update(step.outputs)
                    made += sum(array.size for array in results)
                    _refuse_much(step, made)
                environment.update(zip(step.outputs, results, strict=False))
                for name in done:
                    environment.pop(name, None)
        found = tuple(environment[name] for name in self.outputs)
        return found[0] if len(found) == 1 else found

    def _fitting(self, patterns: tuple[str, ...]) -> frozenset[str]:
        names = (*self._foreign.weights, *self._foreign.statistics)
        for pattern in patterns:
            if not isinstance(cast(object, pattern), str):
                raise InputError(
                    f"{pattern!r} is no name of a weight.", hint='Give each by itself: freeze("a", "b.*").'
                )
            if not any(_fits(name, pattern) for name in names):
                told = f"{', '.join(names[:12])}{', …' if len(names) > 12 else ''}"
                raise InputError(f"No weight of the model is called {pattern!r}.", hint=f"There are {told or 'none'}.")
        return frozenset(name for name in names if any(_fits(name, pattern) for pattern in patterns))

    def _weights(self, params: Mapping[str, ArrayLike]) -> dict[str, Array]:
        if not isinstance(cast(object, params), Mapping):
            raise InputError(
                f"The parameters are a dict by names, got {type(params).__name__}.",
                hint="Call model(model.parameters, x).",
            )
        if missing := [name for name in self.parameters if name not in params]:
            raise InputError(
                f"The model needs the parameters {', '.join(missing)}.", hint="Pass all of model.parameters, changed."
            )
        held = {**self._foreign.weights, **self._foreign.statistics}
        weights = {name: as_array(params.get(name, value)) for name, value in held.items()}
        for name, array in weights.items():
            if array.shape != held[name].shape:
                raise ShapeError(
                    f"{user_source()}: the parameter {name!r} is {array.type}, and the file says "
                    f"{list(held[name].shape)}."
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
                raise ShapeError(
                    f"{where} has the sizes {list(given.sizes)}, got {list(array.shape)}.", hint=_hint(given, array)
                )
            arrays[given.name] = array
        return arrays

    def _applied(self, step: Step, environment: Mapping[str, Array], batch_norm: BatchNormaliser | None) -> list[Array]:
        inputs = tuple(environment[name] if name else None for name in step.inputs)
        node = Operation(
            operator=step.operator,
            name=step.name,
            inputs=inputs,
            attributes=step.attributes,
            opset=self._foreign.opset,
            outputs=len(step.outputs),
            batch_norm=batch_norm,
        )
        try:
            with at_most(MOST_ELEMENTS):
                results = TRANSLATIONS[step.operator](node)
        except GraphRefused:
            raise
        except InputError as error:
            message = f"The node {step.name!r} ({step.operator}): {error.message}"
            raise type(error)(message, hint=error.hint, code=error.reason, **error.details) from error
        except TooLarge as error:
            node.refuse(f"it makes {error}", f"At most {MOST_ELEMENTS} are made; export smaller sizes.")
        except (ArithmeticError, LookupError, MemoryError, TypeError, ValueError) as error:
            # What a well-formed file cannot do: the translations trust types and numbers of arguments.
            told = f"{type(error).__name__}: {error}".rstrip(".")
            node.refuse(f"it does not fit its inputs ({told})", "The file is damaged: export it again.")
        found = [results] if isinstance(results, Array) else list(results)
        if len(found) < len(step.outputs):
            node.refuse(f"its output {len(found)} is used", f"Only {len(found)} of its outputs are translated.")
        return found


def _fits(name: str, pattern: str) -> bool:
    """Whether a name is the pattern, letter by letter (``layers[0].weight``), or of it."""
    return name == pattern or fnmatchcase(name, pattern)


def _without(held: Mapping[str, NDArray], names: Collection[str]) -> dict[str, NDArray]:
    return {name: array for name, array in held.items() if name not in names}


def _hint(given: Input, array: Array) -> str | None:
    rest = [size for size in given.sizes[1:] if isinstance(size, int)]
    if given.sizes and given.sizes[0] == 1 and list(array.shape[1:]) == rest:
        return 'It was exported for one example: export with an open first axis (dynamic_axes={"x": {0: "batch"}}).'
    return None


def _last_readers(steps: Iterable[Step], outputs: Collection[str]) -> tuple[tuple[str, ...], ...]:
    """For each step, the tensors that nobody reads after it."""
    later, found = set(outputs), list[tuple[str, ...]]()
    for step in reversed(list(steps)):
        done = {*step.inputs, *step.outputs} - later
        found.append(tuple(sorted(done)))
        later.update(step.inputs)
    return tuple(reversed(found))


def _refuse_much(step: Step, made: int) -> None:
    if made > MOST_ELEMENTS:
        raise GraphRefused(
            f"Up to the node {step.name!r} ({step.operator}) the file makes {made} elements out of its constants.",
            hint=f"At most {MOST_ELEMENTS} are made; export smaller sizes.",
            code="import_refused",
            operator=step.operator,
            node=step.name,
        )
