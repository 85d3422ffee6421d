"""A foreign ONNX file as plain values, checked as far as that can be done before it runs."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, cast

import onnx
from onnx import ModelProto, external_data_helper, helper, inliner

from coterie.compute.ir import NDArray
from coterie.compute.onnx.importer.checks import (
    refuse_disorder,
    refuse_endless,
    refuse_huge,
    refuse_unknown,
    refuse_unreadable,
)
from coterie.compute.onnx.importer.declared import declared_in
from coterie.compute.onnx.importer.frameworks import export_hint
from coterie.compute.onnx.importer.graph import Foreign, Input, Size, Step, needed
from coterie.compute.onnx.importer.learners import DOMAIN, MAP, WRITTEN_OUT, written_out
from coterie.compute.onnx.importer.model import ImportedModel
from coterie.compute.onnx.importer.roles import is_uniform, sorted_by_use
from coterie.compute.onnx.importer.sequences import with_parts_of_sequences
from coterie.compute.onnx.importer.tensors import (
    DTYPES,
    array_of,
    attributes_of,
    constant_of,
    is_text,
    refused,
    sound,
)
from coterie.compute.onnx.weights import DIGEST, MESSAGE_BYTES
from coterie.errors import InputError, StorageError

OLDEST, NEWEST = 13, 21
PYTORCH = "pytorch"
# More than a file holds beside the weights.
_REST = 1 << 28


def load(source: str | PathLike[str] | bytes, *, outputs: Sequence[str] | None = None) -> ImportedModel:
    """An inference graph of operator set 13 to 21 from an ordinary exporter, by path or as bytes.

        model = compute.onnx.load("model.onnx")
        gradients = grad(lambda params: loss(model(params, x), labels))(model.parameters)

    outputs: names of tensors to compute instead of the file's own outputs; what they do not need is not imported.
    Outputs of text (names of classes) are left out, maps from class to number are arrays, a column for each class.

    Raises StorageError when the file cannot be read, GraphRefused (code import_refused) for what is no ONNX graph, and
    for an operator, dtype or operator set that is not translated, naming the node; InputError for an output that the
    file does not have. Weights in a file beside it, in the same folder or below, are read when the path is given.
    """
    return ImportedModel(read(source, outputs=outputs))


def read(source: str | PathLike[str] | bytes, *, outputs: Sequence[str] | None = None) -> Foreign:
    """As :func:`load`, as plain values."""
    model = _parsed(source)
    refuse_unreadable(model)
    opset = _opset(model)
    refuse_endless(model.graph.node, model.functions)
    if len(model.functions):
        model = sound("Its functions do not fit together", lambda: inliner.inline_local_functions(model))
    graph = model.graph
    if len(graph.sparse_initializer):
        raise refused("It holds sparse weights.", "Export them as dense tensors.")
    parts = _Parts.of(graph, copies=model.producer_name == PYTORCH)
    inputs = tuple(_input(value) for value in graph.input if value.name not in parts.initialisers)
    refuse_huge(inputs)
    refuse_disorder(parts.steps, {given.name for given in inputs} | parts.held.keys())
    wanted = _outputs(outputs, parts, inputs, [value.name for value in graph.output])
    steps = needed(parts.steps, wanted)
    refuse_unknown(steps)
    _check(model)  # last: it looks for the files of weights that lie elsewhere, which have been refused by now
    foreign = sorted_by_use(
        opset=opset,
        inputs=inputs,
        outputs=wanted,
        steps=steps,
        held=parts.held,
        listed=parts.initialisers,
        declared=declared_in(graph),
    )
    return foreign if outputs is None else foreign.cut(wanted)


@dataclass(slots=True)
class _Parts:
    """The nodes of a graph and the tensors that it holds, as they are collected node by node.

    text: names of what is text, or made of text. initialisers: names of the tensors in the list. same: names that stand
    for another one. copies: whether the exporter gives a tensor a second name only where another one is equal to it.

    A constant that stands in a node is held like one that stands in the list of initialisers, and a learner of
    ``ai.onnx.ml`` is written out.
    """

    steps: list[Step] = field(default_factory=list[Step])
    held: dict[str, NDArray] = field(default_factory=dict[str, NDArray])
    text: set[str] = field(default_factory=set[str])
    initialisers: set[str] = field(default_factory=set[str])
    same: dict[str, str] = field(default_factory=dict[str, str])
    copies: bool = False

    @staticmethod
    def of(graph: Any, *, copies: bool) -> "_Parts":
        """The parts of a graph. Raises GraphRefused for tensors and attributes that are damaged."""
        parts = _Parts(copies=copies)
        for tensor in graph.initializer:
            parts.initialisers.add(tensor.name)
            if is_text(tensor):
                parts.text.add(tensor.name)
            else:
                parts.held[tensor.name] = array_of(tensor, tensor.name)
        outputs = {value.name for value in graph.output}
        for index, node in enumerate(graph.node):
            parts._take(index, node, outputs)
        parts.steps = with_parts_of_sequences(parts.steps)
        return parts

    def _take(self, index: int, node: Any, outputs: set[str]) -> None:
        ours, learner = node.domain in ("", "ai.onnx"), node.domain == DOMAIN
        first = node.output[0] if len(node.output) else ""
        if self.text.intersection(node.input):
            self.text.update(name for name in node.output if name)
            return
        if ours and node.op_type == "Constant":
            value = constant_of(node, first)
            if value is None:
                self.text.add(first)
            else:
                self.held[first] = value
            return
        renames = ours and node.op_type == "Identity" and len(node.input) and first not in outputs
        if renames and self._renamed(node.input[0], first):
            return
        step = _step(index, node, self.same)
        if learner and step.operator == MAP:
            step = replace(step, operator="Identity")
        if not (learner and node.op_type in WRITTEN_OUT):
            self.steps.append(step)
            return
        # Names of nodes need not differ.
        twice = any(name.startswith(f"{step.name}.") for name in self.held)
        step = replace(step, name=f"{step.name}#{index}") if twice else step
        written = sound(f"The node {step.name!r} ({step.operator}) is damaged", lambda: written_out(step))
        self.steps.extend(written.steps)
        self.held.update(written.held)
        self.text.update(written.text)

    def _renamed(self, name: str, output: str) -> bool:
        """Whether a node only gives a tensor that the graph holds another name. Exporters merge tensors that happen to
        be equal, as all scales, offsets and running statistics of a new model are: those are told apart again, each
        under its own name, and so are all of PyTorch's, which writes a weight that two layers share without this
        node. Others that go by two names are one weight, as in the file.
        """
        name = self.same.get(name, name)
        if name not in self.held:
            return False
        if self.copies or is_uniform(self.held[name]):
            self.held[output] = self.held[name]
        else:
            self.same[output] = name
        return True


def _step(index: int, node: Any, same: Mapping[str, str]) -> Step:
    known = node.domain in ("", "ai.onnx", DOMAIN)
    return Step(
        node.op_type if known else f"{node.domain}.{node.op_type}",
        node.name or f"#{index}",
        tuple(same.get(name, name) for name in node.input),
        tuple(node.output),
        attributes_of(node) if known else {},
    )


def _outputs(asked: Sequence[str] | None, parts: _Parts, inputs: Sequence[Input], given: Sequence[str]) -> list[str]:
    """Names of the tensors to compute."""
    if asked is None:
        wanted = [name for name in given if name not in parts.text]
        if not given:
            raise refused("It has no outputs.", "Give the file of a whole model, as an exporter wrote it.")
        if not wanted:
            last = [name for step in parts.steps[-4:] for name in step.outputs if name]
            raise refused("All of its outputs are text.", f"Name tensors of numbers: load(path, outputs={last}).")
        return wanted
    if isinstance(asked, str) or not asked:
        raise InputError(
            f"onnx.load: outputs is a list of names of tensors, got {asked!r}.", hint='Write outputs=["logits"].'
        )
    made = {name for step in parts.steps for name in step.outputs} | {each.name for each in inputs}
    for name in asked:
        if name not in made:
            what = "is text or made of text" if name in parts.text else "is not computed in the file"
            raise InputError(
                f"onnx.load: the output {name!r} {what}.",
                hint=f"The file's outputs of numbers: {', '.join(n for n in given if n not in parts.text) or 'none'}.",
            )
    return list(asked)


def _check(model: ModelProto) -> None:
    """Raises GraphRefused unless nodes follow what they read and have the operands and attributes of their operator.
    What the file says of the types of results is not read, and dropped: exporters leave some out.
    """
    del model.graph.value_info[:]
    for value in model.graph.output:
        value.CopyFrom(helper.make_tensor_value_info(value.name, onnx.TensorProto.FLOAT, ()))
    # Beyond this many bytes protobuf does not even say how many there are.
    if sum(len(tensor.raw_data) for tensor in model.graph.initializer) < MESSAGE_BYTES - _REST:
        sound("It is damaged", lambda: cast(Any, onnx.checker).check_model(model))


def _parsed(source: str | PathLike[str] | bytes) -> ModelProto:
    try:
        if isinstance(source, bytes):
            return ModelProto.FromString(source)
        path = Path(source)
        model = onnx.load(str(path), load_external_data=False)  # pyright: ignore[reportUnknownMemberType]
    except OSError as error:
        raise StorageError(f"The ONNX file cannot be read: {error}") from error
    except Exception as error:  # protobuf raises several classes
        raise refused(
            f"It is not an ONNX file: {error}",
            export_hint(source)
            or "Give the path or the bytes of an .onnx file; of a ModelProto, its SerializeToString().",
        ) from error
    beside = {
        entry.value for tensor in model.graph.initializer for entry in tensor.external_data if entry.key == "location"
    }
    # It opens no file outside the folder, and follows no link out of it.
    sound(
        "Its weights in other files cannot be read",
        lambda: external_data_helper.load_external_data_for_model(model, str(path.parent.resolve())),
    )
    _require_digest(model, beside, path.parent)
    return model


def _require_digest(model: ModelProto, beside: set[str], folder: Path) -> None:
    """Raises GraphRefused where the model says what the file of its weights is, and another one lies there."""
    wanted = next((entry.value for entry in model.metadata_props if entry.key == DIGEST), None)
    for name in sorted(beside) if wanted else ():
        with (folder / name).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != wanted:
                raise refused(
                    f"The file {name!r} does not hold the weights that the model was saved with: its SHA-256 is "
                    "another one.",
                    "Copy both files again, or save the model anew.",
                )


def _opset(model: ModelProto) -> int:
    versions = {entry.domain or "ai.onnx": int(entry.version) for entry in model.opset_import}
    if "ai.onnx" not in versions:
        raise refused("It is no ONNX model, or names no operator set.", "Give the file as an exporter wrote it.")
    version = versions["ai.onnx"]
    if not OLDEST <= version <= NEWEST:
        raise refused(
            f"It is of operator set {version}; {OLDEST} to {NEWEST} are translated.",
            "Export with an opset in that range, or convert with onnx.version_converter.convert_version(model, 17).",
        )
    return version


def _input(value: Any) -> Input:
    tensor = value.type.tensor_type
    if tensor.elem_type not in DTYPES or not tensor.HasField("shape"):
        raise refused(
            f"The input {value.name!r} has no dtype that coterie has, or no shape.",
            "Export with example inputs of float32, int32 or int64.",
        )

    def size(dimension: Any) -> Size:
        if dimension.HasField("dim_value"):
            return int(dimension.dim_value) if dimension.dim_value >= 0 else None
        return cast("str", dimension.dim_param) or None

    return Input(value.name, DTYPES[tensor.elem_type], tuple(size(dimension) for dimension in tensor.shape.dim))
