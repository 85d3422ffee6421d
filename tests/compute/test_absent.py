"""Names that a package does not have: the error says which one was meant."""

import importlib

import pytest

MEANT = [
    ("nn", "Relu", "Did you mean ReLU?"),
    ("nn", "Conv2D", "Did you mean Conv2d?"),
    ("nn", "CrossEntropyLoss", "Here that is nn.losses.softmax_cross_entropy."),
    ("nn", "Dense", "Here that is nn.Linear."),
    ("nn.losses", "cross_entropy", "Here that is softmax_cross_entropy."),
    ("nn.losses", "softmax_cros_entropy", "Did you mean softmax_cross_entropy?"),
    ("nn", "Silu", "Did you mean SiLU?"),
    ("nn", "L1Loss", "Here that is nn.losses.mean_absolute_error."),
    ("nn.losses", "nll_loss", "Here that is negative_log_likelihood."),
    ("nn.losses", "bce", "Here that is binary_cross_entropy_with_logits, of logits."),
    ("nn.losses", "l1", "Here that is mean_absolute_error."),
    ("optim", "RMSprop", "Here that is optim.rmsprop."),
    ("nn.metrics", "Accuracy", "Did you mean accuracy?"),
    ("optim", "Adam", "Here that is optim.adam."),
    ("optim", "lr_scheduler", "Here that is the schedules optim.constant"),
    ("optim", "addam", "Did you mean adam?"),
    ("nn", "quaternion", "coterie.compute.nn has no 'quaternion'."),
]


@pytest.mark.parametrize(("package", "name", "says"), MEANT)
def test_a_name_that_is_not_there_says_what_was_meant(package: str, name: str, says: str) -> None:
    with pytest.raises(AttributeError, match=f"coterie.compute.{package} has no '{name}'") as refused:
        getattr(importlib.import_module(f"coterie.compute.{package}"), name)
    assert str(refused.value).endswith(says) or "Here that is the schedules" in str(refused.value)
