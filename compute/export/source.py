"""Models to be exported, opened as graphs whose weights are constants."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from onnx import ModelProto

from coterie.compute.export.bare_runs import ModelFile
from coterie.compute.ir import Graph, NDArray
from coterie.compute.onnx.importer.model import ImportedModel
from coterie.compute.onnx.importer.reading import load
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.passes.inference import require_inference
from coterie.compute.trace import TensorSpec, trace_named
from coterie.errors import InputError

ModelSource = str | PathLike[str] | bytes | Graph


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A model that only answers. graph: with its weights as constants and static shapes. file: what a bare ONNX Runtime
    runs of it before anything is done. bytes: of that file and of weights beside it. weights: as the file names them.
    metadata: texts of the file, by name. any_rows: whether the file itself answers batches of any size.
    """

    graph: Graph
    file: ModelFile
    bytes: int
    weights: Mapping[str, NDArray]
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    any_rows: bool = False


def open_model(source: ModelSource, sizes: Mapping[str, int], *, rows: int | None = None) -> Opened:
    """A model out of an ONNX file (by path, or its bytes), or a graph whose weights are constants.

    sizes: those that a file leaves open, by name. An open first axis of an input is also called "batch", and any open
    axis also "<input>.<axis>", which is its name where the file gives it none. rows: the size of open first axes that
    are not named; None where they must be.

    Raises StorageError and GraphRefused for a file that cannot be read or imported, GraphRefused (code
    ``training_graph``) for a graph that trains, InputError (code ``export_size``) for a size that is missing or not
    open, for a graph without inputs, and for an
    input without axes.
    """
    if isinstance(source, Graph):
        require_inference("export", source)
        _require_open(sizes, ())
        data = to_onnx(source, name="model")
        return Opened(graph=_with_inputs(source), file=data, bytes=len(data), weights={})
    model = load(source)
    specs = _specs(model, sizes, rows)

    def answered(given: Mapping[str, Any]) -> dict[str, Any]:
        results: Any = model(model.parameters, *(given[name] for name in specs))
        listed: list[Any] = [results] if len(model.outputs) == 1 else [*results]
        return dict(zip(model.outputs, listed, strict=True))

    graph = trace_named(answered, specs)
    require_inference("export", graph)
    file = source if isinstance(source, bytes) else Path(source)
    proto = ModelProto.FromString(file if isinstance(file, bytes) else file.read_bytes())
    return Opened(
        graph=_with_inputs(graph),
        file=file,
        bytes=_size(file, proto),
        weights=dict(model.parameters),
        metadata={entry.key: entry.value for entry in proto.metadata_props},
        any_rows=all(given.sizes and not isinstance(given.sizes[0], int) for given in model.inputs),
    )


def _with_inputs(graph: Graph) -> Graph:
    if not graph.inputs:
        raise InputError("export: the graph has no inputs, so there is nothing that it answers.")
    if single := [name for name, value in graph.inputs.items() if not value.type.shape]:
        raise InputError(
            f"export: the input {single[0]!r} is a single number, without an axis of examples.",
            hint="Make it a constant of the model, or give it an axis.",
        )
    return graph


def _specs(model: ImportedModel, sizes: Mapping[str, int], rows: int | None) -> dict[str, TensorSpec]:
    specs: dict[str, TensorSpec] = {}
    known: dict[str, None] = {}
    for given in model.inputs:
        shape: list[int] = []
        for axis, size in enumerate(given.sizes):
            if isinstance(size, int):
                shape.append(size)
                continue
            names = [name for name in (size, "batch" if axis == 0 else None, f"{given.name}.{axis}") if name]
            known |= dict.fromkeys(names)
            found = next((sizes[name] for name in names if name in sizes), rows if axis == 0 else None)
            if found is None:
                raise InputError(
                    f"export: the input {given.name!r} has the sizes {list(given.sizes)}, and a static file needs all "
                    "of them.",
                    hint=f"Give sizes={{{names[0]!r}: 8}}; on the command line, --size {names[0]}=8.",
                    code="export_size",
                )
            shape.append(found)
        specs[given.name] = TensorSpec(tuple(shape), given.dtype)
    _require_open(sizes, known)
    return specs


def _require_open(sizes: Mapping[str, int], known: Collection[str]) -> None:
    """Refuse sizes that nothing would read: the file would be of another size than was asked for."""
    if unknown := [name for name in sizes if name not in known]:
        raise InputError(
            f"export: the model leaves no size {unknown[0]!r} open; open are {', '.join(known) or 'none'}.",
            hint="A size that is fixed in the file is chosen where the file is made.",
            code="export_size",
        )


def _size(file: ModelFile, model: ModelProto) -> int:
    """Bytes of a file and of those beside it that hold its weights."""
    if isinstance(file, bytes):
        return len(file)
    beside = {
        entry.value for tensor in model.graph.initializer for entry in tensor.external_data if entry.key == "location"
    }
    return file.stat().st_size + sum((file.parent / name).stat().st_size for name in beside)
