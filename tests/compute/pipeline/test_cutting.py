"""Where a pipeline is cut, and what it is cut by."""

import json
from collections.abc import Mapping
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from coterie.compute.onnx.pipeline.balance import balanced
from coterie.compute.onnx.pipeline.pieces import Pieces, finest, grouped
from coterie.compute.onnx.spread.reading import StepGraph
from coterie.compute.runtime.pipeline.operator_times import KEPT_GRAPHS, OperatorTimes


@pytest.mark.parametrize(
    ("costs", "groups", "right"),
    [
        ([1, 1, 1, 1], 2, [0, 0, 1, 1]),
        ([5, 1, 1, 1], 2, [0, 1, 1, 1]),
        ([1, 1, 1, 9], 3, [0, 0, 1, 2]),
        ([0, 0, 0], 3, [0, 1, 2]),
        ([2, 3], 1, [0, 0]),
    ],
)
def test_the_dearest_group_is_as_cheap_as_can_be(costs: list[float], groups: int, right: list[int]) -> None:
    found = balanced(costs, groups)
    dearest = [max(sum(c for c, g in zip(costs, at, strict=True) if g == each) for each in at) for at in (found, right)]
    assert dearest[0] == dearest[1] and sorted(set(found)) == list(range(groups)) and found == sorted(found)


def graph_of(nodes: list[tuple[str, list[str], str]], inputs: list[str], outputs: list[str]) -> StepGraph:
    """A graph of squares of 2."""

    def value(name: str) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 2])

    made = helper.make_graph(
        [helper.make_node(operator, read, [name]) for operator, read, name in nodes],
        "graph",
        [value(name) for name in inputs],
        [value(name) for name in outputs],
    )
    return StepGraph(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())


def by_name(graph: StepGraph, pieces: Pieces) -> dict[str, int]:
    return {graph.nodes[index].outputs[0]: piece for index, piece in pieces.piece.items()}


TWO_LAYERS = [
    ("MatMul", ["x", "v"], "a"),
    ("Relu", ["a"], "b"),
    ("MatMul", ["b", "w"], "c"),
    ("Sub", ["c", "y"], "d"),  # the loss's gradient
    ("Transpose", ["b"], "bt"),
    ("MatMul", ["bt", "d"], "dw"),
    ("Transpose", ["w"], "wt"),
    ("MatMul", ["d", "wt"], "e"),
    ("Mul", ["e", "b"], "f"),
    ("Transpose", ["x"], "xt"),
    ("MatMul", ["xt", "f"], "dv"),
]


def test_a_gradient_is_where_its_weight_is_and_activations_stay() -> None:
    graph = graph_of(TWO_LAYERS, ["x", "y", "v", "w"], ["dw", "dv"])
    pieces = finest(graph, ["x", "y"], ["v", "w"], {"dw": {"w"}, "dv": {"v"}})
    assert pieces.stages == 2 and pieces.stage == {"v": 0, "w": 1}
    found = by_name(graph, pieces)
    assert {name: found[name] for name in "abcdef"} == {"a": 0, "b": 0, "c": 1, "d": 1, "e": 1, "f": 2}
    assert (found["dw"], found["dv"]) == (1, 2) and "wt" not in found
    together = grouped(graph, ["x", "y"], {}, pieces, {0: 0, 1: 0})
    assert together is not None and set(together.piece.values()) == {0}


def test_layers_that_need_each_other_both_ways_are_one_stage() -> None:
    """As in a recurrent layer: v, w, and v again."""
    again = [*TWO_LAYERS[:3], ("MatMul", ["c", "v"], "d"), *TWO_LAYERS[4:]]
    graph = graph_of(again, ["x", "y", "v", "w"], ["dw", "dv"])
    assert finest(graph, ["x", "y"], ["v", "w"], {"dw": {"w"}, "dv": {"v"}}).stages == 1


def product() -> tuple[bytes, Mapping[str, NDArray[Any]]]:
    graph = graph_of(TWO_LAYERS, ["x", "y", "v", "w"], ["dw", "dv"])
    return onnx.load_from_string(graph.model.SerializeToString()).SerializeToString(), {
        name: np.ones((2, 2), np.float32) for name in "xyvw"
    }


def test_operators_are_measured_once_for_a_graph_and_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, feeds = product()
    asked = list[int]()

    def measured() -> Mapping[str, NDArray[Any]]:
        asked.append(1)
        return feeds

    first = OperatorTimes(tmp_path / "times")
    found = first.of(data, measured, 1)
    assert len(found) == len(TWO_LAYERS) and all(each > 0 for each in found)
    assert first.of(data, measured, 1) == found == OperatorTimes(tmp_path / "times").of(data, measured, 1)
    assert len(asked) == 1
    monkeypatch.setattr("platform.node", lambda: "another")
    OperatorTimes(tmp_path / "times").of(data, measured, 1)
    assert len(asked) == 2


def test_times_of_the_newest_graphs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that were asked for last stay, whoever asked; in memory there are no more. Clocks of files are coarse, so
    some time passes between two graphs.
    """
    measured = list[str]()

    def seconds(data: bytes, feeds: Mapping[str, NDArray[Any]], threads: int) -> tuple[float, ...]:
        measured.append(str(threads))
        sleep(0.03)
        return (1.0,) * len(TWO_LAYERS)

    monkeypatch.setattr("coterie.compute.runtime.pipeline.operator_times.node_seconds", seconds)
    data, feeds = product()
    times = OperatorTimes(tmp_path)
    for threads in range(KEPT_GRAPHS):
        times.of(data, lambda: feeds, threads)
    first = OperatorTimes(tmp_path)
    first.of(data, lambda: feeds, 0)
    assert len(measured) == KEPT_GRAPHS
    for threads in (101, 102):
        times.of(data, lambda: feeds, threads)
    assert len([*tmp_path.iterdir()]) == KEPT_GRAPHS
    del measured[:]
    again = OperatorTimes(tmp_path)
    for threads in (0, *range(3, KEPT_GRAPHS), 101, 102):
        again.of(data, lambda: feeds, threads)
    assert measured == []
    for asked in (times, again):
        asked.of(data, lambda: feeds, 1)
    assert measured == ["1"]


@pytest.mark.parametrize("told", ["", "[1, 2]", "{}", json.dumps([-1.0] * len(TWO_LAYERS)), '["a"]', "[null]"])
def test_times_that_cannot_be_used_are_measured_again(told: str, tmp_path: Path) -> None:
    data, feeds = product()
    OperatorTimes(tmp_path).of(data, lambda: feeds, 1)
    (file,) = tmp_path.iterdir()
    file.write_text(told, encoding="utf-8")
    found = OperatorTimes(tmp_path).of(data, lambda: feeds, 1)
    assert len(found) == len(TWO_LAYERS) and min(found) > 0
