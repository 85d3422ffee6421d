"""Which execution providers there are, and whether each computes what NumPy computes."""

from dataclasses import dataclass
from math import inf

from coterie.compute.onnx.writer import to_onnx
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.recipes import RECIPES, Recipe
from coterie.compute.runtime.reference import distance, evaluate
from coterie.compute.runtime.session import available_providers, runtime_version
from coterie.errors import CoterieError

# Float32 results of a few hundred products; a provider that computes in half or tf32 precision misses it by far.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Provider:
    """An execution provider of the installed ONNX Runtime."""

    name: str
    runtime: str


@dataclass(frozen=True)
class CaseResult:
    """How one recipe went. distance: the largest |provider - NumPy| / (1 + |NumPy|) of all its outputs; error: why it
    did not run, if it did not; required: whether it must.
    """

    name: str
    distance: float
    error: str | None = None
    required: bool = True

    @property
    def passed(self) -> bool:
        """Whether the provider may be trusted with this recipe: it computes what NumPy computes, or lacks operators
        that not every provider has to have. A graph that needs those does not load there.
        """
        return self.distance <= TOLERANCE if self.error is None else not self.required


@dataclass(frozen=True)
class ConformanceReport:
    """What a provider made of all recipes. One that failed any is not to be used for training: wrong numbers come
    without an error.
    """

    provider: Provider
    cases: tuple[CaseResult, ...]

    @property
    def passed(self) -> bool:
        """Whether every recipe passed."""
        return all(case.passed for case in self.cases)

    @property
    def failures(self) -> tuple[CaseResult, ...]:
        """The recipes that differ from NumPy or do not run."""
        return tuple(case for case in self.cases if not case.passed)


def discover() -> list[Provider]:
    """The providers that run graphs on this machine, in ONNX Runtime's order of preference."""
    return [Provider(name, runtime_version()) for name in available_providers()]


def conformance(provider: Provider | str, *, recipes: tuple[Recipe, ...] = RECIPES) -> ConformanceReport:
    """Run every recipe on a provider, without help from the CPU, and compare with NumPy. A recipe that fails is a
    result, never an exception.
    """
    chosen = provider if isinstance(provider, Provider) else Provider(provider, runtime_version())
    return ConformanceReport(chosen, tuple(run_recipe(recipe, chosen) for recipe in recipes))


def run_recipe(recipe: Recipe, provider: Provider) -> CaseResult:
    """One recipe on one provider."""
    graph = recipe.graph()
    feeds = recipe.feeds(graph)
    expected = evaluate(graph, feeds)
    try:
        actual = Executable(to_onnx(graph, name="recipe"), provider=provider.name, fallback=False).run(feeds)
    except CoterieError as error:
        return CaseResult(recipe.name, inf, str(error), required=recipe.portable)
    furthest = max(distance(actual[name], value) for name, value in expected.items())
    return CaseResult(recipe.name, furthest, required=recipe.portable)
