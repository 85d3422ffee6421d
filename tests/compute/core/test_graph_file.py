"""A graph has a digest that is the same everywhere, and a file that gives it back or is refused."""

# The tables hold small lambdas, whose parameters have no declared types.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from coterie.compute import (
    Array,
    GraphInputs,
    Registry,
    TensorSpec,
    cond,
    grad,
    graph_digest,
    interpret,
    load_graph,
    optimise,
    parse,
    primitive,
    register,
    save_graph,
    to_text,
    trace,
    trace_named,
    use_registry,
    verify,
)
from coterie.compute import numpy as cnp
from coterie.compute.ir import Graph
from coterie.errors import InputError, StorageError, TraceError

PROGRAM = """
from coterie.compute import TensorSpec, grad, graph_digest, trace
from coterie.compute import numpy as cnp

print(graph_digest(trace(grad(lambda x: cnp.sum(cnp.tanh(x) * 0.1)), TensorSpec((3,))).graph))
"""


def step() -> Graph:
    return trace(grad(lambda x: cnp.sum(cnp.tanh(x) * 0.1)), TensorSpec((3,))).graph


@pytest.mark.capability("A4")
def test_a4_the_digest_is_the_same_in_every_process_and_does_not_see_lines() -> None:
    for seed in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
        )  # fmt: skip
        assert done.stdout.strip() == graph_digest(step())
    assert to_text(step(), sources=False) != to_text(step())
    graph = step()
    moved = replace(graph, nodes=tuple(replace(node, source="elsewhere.py:1") for node in graph.nodes))
    assert graph_digest(moved) == graph_digest(graph) == graph_digest(parse(to_text(graph)))
    # A value kept for good: a change means that files and caches made before are no longer recognised.
    assert (
        graph_digest(trace(lambda x: x + x, TensorSpec((2,))).graph)
        == "ff2fec750416d59f5df884d1e03a1e15216b2fec742518aff9ee16a96365ed28"
    )


DIFFERENT: list[Callable[[], Graph]] = [
    lambda: trace(lambda x: x + x, TensorSpec((2,))).graph,
    lambda: trace(lambda x: x + x, TensorSpec((3,))).graph,
    lambda: trace(lambda x: x + x, TensorSpec((2,), "float64")).graph,
    lambda: trace(lambda x: x - x, TensorSpec((2,))).graph,
    lambda: trace(lambda x: x + 1.0, TensorSpec((2,))).graph,
    lambda: trace(lambda x: x + 1.0000001, TensorSpec((2,))).graph,
    lambda: trace(lambda x: {"other": x + x}, TensorSpec((2,))).graph,
    lambda: trace_named(lambda i: {"output": i["other"] + i["other"]}, {"other": TensorSpec((2,))}),
    lambda: trace(lambda x: cond(cnp.sum(x) > 0.0, lambda: x, lambda: -x), TensorSpec((2,))).graph,
    lambda: trace(lambda x: cond(cnp.sum(x) > 0.0, lambda: -x, lambda: x), TensorSpec((2,))).graph,
]


@pytest.mark.capability("A4")
def test_a4_different_graphs_have_different_digests() -> None:
    assert len({graph_digest(make()) for make in DIFFERENT}) == len(DIFFERENT)


@pytest.mark.capability("A4")
@pytest.mark.parametrize("make", [step, *DIFFERENT])
def test_a4_a_file_gives_the_graph_back(make: Callable[[], Graph], tmp_path: Path) -> None:
    graph = make()
    digest = save_graph(graph, tmp_path / "step.graph")
    again = load_graph(tmp_path / "step.graph")
    assert to_text(again) == to_text(graph) and graph_digest(again) == digest
    feeds = {name: np.arange(value.type.size).astype(value.type.dtype) for name, value in graph.inputs.items()}
    for name, value in interpret(graph, feeds).items():
        np.testing.assert_array_equal(interpret(again, feeds)[name], value)
    assert [path.name for path in tmp_path.iterdir()] == ["step.graph"]


def damaged(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


DAMAGE: list[tuple[str, str, str]] = [
    ("0.1", "0.2", "was changed: its digest is"),
    ("tanh", "exp", "was changed"),
    ("coterie graph 1", "coterie graph 2", "no graph of coterie"),
    ("tanh", "frobnicate", "no primitive of that name"),
    ("float32[3]", "float32[4]", "wrongly typed|was changed"),
    ("output", "outpost", "Line .* is not an input"),
]


@pytest.mark.parametrize(("old", "new", "message"), DAMAGE, ids=[d[2][:20] for d in DAMAGE])
def test_a_file_that_was_changed_is_refused(old: str, new: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "step.graph"
    save_graph(step(), path)
    damaged(path, old, new)
    with pytest.raises(InputError, match=message):
        load_graph(path)


def nested(depth: int) -> str:
    """A text whose graphs hold graphs, and whose attributes hold lists."""
    return 'input "x" %0: float32[2]\n%1: float32[2] = exp(%0) {"a": ' + "[" * depth + "]" * depth + "}\n"


TEXTS = [
    nested(100_000),
    '%0: float32[2] = constant() {"value": {"dtype": "i4, (2", "shape": [2], "data": [1, 2]}}\n',
    '%0: float32[2] = constant() {"value": {"dtype": "object", "shape": [2], "data": [1, 2]}}\n',
    '%0: float32[2] = constant() {"value": {"dtype": "float32", "shape": [999999999999], "data": [1, 2]}}\n',
    '%0: float32[2] = constant() {"value": {"dtype": "float32", "shape": [2], "base64": "??"}}\n',
    '%0: float32[2] = constant() {"value": {"shape": [2]}}\n',
    '%0: float32[2] = constant() {"value": [1, 2]}\n',
    '%0: float32[2] = call() {"graph": {"graph": ["frobnicate"]}}\n',
]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_no_text_breaks_the_parser(text: str) -> None:
    with pytest.raises(InputError):
        parse(text)


def test_damaged_texts_are_graphs_or_refused() -> None:
    text = to_text(trace(lambda x: cond(cnp.sum(x) > 0.0, lambda: x * 2.0, lambda: -x), TensorSpec((2,))).graph)
    parts, random = re.split(r"(\W)", text), Random(0)
    pieces = [*parts, "", "%0", "-1", "1e400", "NaN", "null", "{", "]", '"dtype"', "999999999999", "scan", "é"]
    refused = 0
    for _ in range(400):
        damaged_parts = list(parts)
        for _ in range(random.randint(1, 3)):
            damaged_parts[random.randrange(len(parts))] = random.choice(pieces)
        try:
            verify(parse("".join(damaged_parts)))
        except InputError:
            refused += 1
    assert refused > 200


def test_files_that_are_none_or_cannot_be_written_are_refused(tmp_path: Path) -> None:
    (tmp_path / "noise").write_bytes(bytes(range(256)))
    with pytest.raises(InputError, match="not text"):
        load_graph(tmp_path / "noise")
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(InputError, match="no graph of coterie"):
        load_graph(tmp_path / "empty")
    for act in (lambda: load_graph(tmp_path / "absent"), lambda: save_graph(step(), tmp_path / "no" / "folder")):
        with pytest.raises(StorageError, match="cannot be"):
            act()


def test_a_users_primitive_is_found_by_its_name_when_a_file_is_loaded(tmp_path: Path) -> None:
    triple = primitive("test.triple", inputs=("x",))(lambda x: x * 3.0)
    path = tmp_path / "own.graph"
    save_graph(trace(triple, TensorSpec((2,))).graph, path)
    with use_registry(Registry()):
        with pytest.raises(TraceError, match="no primitive of that name.*register"):
            load_graph(path)
        register(triple)
        ones = {"0": np.ones(2, np.float32)}
        assert interpret(optimise(load_graph(path)), ones)["output"].tolist() == [3.0, 3.0]


def test_a_step_with_named_tensors_keeps_their_order(tmp_path: Path) -> None:
    def fn(inputs: GraphInputs) -> dict[str, Array]:
        return {"z": inputs["b"] * inputs["a"], "a2": inputs["a"]}

    graph = trace_named(fn, {"b": TensorSpec((2,)), "a": TensorSpec((2,))})
    save_graph(graph, tmp_path / "named")
    again = load_graph(tmp_path / "named")
    assert (list(again.inputs), list(again.outputs)) == (["b", "a"], ["z", "a2"])
