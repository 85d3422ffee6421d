"""Which execution providers there are, and whether each computes what NumPy computes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TypeAlias

import numpy as np

from coterie.compute.ir import NDArray
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.recipes import RECIPES, Recipe
from coterie.compute.runtime.reference import distance, evaluate
from coterie.compute.runtime.session import available_providers, runtime_version
from coterie.errors import ConfigurationError, CoterieError

# Float32 results of a few hundred products; a provider that computes in half or tf32 precision misses it by far.
TOLERANCE = 1e-4


Runner: TypeAlias = Callable[[Mapping[str, NDArray]], Mapping[str, NDArray]]
"""A loaded graph: feeds by name to results by name."""


@dataclass(frozen=True)
class Provider:
    """An execution provider: one of the installed ONNX Runtime, or one that a plug-in brings.

    open: what loads the bytes of an ONNX file and gives back what runs it; None for those of ONNX Runtime.
    """

    name: str
    runtime: str
    open: Callable[[bytes], Runner] | None = field(default=None, compare=False)

    def load(self, data: bytes) -> Runner:
        """Load a graph for this provider alone, without help from the CPU."""
        return Executable(data, provider=self.name, fallback=False).run if self.open is None else self.open(data)


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


def discover(plugins: Iterable[Provider] = ()) -> list[Provider]:
    """The providers that run graphs on this machine, in ONNX Runtime's order of preference, and those of plug-ins
    (``coterie.compute.extension.providers.load_providers`` finds the installed ones). Trust none before it conforms.

    Raises ConfigurationError for two of one name.
    """
    found = [*(Provider(name, runtime_version()) for name in available_providers()), *plugins]
    names = [provider.name for provider in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(
            f"There are two providers called {twice[0]}.", hint="Leave out the plug-in that repeats it."
        )
    return found


def quarantined(providers: Sequence[Provider]) -> tuple[list[Provider], list[ConformanceReport]]:
    """The providers that conform, and the reports of those that do not and must stay unused."""
    reports = [conformance(provider) for provider in providers]
    return [r.provider for r in reports if r.passed], [r for r in reports if not r.passed]


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
        actual = provider.load(to_onnx(graph, name="recipe"))(feeds)
    except CoterieError as error:
        return CaseResult(recipe.name, inf, str(error), required=recipe.portable)
    except Exception as error:
        if provider.open is None:
            raise
        # A plug-in is foreign code: whatever it raises is its result.
        return CaseResult(recipe.name, inf, f"{type(error).__name__}: {error}", required=recipe.portable)
    if absent := sorted(set(expected) - set(actual)):
        return CaseResult(recipe.name, inf, f"The results {absent} are missing.")
    furthest = max(distance(np.asarray(actual[name]), value) for name, value in expected.items())
    return CaseResult(recipe.name, furthest, required=recipe.portable)
