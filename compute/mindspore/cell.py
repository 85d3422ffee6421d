"""The network class: parameters and other networks as attributes, and ``construct``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self, cast

from coterie.compute.array import Array
from coterie.compute.control.derived import custom_vjp
from coterie.compute.interactive.frontend.rewrite import rewrite
from coterie.compute.interactive.mode import get_mode
from coterie.compute.mindspore.compiled import Jitted
from coterie.compute.mindspore.context import uniform
from coterie.compute.mindspore.parameter import Parameter, step_recorder
from coterie.compute.mindspore.running import running
from coterie.compute.mindspore.tensor import tensors
from coterie.compute.nn.mode import EVAL, Mode, train
from coterie.compute.recorder import RECORDER
from coterie.compute.source import user_source
from coterie.errors import ArgumentTypeError, ArgumentValueError, InputError, TraceError


class Cell:
    """A network or a layer. Subclasses set Parameters and Cells as attributes in ``__init__`` and compute in
    ``construct``.

    A Parameter is named by its attribute unless it has a name, and its name is prefixed by the attribute of every Cell
    around it: "backbone.dense.weight". With ``auto_prefix=False`` a Cell leaves the names of the Cells in it alone.
    A subclass that defines ``bprop(*inputs, out, dout)`` gives its own gradient. Raises ArgumentValueError for two
    Parameters of one name, InputError for an attribute set before ``super().__init__()``.
    """

    def __init__(self, auto_prefix: bool = True) -> None:
        self._auto_prefix = auto_prefix
        self._parameters: dict[str, Parameter] = {}
        self._cells: dict[str, Cell] = {}
        self._traceable: Any = None
        self._compiled: Jitted | None = None
        self.training = False

    def __setattr__(self, name: str, value: Any) -> None:
        known = self.__dict__.get("_parameters", {})
        if name in known and not isinstance(value, Parameter):
            if not isinstance(value, Array):
                raise ArgumentTypeError(
                    f"{user_source()}: {type(self).__name__}.{name} is a Parameter, not a {type(value).__name__}.",
                    hint=f"Write another value into it: {name}.set_data(Tensor(...)).",
                )
            known[name].set_data(value)
            return
        if name not in _BESIDE:
            self._refuse_change(f"sets the attribute {name!r}")
        if isinstance(value, (Parameter, Cell)):
            if "_cells" not in self.__dict__:
                raise InputError(
                    f"{type(self).__name__}: {name} is set before the Cell is made.",
                    hint="Call super().__init__() first in __init__.",
                )
            self._cells.pop(name, None)
            self._parameters.pop(name, None)
            if isinstance(value, Parameter):
                self.insert_param_to_cell(name, value)
            else:
                self.insert_child_to_cell(name, value)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        self._refuse_change(f"deletes the attribute {name!r}")
        self._cells.pop(name, None)
        self._parameters.pop(name, None)
        super().__delattr__(name)

    def _refuse_change(self, what: str) -> None:
        call = running()
        if call is not None and id(self) in call.cells:
            raise TraceError(
                f"{user_source()}: {type(self).__name__} {what} while it computes; a graph would do that once, and not "
                "in every step.",
                hint="Use a local variable, or a Parameter with requires_grad=False that is a buffer of as_module.",
            )

    def insert_param_to_cell(self, name: str, parameter: Parameter) -> None:
        """Add a Parameter under the name of an attribute."""
        parameter.name = parameter.name or name
        self._refuse_twins([*self.get_parameters(), parameter])
        self._parameters[name] = parameter

    def insert_child_to_cell(self, name: str, cell: Cell) -> None:
        """Add a Cell under the name of an attribute, and prefix the names of its Parameters."""
        known = {id(parameter) for parameter in self.get_parameters()}
        new = [parameter for parameter in cell.get_parameters() if id(parameter) not in known]
        if self._auto_prefix:
            for parameter in new:
                parameter.name = f"{name}.{parameter.name}"
        self._refuse_twins([*self.get_parameters(), *new])
        self._cells[name] = cell

    def _refuse_twins(self, parameters: list[Parameter]) -> None:
        seen: dict[str, Parameter] = {}
        for parameter in parameters:
            if seen.setdefault(parameter.name, parameter) is not parameter:
                raise ArgumentValueError(
                    f"{type(self).__name__} has two parameters named {parameter.name!r}.",
                    hint="Give one of them another name, or none, so that its attribute names it.",
                )

    def facts(self) -> dict[str, Any]:
        """What a graph of this Cell takes as given: its attributes, and which Cells and Parameters are in it."""
        held = {name: value for name, value in vars(self).items() if name not in _BESIDE}
        return held | {f"in.{name}": part for name, part in {**self._cells, **self._parameters}.items()}

    def construct(self, *inputs: Any, **named: Any) -> Any:
        """The outputs for these inputs; what subclasses define."""
        raise InputError(f"{type(self).__name__} has no construct.", hint="Define construct(self, ...) in the class.")

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        if RECORDER.get() is None and get_mode() == "graph":
            if self._compiled is None:
                self._compiled = Jitted(self._run, capture_mode="trace")
            return self._compiled(*inputs, **named)
        return tensors(self._run(*inputs, **named))

    def _run(self, *inputs: Any, **named: Any) -> Any:
        recorder = step_recorder()
        if recorder is not None:
            recorder.cells.add(self)
        call = running()
        if call is not None and id(self) not in call.cells and any(True for _ in self.get_parameters()):
            raise TraceError(
                f"{user_source()}: {call.network} calls a {type(self).__name__} that is not one of its parts, so "
                "nothing would train it.",
                hint="Hold it as an attribute; Cells in a plain list belong in a CellList.",
            )
        if RECORDER.get() is None:
            return self.construct(*inputs, **named)
        if self._traceable is None:
            bprop = getattr(self, "bprop", None)
            construct = rewrite(self.construct)
            self._traceable = construct if bprop is None else custom_vjp(_taking_tensors(bprop))(construct)
        return self._traceable(*tensors(inputs), **named)

    def parameters_and_names(self, expand: bool = True) -> Iterator[tuple[str, Parameter]]:
        """Every Parameter once, under its name; expand: those of the Cells in it too."""
        seen: set[int] = set()
        holders = [cell for _, cell in self.cells_and_names()] if expand else [self]
        for holder in holders:
            for parameter in holder._parameters.values():
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield parameter.name, parameter

    def get_parameters(self, expand: bool = True) -> Iterator[Parameter]:
        """Every Parameter once."""
        return (parameter for _, parameter in self.parameters_and_names(expand))

    def trainable_params(self) -> list[Parameter]:
        """The Parameters that have a gradient."""
        return [parameter for parameter in self.get_parameters() if parameter.requires_grad]

    def untrainable_params(self) -> list[Parameter]:
        """The Parameters that have none, such as moving averages."""
        return [parameter for parameter in self.get_parameters() if not parameter.requires_grad]

    def parameters_dict(self) -> dict[str, Parameter]:
        """The Parameters by name."""
        return dict(self.parameters_and_names())

    def cells(self) -> list[Cell]:
        """The Cells right in it."""
        return list(self._cells.values())

    def name_cells(self) -> dict[str, Cell]:
        """The Cells right in it, by attribute."""
        return dict(self._cells)

    def cells_and_names(self, name_prefix: str = "") -> Iterator[tuple[str, Cell]]:
        """The Cell itself, and all in it, by dotted path."""
        yield name_prefix, self
        for name, cell in self._cells.items():
            yield from cell.cells_and_names(f"{name_prefix}.{name}" if name_prefix else name)

    def set_train(self, mode: bool = True) -> Cell:
        """Whether layers such as Dropout act, here and in all Cells in it."""
        for _, cell in self.cells_and_names():
            cell.training = mode
        return self

    def moves(self) -> list[Parameter]:
        """The Parameters right in it that construct writes in training, such as moving averages."""
        return []

    def mode(self) -> Mode:
        """The mode for layers of coterie."""
        call = running()
        if call is not None:
            return call.mode
        return train(_draw) if self.training else EVAL

    def __repr__(self) -> str:
        inner = "".join(f"\n  ({name}): {cell!r}".replace("\n", "\n  ") for name, cell in self._cells.items())
        return f"{type(self).__name__}<{inner}{chr(10) if inner else ''}>"


# Attributes that change without changing what is computed, and those of which the items count.
_BESIDE = frozenset({"_traceable", "_compiled", "_cells", "_parameters"})


def _taking_tensors(fn: Any) -> Any:
    def taking(*given: Any) -> Any:
        return fn(*tensors(given))

    return taking


def _draw(shape: tuple[int, ...]) -> Array:
    recorder = step_recorder()
    return uniform(shape) if recorder is None else recorder.draw(shape)


class _Cells(Cell):
    """Cells in order, given as arguments or as one list."""

    def __init__(self, *cells: Cell | list[Cell]) -> None:
        super().__init__()
        for index, cell in enumerate(_listed(cells)):
            self.insert_child_to_cell(str(index), cell)

    def append(self, cell: Cell) -> Self:
        """Add one at the end."""
        self.insert_child_to_cell(str(len(self._cells)), cell)
        return self

    def __getitem__(self, index: int) -> Cell:
        return self.cells()[index]

    def __len__(self) -> int:
        return len(self._cells)


class SequentialCell(_Cells):
    """Cells one after another, given as arguments or as one list."""

    def construct(self, *inputs: Any) -> Any:
        for cell in self._cells.values():
            inputs = (cell(*inputs),)
        return inputs[0]


class CellList(_Cells):
    """Cells in a list; it computes nothing by itself."""

    def __iter__(self) -> Iterator[Cell]:
        return iter(self.cells())


def _listed(cells: tuple[Any, ...]) -> list[Cell]:
    single = len(cells) == 1 and isinstance(cells[0], (list, tuple))
    listed = list(cast("tuple[Any, ...]", cells[0] if single else cells))
    for index, cell in enumerate(listed):
        if not isinstance(cell, Cell):
            raise ArgumentTypeError(f"Item {index} is a {type(cell).__name__}, not a Cell.")
    return listed
