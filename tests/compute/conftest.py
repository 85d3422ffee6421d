"""A generator that a test file holds as ``RNG`` starts anew for every test: none depends on which tests ran before."""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import pytest

from tests.integer_kernels import saturate


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


ON_EXACT_KERNELS = frozenset((
    "test_a_convolution_before_a_float_operator_runs_in_integers_too",
    "test_a_file_in_levels_says_what_the_float_file_says",
    "test_a_quantised_model_is_verified_against_the_float_model_that_it_was",
    "test_a_sum_is_quantised_where_an_integer_kernel_reads_it",
    "test_a_trunk_of_integers_trains_nearly_as_well",
    "test_files_of_other_exporters_are_quantised_too",
    "test_int8_is_small_and_answers_the_same",
    "test_int8_lenet_is_small_and_as_accurate_on_mnist",
    "test_int8_without_rows_measures_in_every_call",
    "test_stacks_of_matrices_are_left_out_where_each_channel_has_a_scale",
    "test_steps_of_a_recurrent_network_share_one_weight_in_levels",
    "test_the_file_computes_what_the_model_computed_in_training",
    "test_the_runtimes_own_quantiser_comes_to_the_same",
))  # fmt: skip
"""Tests that hold answers of int8 files to those of float files: they say nothing where sums of bytes are cut."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, by name, what this processor's integer kernels cannot show."""
    named = [item for item in items if getattr(item, "originalname", item.name) in ON_EXACT_KERNELS]
    if named and saturate():
        for item in named:
            item.add_marker(pytest.mark.skip("sums of bytes saturate on this processor, which has no VNNI"))
