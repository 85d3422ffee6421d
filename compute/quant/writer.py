"""Writing levels into a graph: the nodes and constants of QuantizeLinear and DequantizeLinear."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import ModelProto, helper, numpy_helper

from coterie.compute.ir import NDArray
from coterie.compute.quant.affine import Affine, affine, extremes
from coterie.compute.quant.histogram import Range
from coterie.compute.quant.passing import above
from coterie.compute.quant.placement import Site, results, weight_of
from coterie.compute.quant.reading import fresh
from coterie.compute.quant.settings import QuantSettings
from coterie.compute.quant.shared_zero import affine_of_channels
from coterie.errors import InputError


@dataclass(frozen=True, eq=False)
class Writer:
    """Puts levels into a graph in normal form, and collects what is added to it.

    constants: names of those that were added, by what they are. levels: of every tensor that becomes levels. readers:
    which tensors a node reads as levels, by the node's first output. replaced: the name of a tensor that is read so.
    """

    proto: ModelProto
    settings: QuantSettings
    taken: set[str]
    initialisers: list[Any] = field(default_factory=list[Any])
    constants: dict[tuple[str, tuple[int, ...], bytes], str] = field(default_factory=dict[Any, str])
    levels: dict[str, Affine] = field(default_factory=dict[str, Affine])
    readers: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    replaced: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def few(self) -> bool:
        """Whether activations have fewer levels than a byte."""
        return self.settings.activations is not None and self.settings.activation_bits < 8

    def plan(self, places: Sequence[Site], ranges: Mapping[str, Range]) -> None:
        """Decide which tensors become levels, and which."""
        graph, quantised = self.proto.graph, {site.node for site in places}
        for site in places:
            node = graph.node[site.node]
            tensors = {node.input[place] for place in site.activations}
            self.readers[node.output[0]] = tensors
            for tensor in sorted(tensors - self.levels.keys()):
                self._levels_of(tensor, ranges, () if self.few else above(self.proto, tensor, quantised))

        for name in () if self.few else results(self.proto, places):
            if name in ranges:  # optional: training in levels knows of the inputs alone
                self._levels_of(name, ranges, ())
                for node in graph.node:
                    if name in node.input:
                        self.readers.setdefault(node.output[0], set()).add(name)

    def _levels_of(self, tensor: str, ranges: Mapping[str, Range], chain: Sequence[int]) -> None:
        if tensor not in ranges:
            raise InputError(
                f"The range of the activation {tensor!r} is not known; given are {', '.join(ranges) or 'none'}.",
                hint="quant.observed(model) names all that are needed.",
            )
        low, high = (np.asarray(end, np.float32) for end in ranges[tensor])
        form = self.settings.activations or "asymmetric"
        levels = affine(low, high, bits=self.settings.activation_bits, form=form)
        self.levels[tensor] = levels
        for index in chain:
            node = self.proto.graph.node[index]
            self.levels[node.input[0]] = levels
            self.readers[node.output[0]] = {node.input[0]}

    def after(self, tensor: str) -> list[Any]:
        """The nodes to stand behind the one that makes a tensor."""
        if tensor not in self.levels:
            return []
        levels, added = self.levels[tensor], list[Any]()
        parts = self._parameters(tensor, levels.scale, levels.zero.astype(levels.dtype))
        made = self._fresh(f"{tensor}/q")
        added.append(helper.make_node("QuantizeLinear", [tensor, *parts], [made]))
        name = self._dequantised(tensor, made, parts, None, added)
        if self.few:
            # A byte has more levels than these. Behind the bytes, so that no integer kernel takes the operator: it
            # would give the bias their scale, which is too large for it.
            ends = (("low", levels.low), ("high", levels.high))
            bounds = [self._constant(f"{tensor}/{what}", levels.dequantise(np.asarray(end))) for what, end in ends]
            added.append(helper.make_node("Clip", [name, *bounds], [self._fresh(f"{tensor}/few")]))
            name = str(added[-1].output[0])
        self.replaced[tensor] = name
        return added

    def rewire(self, node: Any) -> None:
        """Let a node read levels where it is to."""
        wanted = self.readers.get(node.output[0], set[str]())
        for place, name in enumerate(node.input):
            if name in wanted:
                node.input[place] = self.replaced[name]

    def weights_of(self, node: Any, site: Site) -> list[Any]:
        """The nodes to stand before an operator, of its weight and bias, which it then reads."""
        added: list[Any] = []
        if site.weight is None:
            return added
        whole = self.settings.activations is not None
        scale = self.levels[node.input[site.activations[0]]].scale if whole else np.ones((), np.float32)
        joined = whole and not self.few and site.bias is not None
        bias = weight_of(self.proto, node.input[site.bias]) if joined else None
        tensor = node.input[site.weight]
        value = weight_of(self.proto, tensor)
        axis = site.channels if self.settings.per_channel else None
        low, high = extremes(value, axis)
        if axis is not None and site.one_zero and self.settings.weights == "asymmetric":
            levels = affine_of_channels(low, high, bits=self.settings.weight_bits, axis=axis)
        else:
            levels = affine(low, high, bits=self.settings.weight_bits, form=self.settings.weights, axis=axis)
        if bias is not None:
            levels = _with_room(levels, bias, scale, (low == 0) & (high == 0))
        # Always int8, which kernels take beside activations of either form.
        shift = 0 if self.settings.weights == "symmetric" else 1 << 7
        kept = self._constant(f"{tensor}/q", (levels.quantise(value).astype(np.int16) - shift).astype(np.int8))
        parts = self._parameters(tensor, levels.scale, (levels.zero - shift).astype(np.int8))
        node.input[site.weight] = self._dequantised(tensor, kept, parts, axis, added)
        if bias is not None and site.bias is not None:
            node.input[site.bias] = self._bias(node.input[site.bias], bias, scale * levels.scale, added)
        return added

    def _bias(self, tensor: str, value: NDArray, scale: NDArray, added: list[Any]) -> str:
        """The bias as int32 of the scale that sums of products have."""
        levels = np.rint(value.astype(np.float64) / scale).astype(np.int32)
        kept = self._constant(f"{tensor}/q", levels)
        parts = self._parameters(tensor, scale.astype(np.float32), np.zeros(scale.shape, np.int32))
        return self._dequantised(tensor, kept, parts, 0 if scale.ndim else None, added)

    def _parameters(self, tensor: str, scale: NDArray, zero: NDArray) -> list[str]:
        return [self._constant(f"{tensor}/scale", scale), self._constant(f"{tensor}/zero", zero)]

    def _dequantised(self, tensor: str, levels: str, parts: list[str], axis: int | None, added: list[Any]) -> str:
        name = self._fresh(f"{tensor}/dq")
        along: dict[str, Any] = {} if axis is None else {"axis": axis}
        added.append(helper.make_node("DequantizeLinear", [levels, *parts], [name], **along))
        return name

    def _constant(self, stem: str, value: NDArray) -> str:
        key = (value.dtype.name, value.shape, value.tobytes())
        if key not in self.constants:
            name = self.constants[key] = self._fresh(stem)
            self.initialisers.append(numpy_helper.from_array(np.ascontiguousarray(value).reshape(value.shape), name))
        return self.constants[key]

    def _fresh(self, stem: str) -> str:
        return fresh(self.proto, stem, self.taken)


def _with_room(levels: Affine, bias: NDArray, scale: NDArray, idle: NDArray) -> Affine:
    """Levels whose scale suits the bias, which becomes an int32 of it. A channel of tiny weights would else have a bias
    beyond all integers. One of zeros (idle), for which any scale will do, gets the finest.
    """
    least = np.maximum(np.abs(bias) / (np.float64(scale) * 2**30), np.finfo(np.float32).smallest_normal)
    least = least if levels.scale.ndim else least.max()
    wide = np.where(idle, least, np.maximum(levels.scale, least)).astype(np.float32)
    return Affine(scale=wide, zero=levels.zero, bits=levels.bits, form=levels.form, axis=levels.axis)
