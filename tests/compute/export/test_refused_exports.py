"""What cannot be exported is refused by name."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from onnx import helper

from coterie.compute.array import Array
from coterie.compute.export import Examples, export, run_bare
from coterie.compute.ir import Graph
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.trace import GraphInputs, TensorSpec, trace_named
from coterie.errors import CoterieError, DataError, GraphRefused, InputError, StorageError
from tests.compute.export.files import CHANNELS, CONV, foreign, quick, rows


def _next(graph: GraphInputs) -> dict[str, Array]:
    return {"next/w": graph["w"] * graph["x"]}


TRAINS = trace_named(_next, {name: TensorSpec((2,), "float32") for name in ("w", "x")})

SCALED = {"x": TensorSpec((2,), "float32"), "s": TensorSpec((), "float32")}
REFUSED: dict[str, tuple[Callable[[], object], type[CoterieError], str, str]] = {
    "a graph that trains": (lambda: export(TRAINS), GraphRefused, "training_graph", "next/w"),
    "a file that trains": (
        lambda: export(to_onnx(TRAINS, name="train")),
        GraphRefused,
        "training_graph",
        "next/w",
    ),
    "batch norm in training mode": (
        lambda: export(
            foreign(
                helper.make_node("BatchNormalization", ["x", "s", "t", "m", "v"], ["y", "a", "b"], training_mode=1),
                **{name: value[:2] for name, value in CHANNELS.items()},
            ),
            quick(sizes={"batch": 2}),
        ),
        GraphRefused,
        "import_refused",
        "training mode",
    ),
    "no file": (lambda: export("nowhere.onnx"), StorageError, "storage_failed", "nowhere.onnx"),
    "no ONNX": (lambda: export(b"not a model"), GraphRefused, "import_refused", ""),
    "a size left open": (lambda: export(CONV), InputError, "export_size", "batch"),
    "a size of no axis": (
        lambda: export(CONV, quick(sizes={"batch": 2, "time": 3})),
        InputError,
        "export_size",
        "'time'",
    ),
    "int8 without rows": (
        lambda: export(CONV, quick(precision="int8", sizes={"batch": 2})),
        InputError,
        "calibration_missing",
        "calibrate",
    ),
    "int8 without a product": (
        lambda: export(
            foreign(helper.make_node("Relu", ["x"], ["y"])),
            quick(precision="int8", sizes={"batch": 2}),
            examples=Examples(inputs={"x": rows(4, 2, 4, 4)}),
        ),
        GraphRefused,
        "graph_refused",
        "",
    ),
    "int8 measured in every call without a product": (
        lambda: export(CONV, quick(precision="int8-dynamic", sizes={"batch": 2})),
        GraphRefused,
        "graph_refused",
        "matrix product",
    ),
    "examples under another name": (
        lambda: export(CONV, quick(sizes={"batch": 2}), examples=Examples(inputs={"image": rows(4, 2, 4, 4)})),
        DataError,
        "data_missing",
        "x",
    ),
    "examples of another shape": (
        lambda: export(CONV, quick(sizes={"batch": 2}), examples=Examples(inputs={"x": rows(4, 2, 4, 5)})),
        DataError,
        "data_shape",
        "4, 5",
    ),
    "no rows": (
        lambda: export(CONV, quick(sizes={"batch": 2}), examples=Examples(inputs={"x": rows(0, 2, 4, 4)})),
        DataError,
        "data_shape",
        "at least one",
    ),
    "text": (lambda: Examples(inputs={"x": np.full((4, 2), "a")}), DataError, "data_dtype", "x is ndarray of <U1"),
    "labels that are text": (
        lambda: Examples(inputs={"x": rows(2, 2)}, labels=np.array(["a", "b"])),
        DataError,
        "data_dtype",
        "labels",
    ),
    "a list": (lambda: Examples(inputs={"x": cast(Any, [[1.0]])}), DataError, "data_dtype", "x is list"),
    "an input without axes": (
        lambda: export(trace_named(lambda given: {"y": given["x"] * given["s"]}, SCALED)),
        InputError,
        "input_invalid",
        "'s' is a single number",
    ),
    "more labels than rows": (
        lambda: export(
            CONV, quick(sizes={"batch": 2}), examples=Examples(inputs={"x": rows(4, 2, 4, 4)}, labels=np.zeros(5, int))
        ),
        DataError,
        "data_shape",
        "[4, 5]",
    ),
    "a precision that is none": (
        lambda: quick(precision="int4"),
        InputError,
        "input_invalid",
        "int4",
    ),
    "no repeats": (lambda: quick(repeats=0), InputError, "input_invalid", "repeats"),
    "a size of 0": (lambda: quick(sizes={"batch": 0}), InputError, "input_invalid", "batch"),
    "a graph without inputs": (
        lambda: export(Graph({}, (), {})),
        InputError,
        "input_invalid",
        "no inputs",
    ),
    "no batches": (lambda: run_bare([CONV], []), InputError, "input_invalid", "no batch"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused_by_name(case: str) -> None:
    attempt, kind, code, word = REFUSED[case]
    with pytest.raises(kind) as refused:
        attempt()
    assert refused.value.reason == code
    assert word in str(refused.value)
