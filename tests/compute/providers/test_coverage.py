"""Which nodes a provider runs: asked of ONNX Runtime, and read from the table."""

import pytest

from coterie.compute.onnx.providers import PROVIDERS
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.runtime.coverage import Coverage, Place, coverage, documented, plan_coverage
from coterie.compute.runtime.devices import Provider, discover, provider_named
from coterie.compute.runtime.recipes import RECIPES
from coterie.compute.runtime.session import CPU
from coterie.errors import InputError
from tests.compute.providers.fakes import made
from tests.compute.providers.steps import case, graph

CPU_PROVIDER = provider_named(CPU)


def test_the_cpu_runs_every_node_of_a_step() -> None:
    found = coverage(case().data, CPU_PROVIDER)
    assert found.whole and not found.elsewhere and str(found) == "every node"
    assert {"Conv", "MaxPool"} <= {place.operator for place in found.nodes}
    assert {place.provider for place in found.nodes} == {CPU}


def test_providers_of_packages_take_all_or_nothing() -> None:
    assert coverage(case().data, made("Good")) == Coverage("Good", whole=True)

    def load(data: bytes) -> object:
        raise KeyError("kernel")

    refused = coverage(case().data, Provider("Closed", "1", load))  # pyright: ignore[reportArgumentType]
    assert not refused.whole and "KeyError" in str(refused)
    absent = coverage(case().data, Provider("NoSuchProvider", "1"))
    assert str(absent).startswith("does not load: ONNX Runtime has no provider")


def test_a_plan_is_covered_graph_by_graph() -> None:
    graphs = {"train": case().data, "eval": case(1).data}
    found = plan_coverage(graphs, [*discover(), made("Good")])
    assert {("train", CPU), ("eval", CPU), ("train", "Good"), ("eval", "Good")} <= set(found)
    assert all(each.whole for each in found.values())


def test_what_would_run_elsewhere_is_told() -> None:
    places = (Place("a", "Conv", "X"), Place("b", "TopK", CPU), Place("c", "Gather", CPU), Place("d", "Gather", CPU))
    found = Coverage("X", whole=False, nodes=places)
    assert found.elsewhere == places[1:] and str(found) == "1 of 4 nodes, not Gather, TopK"


@pytest.mark.capability("E10")
@pytest.mark.parametrize("target", PROVIDERS)
def test_e10_the_table_covers_what_was_written_for_it(target: str) -> None:
    """What the writer wrote for a provider runs there by the provider's own lists: the same table from two sides."""
    written = to_onnx(graph(), name="train", target=target)  # pyright: ignore[reportArgumentType]
    found = documented(written, target)
    assert found.whole and found.provider == PROVIDERS[target].runtime, found


def test_the_table_names_what_a_provider_lacks() -> None:
    top_k = next(recipe for recipe in RECIPES if recipe.name == "top_k")
    found = documented(to_onnx(top_k.graph(), name="recipe"), "coreml")
    assert not found.whole and "TopK" in {place.operator for place in found.elsewhere}
    assert all(place.why == f"lacks the operator {place.operator}" for place in found.elsewhere)
    assert not documented(case().data, "coreml").whole  # products of two inputs: Gemm there takes constants
    with pytest.raises(InputError, match="no provider 'abacus'"):
        documented(case().data, "abacus")
