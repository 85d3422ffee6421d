"""A generator that a test file holds as ``RNG`` starts anew for every test: none depends on which tests ran before."""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import pytest


def _generator(request: pytest.FixtureRequest) -> np.random.Generator | None:
    found = getattr(cast("object", request.module), "RNG", None)  # pyright: ignore[reportUnknownMemberType]
    return found if isinstance(found, np.random.Generator) else None


@pytest.fixture(scope="module")
def first_state(request: pytest.FixtureRequest) -> Mapping[str, Any]:
    """The state of the file's generator once the file is loaded; empty where it has none."""
    generator = _generator(request)
    return {} if generator is None else generator.bit_generator.state


@pytest.fixture(autouse=True)
def same_draws(request: pytest.FixtureRequest, first_state: Mapping[str, Any]) -> None:
    """Set the file's generator back."""
    generator = _generator(request)
    if generator is not None:
        generator.bit_generator.state = first_state
