"""Any bytes, and any graph of translated operators, are run or refused: no other error, and no hang."""

from pathlib import Path
from random import Random
from typing import Any, cast

import numpy as np
import onnxruntime  # pyright: ignore[reportMissingTypeStubs]
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import ModelProto

from coterie.compute.onnx import load
from tests.compute.importer.foreign_models import runtime
from tests.compute.importer.hostile import attempt, drawn_graph

FILES = ["readings_17", "cnn_20", "gru_17", "sk_logistic_17", "sk_mlp_18"]
BYTES = [(Path(__file__).parent / "fixtures" / f"{name}.onnx").read_bytes() for name in FILES]
LIMITED = settings(max_examples=100, deadline=20_000, derandomize=True, suppress_health_check=[HealthCheck.too_slow])

changes = st.lists(
    st.tuples(st.sampled_from(["flip", "cut", "insert", "repeat"]), st.integers(0, 2**20), st.binary(max_size=8)),
    min_size=1,
    max_size=6,
)


def changed(data: bytes, edits: list[tuple[str, int, bytes]]) -> bytes:
    """The bytes after some damage."""
    for kind, number, more in edits:
        place = number % (len(data) + 1)
        match kind:
            case "flip":
                data = (
                    data[:place]
                    + bytes(byte ^ (1 << number % 8) for byte in data[place : place + 1])
                    + data[place + 1 :]
                )
            case "cut":
                data = data[:place] + data[place + 1 + len(more) :]
            case "insert":
                data = data[:place] + more + data[place:]
            case _:
                data = data[:place] + data[max(place - 40, 0) :]
    return data


@LIMITED
@given(st.sampled_from(BYTES), changes)
def test_damaged_files_are_run_or_refused(data: bytes, edits: list[tuple[str, int, bytes]]) -> None:
    assert attempt(changed(data, edits)) in ("ran", "refused")


@settings(LIMITED, max_examples=250)
@given(st.integers(0, 2**63))
def test_graphs_that_rarely_fit_are_run_or_refused(seed: int) -> None:
    assert attempt(drawn_graph(Random(seed).randrange)) in ("ran", "refused")


def test_the_graphs_drawn_are_of_both_kinds() -> None:
    found = [attempt(drawn_graph(Random(seed).randrange)) for seed in range(100)]
    assert 20 < found.count("ran") < 80


def test_graphs_that_run_compute_what_the_runtime_does() -> None:
    """Where both sides take a graph. Not for learners: on some of theirs the runtime ends the process."""
    cast(Any, onnxruntime).set_default_logger_severity(4)
    compared = 0
    for seed in range(100):
        data = drawn_graph(Random(seed).randrange)
        if attempt(data) == "refused" or any(node.domain for node in ModelProto.FromString(data).graph.node):
            continue
        model = load(data)
        x = np.ones([int(size or 1) for size in model.inputs[0].sizes], np.float32)
        try:
            expected = runtime(data, x)[model.outputs[0]]
        except Exception as error:  # the runtime refuses it, in many classes of its own
            if not type(error).__module__.startswith("onnxruntime"):
                raise
            continue
        with np.errstate(all="ignore"):
            found = model(model.parameters, x).numpy()
        assert found.shape == expected.shape, seed
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5, err_msg=str(seed))
        compared += 1
    assert compared > 10


@pytest.mark.parametrize("data", BYTES, ids=FILES)
def test_the_files_before_the_damage_run(data: bytes) -> None:
    assert attempt(data) == "ran"
