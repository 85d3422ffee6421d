"""The graph of one stage for one process, as a file of its own."""

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from coterie.compute.ir import NDArray
from coterie.compute.onnx.spread.placement import FLAT, PART, WHOLE, Placement, rows
from coterie.compute.onnx.spread.reading import Shape, StepNode
from coterie.compute.onnx.spread.stages import Bound, Staged, StageGraph

# The input of an operator that says the shape of its result.
_SAYS_SHAPE = {"Reshape": 1, "Expand": 1}


def stage_graph(step: Staged, stage: int, rank: int) -> StageGraph:
    """What a process runs in one of the stages."""
    return _Writer(step, stage, rank).written()


class _Writer:
    def __init__(self, step: Staged, stage: int, rank: int) -> None:
        self._step, self._stage, self._rank = step, stage, rank
        self._graph, self._shares, self._places = step.graph, step.shares, step.placed.places
        self._nodes: list[Any] = []
        self._constants: dict[str, Any] = {}
        self._inputs: dict[str, Bound] = {}
        self._outputs: dict[str, Bound] = {}
        self._names: dict[tuple[str, Placement], str] = {}

    def written(self) -> StageGraph:
        for node in self._graph.nodes:
            if self._step.stage.get(node.index) == self._stage:
                self._write(node)
        if self._stage == self._step.count - 1:
            for name in self._graph.outputs:
                if self._places[name] == PART:
                    self._store_sum(name)
        if not self._outputs:
            return StageGraph(b"", (), ())
        values = [self._value(bound) for bound in self._inputs.values()]
        results = [self._value(bound) for bound in self._outputs.values()]
        graph = helper.make_graph(self._nodes, f"stage{self._stage}", values, results, list(self._constants.values()))
        model = self._graph.model
        made = helper.make_model(graph, opset_imports=list(model.opset_import), ir_version=model.ir_version)
        data = made.SerializeToString(deterministic=True)
        return StageGraph(data, tuple(self._inputs.values()), tuple(self._outputs.values()))

    def _value(self, bound: Bound) -> Any:
        return helper.make_tensor_value_info(bound.name, self._graph.types[bound.tensor], bound.shape)

    def _write(self, node: StepNode) -> None:
        work = self._step.placed.work[node.index]
        names = [self._operand(name, need) if name else "" for name, need in zip(node.inputs, work.needs, strict=True)]
        if work.added is not None and node.has(work.added) and self._rank:
            names[work.added] = self._zeros(node, work.added) if node.operator == "ScatterElements" else ""
        flat = FLAT in work.needs
        if flat and work.gives == PART:
            self._write_flat_sum(node, names[0])
        elif flat and node.operator in ("Reshape", "Unsqueeze"):
            self._add("Identity", [names[0]], node.outputs[0])
        else:
            self._write_same(node, names, flat=flat)
        for name in node.outputs:
            if name in self._step.read_later or (name in self._graph.outputs and self._places[name] != PART):
                self._outputs[name] = self._step.made(name, self._rank)

    def _write_same(self, node: StepNode, names: list[str], *, flat: bool) -> None:
        """The node itself, for the shapes of this process."""
        work = self._step.placed.work[node.index]
        if flat:
            # A number of shape [1, 1] would make a matrix of a stretch.
            names = [
                self._reshaped(used, (1,)) if name and need == WHOLE and len(self._graph.shapes[name]) > 1 else used
                for used, name, need in zip(names, node.inputs, work.needs, strict=True)
            ]
        if work.gives.kind == "rows" and (place := _SAYS_SHAPE.get(node.operator)) is not None:
            shape = self._shares.shape(node.out_shape, work.gives, self._rank)
            names[place] = self._constant(np.array(shape, np.int64))
        if work.needs and work.needs[0].kind == "rows" and node.operator in ("Slice", "Pad"):
            self._say_blocks(node, names, work.needs[0])
        while names and not names[-1]:
            names.pop()
        proto = onnx.NodeProto()
        proto.CopyFrom(node.proto)
        del proto.input[:]
        proto.input.extend(names)
        if work.grouped:
            for attribute in proto.attribute:
                if attribute.name == "group":
                    begin, end = self._shares.cut(attribute.i, self._rank)
                    attribute.i = end - begin
        self._nodes.append(proto)

    def _say_blocks(self, node: StepNode, names: list[str], cut: Placement) -> None:
        """Say how many rows of this process's blocks are left out, or are put before and behind them."""
        rank, length = len(node.out_shape), node.shape(0)[cut.axis]
        block = length // cut.blocks
        begin, end = self._shares.cut(block, self._rank)
        if node.operator == "Pad":
            pads, places = node.numbers(1), (cut.axis, cut.axis + rank)
            for place in places:
                pads[place] = pads[place] // block * (end - begin)
            names[1] = self._constant(np.array(pads, np.int64))
            return
        starts, ends = node.numbers(1), node.numbers(2)
        named = [number % rank for number in node.numbers(3)] or list(range(len(starts)))
        if cut.axis not in named:
            return
        place = named.index(cut.axis)
        first = starts[place] % length // block
        starts[place] = first * (end - begin)
        ends[place] = (first + node.out_shape[cut.axis] // block) * (end - begin)
        names[1], names[2] = (self._constant(np.array(numbers, np.int64)) for numbers in (starts, ends))

    def _write_flat_sum(self, node: StepNode, operand: str) -> None:
        """The sum of a stretch."""
        total = self._add("ReduceSum", [operand, self._constant(np.array([0], np.int64))], f"{node.outputs[0]}/stretch")
        shape = self._constant(np.array(node.out_shape, np.int64))
        self._add("Reshape", [total, shape], node.outputs[0])

    def _store_sum(self, name: str) -> None:
        """A result of the step that processes have parts of: each adds up its stretch, or the first one all of it."""
        begin, end = self._shares.stretch(self._graph.size(name), self._rank)
        if begin == end:
            return
        summed = self._operand(name, FLAT)
        self._outputs[summed] = Bound(summed, name, "output", 0, begin, (end - begin,), self._graph.dtype(name).name)

    def _operand(self, name: str, need: Placement) -> str:
        """A tensor's name in this graph, where a node needs it."""
        if (name, need) not in self._names:
            self._names[name, need] = self._found(name, need)
        return self._names[name, need]

    def _found(self, name: str, need: Placement) -> str:
        place = self._places[name]
        if place == PART != need:
            return self._summed(name, need)
        if place == need:
            return self._held(name)
        if name in self._graph.constants:
            return self._constant(self._cut(self._graph.constants[name], need))
        return self._cut_out(name, need)

    def _here(self, name: str) -> bool:
        """Whether this stage makes a tensor."""
        maker = self._step.makers.get(name)
        return maker is not None and self._step.stage[maker] == self._stage

    def _held(self, name: str) -> str:
        """A tensor as this process has it."""
        if name in self._graph.constants:
            self._constants.setdefault(name, numpy_helper.from_array(self._graph.constants[name], name))
        elif not self._here(name):
            self._inputs[name] = self._home(name)
        return name

    def _home(self, name: str) -> Bound:
        """Where a tensor lies that this stage does not make."""
        if name in self._step.makers:
            return self._step.made(name, self._rank)
        shape, place = self._graph.shapes[name], self._places[name]
        start = 0
        if place.kind == "rows":
            start = self._shares.cut(shape[0], self._rank)[0] * (self._graph.size(name) // shape[0])
        held = self._shares.shape(shape, place, self._rank)
        return Bound(name, name, "input", 0, start, held, self._graph.dtype(name).name)

    def _cut_out(self, name: str, need: Placement) -> str:
        """This process's part of a tensor that it has all of: read from where it lies, or cut by nodes."""
        shape, held = self._graph.shapes[name], self._shares.shape(self._graph.shapes[name], need, self._rank)
        if not self._here(name) and need in (FLAT, rows(0)):
            home = self._home(name)
            begin = self._begin(name, need)
            cut = f"{name}/{need.kind}"
            self._inputs[cut] = Bound(cut, name, home.home, home.rank, home.start + begin, held, home.dtype)
            return cut
        whole = self._held(name)
        if need == FLAT:
            begin, end = self._shares.stretch(self._graph.size(name), self._rank)
            return self._slice(self._reshaped(whole, (-1,)), 0, begin, end, f"{name}/flat")
        return self._taken(whole, shape, need)

    def _begin(self, name: str, need: Placement) -> int:
        """The first number of this process's part."""
        size, shape = self._graph.size(name), self._graph.shapes[name]
        if need == FLAT:
            return self._shares.stretch(size, self._rank)[0]
        return self._shares.cut(shape[0], self._rank)[0] * (size // shape[0])

    def _summed(self, name: str, need: Placement) -> str:
        """The sum of what all processes have made of a tensor."""
        shape, dtype = self._graph.shapes[name], self._graph.dtype(name).name
        if need.kind == "rows":
            return self._taken(self._operand(name, WHOLE), shape, need)
        start = self._shares.stretch(self._graph.size(name), self._rank)[0] if need == FLAT else 0
        held = self._shares.shape(shape, need, self._rank)
        total = ""
        for rank in range(self._shares.processes):
            part = f"{name}/{need.kind}{rank}"
            self._inputs[part] = Bound(part, name, "own", rank, start, held, dtype)
            total = self._add("Add", [total, part], f"{name}/{need.kind}sum{rank}") if total else part
        return total

    def _cut(self, value: NDArray, need: Placement) -> NDArray:
        if need == FLAT:
            begin, end = self._shares.stretch(value.size, self._rank)
            return value.reshape(-1)[begin:end]
        blocked = value.reshape(_blocked(value.shape, need))
        begin, end = self._shares.cut(blocked.shape[need.axis + 1], self._rank)
        found = np.take(blocked, range(begin, end), need.axis + 1)
        return found.reshape(self._shares.shape(value.shape, need, self._rank))

    def _taken(self, operand: str, shape: Shape, need: Placement) -> str:
        """This process's rows of a whole tensor, cut by nodes."""
        name = f"{operand}/rows{need.axis}in{need.blocks}"
        if need.blocks == 1:
            begin, end = self._shares.cut(shape[need.axis], self._rank)
            return self._slice(operand, need.axis, begin, end, name)
        blocked = _blocked(shape, need)
        begin, end = self._shares.cut(blocked[need.axis + 1], self._rank)
        found = self._slice(self._reshaped(operand, blocked), need.axis + 1, begin, end, name)
        return self._reshaped(found, self._shares.shape(shape, need, self._rank))

    def _slice(self, operand: str, axis: int, begin: int, end: int, name: str) -> str:
        ends = [self._constant(np.array([number], np.int64)) for number in (begin, end, axis)]
        return self._add("Slice", [operand, *ends], name)

    def _reshaped(self, operand: str, shape: Shape) -> str:
        name = f"{operand}/as{len(self._nodes)}"
        return self._add("Reshape", [operand, self._constant(np.array(shape, np.int64))], name)

    def _zeros(self, node: StepNode, place: int) -> str:
        """What the other processes add a sum to, when the first one has what it is added to."""
        dtype = self._graph.dtype(node.inputs[place])
        shape = self._constant(np.array(node.shape(place), np.int64))
        return self._add("Expand", [self._constant(np.zeros(1, dtype)), shape], f"{node.outputs[0]}/zeros")

    def _constant(self, value: NDArray) -> str:
        name = f"constant/{len(self._constants)}"
        self._constants[name] = numpy_helper.from_array(value, name)
        return name

    def _add(self, operator: str, inputs: list[str], output: str) -> str:
        self._nodes.append(helper.make_node(operator, inputs, [output]))
        return output


def _blocked(shape: Shape, cut: Placement) -> Shape:
    """A shape whose cut axis is one of blocks and one of the rows in a block."""
    return (*shape[: cut.axis], cut.blocks, shape[cut.axis] // cut.blocks, *shape[cut.axis + 1 :])
