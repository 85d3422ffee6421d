"""The public names exist, and asking for one part does not load the others."""

import importlib
import subprocess
import sys

import pytest

import coterie.compute


def test_every_public_name_can_be_had() -> None:
    for name in coterie.compute.__all__:
        assert getattr(coterie.compute, name) is not None
    with pytest.raises(AttributeError, match="frobnicate"):
        _ = coterie.compute.frobnicate


def test_no_module_hides_a_function_of_its_name() -> None:
    for name in coterie.compute.__all__:
        value = getattr(coterie.compute, name)
        home = importlib.import_module(value.__module__)  # loading it would put it in the function's place
        assert getattr(coterie.compute, name) is value is getattr(home, name)
        assert callable(value)


@pytest.mark.parametrize(
    "part", ["coterie.compute", "coterie.compute.ops", "coterie.compute.autodiff", "coterie.compute.text"]
)
def test_arrays_and_gradients_load_neither_onnx_nor_its_runtime(part: str) -> None:
    program = f"import {part}, sys; print([name for name in ('onnx', 'onnxruntime') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
