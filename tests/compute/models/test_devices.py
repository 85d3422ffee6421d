"""Conformance: the recipes use the whole table of primitives, the CPU passes them, and a provider that is wrong is
found out.
"""

import time
from collections.abc import Callable

import numpy as np
import onnx
import pytest

from coterie.compute.ir import NDArray
from coterie.compute.onnx.checker import check_graph
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.runtime import conformance as module
from coterie.compute.runtime.conformance import ALL_RECIPES, conformance, recipes_digest
from coterie.compute.runtime.devices import Provider, discover
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.recipes import RECIPES, Recipe
from coterie.compute.runtime.reference import distance, evaluate
from coterie.compute.runtime.session import CPU
from coterie.compute.table import PLAIN
from coterie.compute.trace import TensorSpec, trace_named
from coterie.errors import GraphRefused, InputError


def test_the_cpu_is_found_and_conforms():
    providers = discover()
    assert CPU in [provider.name for provider in providers]
    assert "AzureExecutionProvider" not in [provider.name for provider in providers]
    begun = time.process_time()
    report = conformance(next(provider for provider in providers if provider.name == CPU))
    assert time.process_time() - begun < 20
    assert report.passed, report.failures
    assert len(report.cases) == len(ALL_RECIPES)
    assert {case.outcome for case in report.cases} == {"agrees"}


def test_the_recipes_use_every_primitive():
    used = {node.primitive for recipe in RECIPES for node in recipe.graph().nodes}
    assert used & PLAIN | {"constant"} == PLAIN
    assert len({recipe.name for recipe in RECIPES}) == len(RECIPES)


@pytest.mark.parametrize("recipe", ALL_RECIPES, ids=lambda recipe: recipe.name)
def test_what_the_writer_emits_passes_the_checker(recipe: Recipe):
    check_graph(to_onnx(recipe.graph(), name="recipe"))


@pytest.mark.parametrize("recipe", ALL_RECIPES, ids=lambda recipe: recipe.name)
def test_a_recipe_has_something_to_say(recipe: Recipe):
    graph = recipe.graph()
    for name, value in evaluate(graph, recipe.feeds(graph)).items():
        assert np.isfinite(value).all() and np.abs(value).max() > 0, name


def _off_by_one_percent(values: dict[str, NDArray]) -> dict[str, NDArray]:
    return {name: value * np.float32(1.01) for name, value in values.items()}


def _nan(values: dict[str, NDArray]) -> dict[str, NDArray]:
    floats = {name: value for name, value in values.items() if value.dtype.kind == "f"}
    return values | {name: np.where(value > 1, np.float32(np.nan), value) for name, value in floats.items()}


def _swapped(values: dict[str, NDArray]) -> dict[str, NDArray]:
    return {name: value.reshape(-1)[::-1].reshape(value.shape) for name, value in values.items()}


@pytest.mark.parametrize("damage", [_off_by_one_percent, _nan, _swapped])
def test_a_wrong_provider_is_found_out(
    damage: Callable[[dict[str, NDArray]], dict[str, NDArray]], monkeypatch: pytest.MonkeyPatch
):
    run = Executable.run

    def damaged(self: Executable, feeds: dict[str, NDArray]) -> dict[str, NDArray]:
        return damage(run(self, feeds))

    monkeypatch.setattr(Executable, "run", damaged)
    report = conformance(CPU)
    assert not report.passed
    assert len(report.failures) > len(RECIPES) / 2


def test_a_recipe_that_does_not_run_is_a_result():
    report = conformance("NoSuchProvider", recipes=RECIPES[:2])
    assert not report.passed
    assert all("no provider 'NoSuchProvider'" in (case.error or "") for case in report.failures)
    assert report.reason == f"failed in 'add', failed in 'subtract': {(report.failures[0].error or '').rstrip('.')}"


def without(*operators: str) -> Provider:
    """A provider that takes no graph with these operators alone, and lets the CPU help with them."""

    class Narrow(Provider):
        def executable(self, data: bytes, *, threads: int = 1, fallback: bool = True) -> Executable:
            found = {node.op_type for node in onnx.load_from_string(data).graph.node}
            if not fallback and found & set(operators):
                raise GraphRefused(f"{sorted(found & set(operators))} would run on the CPU.")
            return Executable(data)

    return Narrow("NarrowExecutionProvider", "1.0")


def test_what_a_provider_leaves_to_the_cpu_is_declined_and_no_reason_for_distrust():
    report = conformance(without("TopK", "Cos"))
    assert {case.name for case in report.declined} == {"sort", "top_k", "cos", "sin"} and report.passed
    assert all("would run on the CPU" in (case.error or "") for case in report.declined)
    nothing = conformance(without(*{node for recipe in RECIPES for node in operators_of(recipe)}), recipes=RECIPES)
    assert not nothing.passed and nothing.reason == "computes none of the recipes itself"


def operators_of(recipe: Recipe) -> set[str]:
    return {str(node.op_type) for node in onnx.load_from_string(to_onnx(recipe.graph(), name="recipe")).graph.node}


def test_wrong_numbers_count_also_where_the_cpu_helps(monkeypatch: pytest.MonkeyPatch):
    run = Executable.run

    def damaged(self: Executable, feeds: dict[str, NDArray]) -> dict[str, NDArray]:
        return _off_by_one_percent(run(self, feeds))

    monkeypatch.setattr(Executable, "run", damaged)
    rare = tuple(recipe for recipe in RECIPES if recipe.name in ("sort", "top_k"))
    report = conformance(without("TopK"), recipes=rare)
    assert {case.outcome for case in report.cases} == {"differs"} and not report.passed
    assert report.reason.startswith("differs in 'sort'")


def test_other_recipes_have_another_digest(monkeypatch: pytest.MonkeyPatch):
    before = recipes_digest()
    recipes_digest.cache_clear()
    monkeypatch.setattr(module, "ALL_RECIPES", ALL_RECIPES[:5])
    assert len(before) == 16 and recipes_digest() != before
    recipes_digest.cache_clear()


def floats(numbers: object) -> NDArray:
    return np.array(numbers, np.float32)


def doubles(numbers: object) -> NDArray:
    return np.array(numbers, np.float64)


def integers(numbers: object) -> NDArray:
    return np.array(numbers, np.int32)


DISTANCES = [
    (floats([1, 2]), floats([1, 2]), 0),
    (floats([3]), floats([1]), 1),
    (floats([np.nan, np.inf]), floats([np.nan, np.inf]), 0),
    (floats([np.inf]), floats([-np.inf]), np.inf),
    (floats([1]), floats([np.nan]), np.inf),
    (floats([1]), floats([[1]]), np.inf),
    (floats([1]), doubles([1]), np.inf),
    (integers([1, 2]), integers([1, 2]), 0),
    (integers([1, 2]), integers([1, 3]), np.inf),
    (np.zeros((0,), np.float32), np.zeros((0,), np.float32), 0),
]


@pytest.mark.parametrize(("actual", "expected", "apart"), DISTANCES)
def test_distance(actual: NDArray, expected: NDArray, apart: float):
    assert distance(actual, expected) == apart


def test_the_reference_takes_scalars_as_the_file_does():
    graph = trace_named(lambda inputs: {"twice": inputs["a"] * 2.0}, {"a": TensorSpec(())})
    np.testing.assert_array_equal(evaluate(graph, {"a": floats([3])})["twice"], floats([6]))
    for wrong in ({"a": floats(3)}, {"a": floats([3, 4])}, {}, {"a": floats([3]), "b": floats([3])}):
        with pytest.raises(InputError):
            evaluate(graph, wrong)
