"""Compile a function that reads and writes Parameters: they are inputs and outputs of its graph, never constants."""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial, update_wrapper
from types import MethodType
from typing import Any, Literal

from coterie.compute import tree
from coterie.compute.array import Array, as_array
from coterie.compute.interactive.frontend.rewrite import rewrite
from coterie.compute.interactive.jit import signature_of, too_deep
from coterie.compute.interactive.mode import get_mode
from coterie.compute.interactive.pieces import Program, program
from coterie.compute.interactive.purity import undrawn
from coterie.compute.mindspore.context import uniform
from coterie.compute.mindspore.parameter import Parameter, StepRecorder, scope, write
from coterie.compute.mindspore.tensor import Tensor, tensors
from coterie.compute.passes import optimise
from coterie.compute.recorder import RECORDER
from coterie.compute.source import user_source
from coterie.compute.trace import TensorSpec, is_array, trace_flat
from coterie.errors import ArgumentValueError, TraceError


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """A traced function as a graph."""

    program: Program
    structure: tree.Structure
    results: tuple[Any, ...]  # those that are no arrays are what they were when it was traced
    parameters: dict[str, Parameter]
    draws: dict[str, tuple[int, ...]]
    cells: dict[Any, dict[str, Any]]  # what was called, as it was
    written: tuple[Parameter, ...]

    def fits(self) -> bool:
        """Whether every network that was called is still as it was when it was traced: its mode, its attributes."""
        return all(_same(cell.facts(), facts) for cell, facts in self.cells.items())

    def run(self, given: dict[str, Array]) -> Any:
        """The results; what was written is written."""
        drawn = {name: uniform(shape) for name, shape in self.draws.items()}
        arrays = {**given, **self.parameters, **drawn}
        made = map(Tensor, self.program.run({name: array.numpy() for name, array in arrays.items()}).values())
        leaves = [next(made) if is_array(leaf) else leaf for leaf in self.results]
        write(self.written, made)
        return tree.unflatten(self.structure, leaves)


class Jitted:
    """A compiled function. It compiles anew for a new signature, and when a network that it calls has another training
    mode, other attributes or other layers. In eager mode it is called; inside a trace it becomes part of that.
    """

    def __init__(self, fn: Callable[..., Any], *, capture_mode: str = "ast", fullgraph: bool = False) -> None:
        update_wrapper(self, fn)  # first: it brings attributes, which of a compiled function are these
        self._fn = fn
        self._traceable = rewrite(fn) if capture_mode == "ast" else fn
        self._fullgraph = fullgraph
        self._steps: dict[Any, list[_Step | TraceError]] = {}

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    @property
    def compilations(self) -> int:
        """How many graphs have been compiled."""
        return sum(isinstance(step, _Step) for steps in self._steps.values() for step in steps)

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """Why signatures run on the host instead: one reason, with file and line, for each."""
        return tuple(str(step) for steps in self._steps.values() for step in steps if isinstance(step, TraceError))

    @property
    def host_calls(self) -> tuple[str, ...]:
        """What Python computes inside of compiled signatures: each place once, with file and line, and why."""
        made = [step.program for steps in self._steps.values() for step in steps if isinstance(step, _Step)]
        return tuple(dict.fromkeys(call for program_ in made for call in program_.host_calls))

    def __call__(self, *positional: Any, **named: Any) -> Any:
        if RECORDER.get() is not None:
            return self._traceable(*positional, **named)
        if get_mode() == "eager":
            return self._fn(*positional, **named)
        leaves, structure = tree.flatten((positional, named))
        arrays = [as_array(leaf) if is_array(leaf) else None for leaf in leaves]
        steps = self._steps.setdefault(signature_of(structure, leaves, arrays), [])
        step = next((step for step in steps if isinstance(step, TraceError) or step.fits()), None)
        if step is None:
            step = self._compiled(positional, named)
            steps.append(step)
        if isinstance(step, TraceError):
            return self._fn(*positional, **named)
        paths = structure.paths()
        return step.run({path: array for path, array in zip(paths, arrays, strict=True) if array is not None})

    def _compiled(self, positional: Any, named: Any) -> "_Step | TraceError":
        own_name = getattr(self._fn, "__name__", "step")
        recorder, written = StepRecorder(), list[Parameter]()
        results: list[Any] = []
        structures: list[tree.Structure] = []

        def whole(positional: Any, named: Any) -> Any:
            with scope() as opened:
                leaves, structure = tree.flatten(self._traceable(*tensors(positional), **tensors(named)))
                if any(isinstance(leaf, (Iterator, Awaitable)) for leaf in leaves):
                    raise TraceError(
                        f"{user_source()}: {own_name} gives a generator or something to wait for, which a graph cannot."
                    )
                results.extend(leaves)
                structures.append(structure)
                pairs = opened.written()
                written.extend(parameter for parameter, _ in pairs)
                # An output may be a parameter itself: what it stands for must be told before it is restored.
                return [_held(leaf) for leaf in leaves if is_array(leaf)], [array for _, array in pairs]

        try:
            with undrawn(self._fn):
                traced = trace_flat(whole, tree.map_tree(_specified, (positional, named)), (), recorder)
            made = program(optimise(traced.graph), name=own_name, whole=self._fullgraph)
        except (TraceError, RecursionError) as error:
            told = too_deep(own_name, error)
            if self._fullgraph:
                raise told from error.__cause__
            return told
        return _Step(
            program=made,
            structure=structures[0],
            results=tuple(results),
            parameters=recorder.parameters,
            draws=recorder.draws,
            cells={cell: cell.facts() for cell in recorder.cells},
            written=tuple(written),
        )


def _same(now: dict[str, Any], then: dict[str, Any]) -> bool:
    """Whether attributes hold the same objects, or equal numbers and texts."""
    return len(now) == len(then) and all(
        name in now and (now[name] is value or (type(value) in _PLAIN and repr(now[name]) == repr(value)))
        for name, value in then.items()
    )


_PLAIN = (bool, int, float, str)


def _held(leaf: Any) -> Any:
    return leaf.held() if isinstance(leaf, Parameter) and leaf.value is not None else leaf


def _specified(leaf: Any) -> Any:
    if not is_array(leaf):
        return leaf
    array = as_array(leaf)
    return TensorSpec(array.shape, array.type.dtype)


def jit(
    function: Callable[..., Any] | None = None,
    *,
    capture_mode: Literal["ast", "bytecode", "trace"] = "ast",
    jit_level: str = "O0",
    dynamic: int = 0,
    fullgraph: bool = False,
    backend: str = "",
) -> Any:
    """Compile a function together with what it reads from and writes to Parameters, so that a whole training step is
    one graph. Also a decorator, of methods too, with or without arguments.

    capture_mode: "trace" takes the function as it is, the others rewrite its if, while and for. jit_level, dynamic and
    backend are accepted and make no difference: every new shape is a new graph, for ONNX Runtime. fullgraph: raise
    TraceError where the Python cannot be a graph, instead of running it on the host. Raises
    ArgumentValueError for a capture mode that does not exist.
    """
    if capture_mode not in ("ast", "bytecode", "trace"):
        raise ArgumentValueError(f"There is no capture mode {capture_mode!r}.", hint="Choose ast or trace.")
    how = "trace" if capture_mode == "trace" else "ast"
    if function is None:
        return partial(Jitted, capture_mode=how, fullgraph=fullgraph)
    return Jitted(function, capture_mode=how, fullgraph=fullgraph)
