"""What computes a user primitive on NumPy arrays, and what holds it to its word."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol, cast

import numpy as np

from coterie.compute.extension.registry import active_registry
from coterie.compute.extension.row import UserPrimitive, broken, static
from coterie.compute.ir import Attribute, Attributes, NDArray, Node, Type
from coterie.compute.source import source_of
from coterie.errors import CoterieError, InputError

_GUARD = 64  # bytes before and behind a buffer that a kernel must not touch


class Kernel(Protocol):
    """A computation that says what memory it needs before it runs. One object serves one signature.

    Sizes are in bytes, one number for each buffer. ``launch`` fills all outputs, writes to nothing else but the
    workspace, keeps nothing for the next launch, and gives the same bits for the same operands.
    """

    def init(self, inputs: tuple[Type, ...], attributes: Attributes) -> None:
        """Prepare for operands of these types."""
        ...

    def input_bytes(self) -> Sequence[int]:
        """The size of every operand."""
        ...

    def output_bytes(self) -> Sequence[int]:
        """The size of every result."""
        ...

    def workspace_bytes(self) -> Sequence[int]:
        """The size of every scratch buffer."""
        ...

    def launch(self, inputs: Sequence[NDArray], workspace: Sequence[NDArray], outputs: Sequence[NDArray]) -> None:
        """Compute. Workspaces are uint8 vectors with any content."""
        ...


@dataclass(frozen=True, slots=True)
class Requirements:
    """The bytes that one launch needs, by buffer: what a memory planner asks."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    workspace: tuple[int, ...] = ()


@dataclass(slots=True)
class _Prepared:
    """A kernel for one signature. ``trusted`` once its first launch was watched."""

    kernel: Kernel
    needs: Requirements
    trusted: bool = field(default=False)


def requirements(
    primitive: UserPrimitive, inputs: Sequence[Type], outputs: Sequence[Type], **attributes: Attribute
) -> Requirements:
    """What the kernel chosen for these operands needs. A NumPy function or a lowering reports no workspace.

    Raises InputError for a kernel whose sizes are not those of its operands and results.
    """
    plain = Requirements(*(tuple(map(nbytes, types)) for types in (inputs, outputs)))
    implementation = choose(primitive, inputs)
    if implementation is None or not _is_kernel(implementation):
        return plain
    return _prepare(primitive, implementation, inputs, outputs, attributes).needs


def node_workspace(node: Node) -> int:
    """The bytes of scratch that the kernel of a user primitive's node reports: what a memory planner sets aside."""
    primitive: UserPrimitive = node.attributes["primitive"]
    types = ([value.type for value in values] for values in (node.inputs, node.outputs))
    return sum(requirements(primitive, *types, **static(node.attributes)).workspace)


def nbytes(type_: Type) -> int:
    """The size of a tensor."""
    return type_.size * np.dtype(type_.dtype).itemsize


def choose(primitive: UserPrimitive, inputs: Sequence[Type]) -> Callable[..., Any] | None:
    """The registered kernel for these dtypes, else the primitive's own; None where its lowering computes it.

    Raises InputError "kernel_missing" where there is none of the three.
    """
    registry, dtypes = active_registry(), tuple(type_.dtype for type_ in inputs)
    found = registry.kernel(primitive, dtypes)
    own = primitive.kernel
    if found is None and own is None and primitive.lower is None:
        there = registry.combinations(primitive)
        raise InputError(
            f"primitive {primitive.name!r} has no kernel for ({', '.join(dtypes)}); "
            f"it has {'; '.join(there) or 'none at all'}.",
            hint="register_kernel(...) one, or convert the operands with astype(x, dtype).",
            code="kernel_missing",
        )
    return found or own


def launch(
    primitive: UserPrimitive,
    implementation: Callable[..., Any],
    arrays: Sequence[NDArray],
    outputs: Sequence[Type],
    attributes: Mapping[str, Attribute],
) -> list[NDArray]:
    """The results, of exactly these types. Operands are lent read-only.

    Raises InputError "primitive_broken" that names the primitive where the kernel fails, writes to an operand, makes
    other types than were inferred, asks for sizes that are not those of its buffers, or (watched on the first launch of
    a signature) writes beyond a buffer, leaves part of a result unwritten, or gives other bits for the same operands.
    """
    lent = [_lent(array) for array in arrays]
    if not _is_kernel(implementation):
        returned = _guarded(primitive, lambda: implementation(*lent, **attributes))
        return _checked(primitive, returned, outputs)
    inputs = tuple(Type(array.dtype.name, array.shape) for array in arrays)
    ready = _prepare(primitive, implementation, inputs, outputs, attributes)
    if ready.trusted:
        made = [np.empty(type_.shape, type_.dtype) for type_ in outputs]
        scratch = [np.empty(size, np.uint8) for size in ready.needs.workspace]
        _guarded(primitive, lambda: ready.kernel.launch(lent, scratch, made))
        return made
    before = [array.tobytes() for array in arrays]
    first, second = (_watched(primitive, ready, lent, outputs, fill) for fill in (0x00, 0xFF))
    if [array.tobytes() for array in arrays] != before:
        raise broken(primitive, "its kernel writes to an operand.")
    for name, a, b in zip(primitive.outputs, first, second, strict=True):
        if a.tobytes() != b.tobytes():
            raise broken(primitive, f"its kernel leaves part of {name} unwritten, or is not deterministic.")
    ready.trusted = True
    return second


def _is_kernel(implementation: Callable[..., Any]) -> bool:
    return isinstance(implementation, type) and hasattr(implementation, "launch")


def _lent(array: NDArray) -> NDArray:
    view = np.asarray(array, order="C").view()  # kernels in other languages want no strides
    view.flags.writeable = False
    return view


def _guarded(primitive: UserPrimitive, run: Callable[[], Any]) -> Any:
    try:
        return run()
    except CoterieError:
        raise
    except Exception as error:  # a kernel is foreign code: whatever it raises is told as its fault
        if isinstance(error, ValueError) and "read-only" in str(error):
            raise broken(primitive, f"its kernel writes to an operand ({source_of(error)}).") from error
        told = f"{type(error).__name__}: {error}".rstrip(".")
        raise broken(primitive, f"its kernel failed: {told} ({source_of(error)}).") from error


def _checked(primitive: UserPrimitive, returned: Any, outputs: Sequence[Type]) -> list[NDArray]:
    several = isinstance(returned, (tuple, list))
    # Copies: a kernel may use the memory that it returned again.
    results: list[NDArray] = [np.array(result) for result in (cast("list[Any]", returned) if several else [returned])]
    made = tuple(Type(result.dtype.name, result.shape) for result in results)
    if made != tuple(outputs):
        told = [", ".join(map(str, types)) for types in (made, outputs)]
        raise broken(primitive, f"its kernel returned ({told[0]}), and ({told[1]}) was inferred.")
    return results


def _prepare(
    primitive: UserPrimitive,
    implementation: Callable[..., Kernel],
    inputs: Sequence[Type],
    outputs: Sequence[Type],
    attributes: Mapping[str, Attribute],
) -> _Prepared:
    listed = tuple(sorted(attributes.items()))
    return _prepared(primitive, implementation, tuple(inputs), tuple(outputs), listed, repr(listed))


@lru_cache(maxsize=256)
def _prepared(
    primitive: UserPrimitive,
    implementation: Callable[..., Kernel],
    inputs: tuple[Type, ...],
    outputs: tuple[Type, ...],
    attributes: tuple[tuple[str, Attribute], ...],
    exact: str,  # of the attributes: 1, 1.0 and True are equal but not the same
) -> _Prepared:
    kernel = _guarded(primitive, implementation)
    _guarded(primitive, lambda: kernel.init(inputs, dict(attributes)))
    asked = (kernel.input_bytes, kernel.output_bytes, kernel.workspace_bytes)
    told = [_sizes(primitive, _guarded(primitive, sizes)) for sizes in asked]
    for what, found, types in (("input_bytes", told[0], inputs), ("output_bytes", told[1], outputs)):
        true = tuple(map(nbytes, types))
        if found != true:
            raise broken(primitive, f"its kernel reports {what} {list(found)}, and they are {list(true)}.")
    return _Prepared(kernel, Requirements(*told))


def _sizes(primitive: UserPrimitive, told: Any) -> tuple[int, ...]:
    sizes: list[Any] = cast("list[Any]", told) if isinstance(told, (tuple, list)) else [None]
    if not all(isinstance(size, int) and size >= 0 for size in sizes):
        raise broken(primitive, f"its kernel reports {told!r} where sizes in bytes are asked.")
    return tuple(sizes)


def _watched(
    primitive: UserPrimitive, ready: _Prepared, lent: Sequence[NDArray], outputs: Sequence[Type], fill: int
) -> list[NDArray]:
    """One launch into buffers full of one byte, between guards of the other."""
    sizes = (*ready.needs.outputs, *ready.needs.workspace)
    buffers = [np.full(size + 2 * _GUARD, fill, np.uint8) for size in sizes]
    for buffer in buffers:
        buffer[:_GUARD] = buffer[-_GUARD:] = 0xFF - fill
    inner = [buffer[_GUARD:-_GUARD] for buffer in buffers]
    made = [space.view(type_.dtype).reshape(type_.shape) for space, type_ in zip(inner, outputs, strict=False)]
    _guarded(primitive, lambda: ready.kernel.launch(lent, inner[len(made) :], made))
    for index, buffer in enumerate(buffers):
        if np.any(buffer[:_GUARD] != 0xFF - fill) or np.any(buffer[-_GUARD:] != 0xFF - fill):
            what = primitive.outputs[index] if index < len(made) else f"workspace {index - len(made)}"
            raise broken(primitive, f"its kernel writes beyond {what}.")
    return made
