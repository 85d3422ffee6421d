"""Inputs that no node reads: stated by the file, left out of other providers' sessions."""

from typing import Any

import numpy as np
import onnx
import pytest

from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.control.functions import cond
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.runtime import session as sessions
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.step_loop import StepLoop
from coterie.compute.runtime.unread import inputs_of, without_unread_inputs
from coterie.compute.trace import GraphInputs, TensorSpec, trace_named
from tests.compute.providers.steps import case

SPECS = {"a": TensorSpec((2,)), "idle": TensorSpec((3,), "int32"), "b": TensorSpec((2,))}
DATA = to_onnx(trace_named(lambda i: {"next/b": i["a"] - i["b"]}, SPECS), name="idle")
A, IDLE, B = np.ones(2, np.float32), np.ones(3, np.int32), np.full(2, 3, np.float32)


def names(data: bytes) -> list[str]:
    return [value.name for value in onnx.load_from_string(data).graph.input]


def test_only_they_are_left_out() -> None:
    assert names(DATA) == ["a", "idle", "b"] and names(without_unread_inputs(DATA)) == ["a", "b"]
    assert without_unread_inputs(case().data) == case().data
    assert [str(info) for info in inputs_of(DATA)] == ["a: float32[2]", "idle: int32[3]", "b: float32[2]"]


def test_what_a_branch_reads_is_read() -> None:
    def choose(i: GraphInputs) -> dict[str, Array]:
        return {"r": cond(xp.greater(i["q"], 0.0), lambda: i["a"] * 2.0, lambda: i["b"])}

    specs = {"q": TensorSpec(()), "a": TensorSpec((2,)), "b": TensorSpec((2,))}
    data = to_onnx(trace_named(choose, specs), name="choice", target="cpu")
    assert names(without_unread_inputs(data)) == ["q", "a", "b"]


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU's sessions under another name: opened as those of other providers are."""
    opened = sessions.open_session

    def open_as_other(data: bytes, **options: Any) -> sessions.Session:
        options["provider"] = sessions.CPU
        return opened(without_unread_inputs(data), **options)

    monkeypatch.setattr("coterie.compute.runtime.executable.open_session", open_as_other)


@pytest.mark.usefixtures("other")
def test_whoever_feeds_the_file_feeds_the_provider() -> None:
    executable = Executable(DATA, provider="Other")
    assert list(executable.input) == ["a", "idle", "b"] and executable.taken == {"a", "b"}
    assert executable.run({"a": A, "idle": IDLE, "b": B})["next/b"].tolist() == [-2.0, -2.0]
    loop = StepLoop(executable, carry={"next/b": "b"}, constants={"idle": IDLE}, state={"b": B})
    for expected in (-2.0, 3.0, -2.0):
        loop.step({"a": A})
        assert loop.state()["b"].tolist() == [expected] * 2
