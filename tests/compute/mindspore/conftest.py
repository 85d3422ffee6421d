"""Scripts of MindSpore draw from one stream of the process: every test begins it anew."""

import pytest

from coterie.compute.mindspore import set_seed


@pytest.fixture(autouse=True)
def own_draws() -> None:
    """First weights and masks of a test are the same whatever ran before it."""
    set_seed(0)
