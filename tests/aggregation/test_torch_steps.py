"""A device's training is PyTorch's, for every kind of label, loss and step that an experiment can ask for."""

from pathlib import Path

import numpy as np
import pytest

from tests.aggregation.torch_steps import CASES, update_of, work_of

# Made by make_torch_steps.py.
ANSWERS = np.load(Path(__file__).parent / "torch_steps.npz")


@pytest.mark.parametrize("name", CASES)
def test_a_device_makes_the_update_that_pytorch_makes(name: str) -> None:
    update = update_of(work_of(name))
    assert {f"{name}/{key}" for key in update} == {key for key in ANSWERS.files if key.startswith(f"{name}/")}
    largest = max(float(np.abs(ANSWERS[f"{name}/{key}"]).max()) for key in update)
    assert largest > 0.01
    for key, found in update.items():
        expected = ANSWERS[f"{name}/{key}"].reshape(found.shape)
        np.testing.assert_allclose(found, expected, rtol=0, atol=CASES[name].tolerance * largest, err_msg=key)
