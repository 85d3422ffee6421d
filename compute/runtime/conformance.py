"""Whether a provider computes what NumPy computes: every recipe is run on it, without help from the CPU.

A provider may lack an operator; then ONNX Runtime gives that node to the CPU, and ``coverage`` tells. It may not be
wrong: numbers that differ come without an error.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Literal, TypeAlias

import numpy as np

from coterie.compute.ir import NDArray
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.runtime.devices import Provider, provider_named
from coterie.compute.runtime.recipes import RECIPES, Recipe
from coterie.compute.runtime.reference import distance, evaluate
from coterie.compute.runtime.step_recipes import STEPS
from coterie.errors import CoterieError, GraphRefused

# Float32 results of a few hundred products; a provider that computes in half or tf32 precision misses it by far.
TOLERANCE = 1e-4
# Each recipe is run so often, on other numbers every time: a provider may be right once, and then go on with what it
# was given first.
DRAWS = 2

ALL_RECIPES: tuple[Recipe, ...] = (*RECIPES, *STEPS)
"""Single rules, and whole training steps: a provider may take every operator alone and fail when it has them all."""

Outcome: TypeAlias = Literal["agrees", "differs", "declined", "failed"]
"""agrees: NumPy's numbers, on this provider alone. differs: other numbers, or results that are missing. declined: it
takes the graph only with the CPU's help, and both together agree. failed: it does not load, or fails in the run."""


@dataclass(frozen=True)
class CaseResult:
    """How one recipe went. distance: the largest |provider - NumPy| / (1 + |NumPy|) of all its outputs; error: what was
    said where it did not run on the provider alone.
    """

    name: str
    outcome: Outcome
    distance: float
    error: str | None = None

    @property
    def passed(self) -> bool:
        """Whether the provider may be trusted with this recipe: it is right, or leaves the work to the CPU."""
        return self.outcome in ("agrees", "declined")


@dataclass(frozen=True)
class ConformanceReport:
    """What a provider made of all recipes. One that fails any is not to be used for training: wrong numbers come
    without an error.
    """

    provider: Provider
    cases: tuple[CaseResult, ...]

    @property
    def passed(self) -> bool:
        """Whether no recipe differs or fails, and at least one was computed there."""
        return all(case.passed for case in self.cases) and any(case.outcome == "agrees" for case in self.cases)

    @property
    def failures(self) -> tuple[CaseResult, ...]:
        """The recipes that differ from NumPy or fail."""
        return tuple(case for case in self.cases if not case.passed)

    @property
    def declined(self) -> tuple[CaseResult, ...]:
        """The recipes that need the CPU's help."""
        return tuple(case for case in self.cases if case.outcome == "declined")

    @property
    def reason(self) -> str:
        """Why it did not pass, in a sentence without an end; "" when it passed."""
        if self.passed:
            return ""
        if not (failures := list(self.failures)):
            return "computes none of the recipes itself"
        named = ", ".join(f"{case.outcome} in {case.name!r}" for case in failures[:3])
        more = f" and {len(failures) - 3} more" if len(failures) > 3 else ""
        said = failures[0].error
        return f"{named}{more}: {said.rstrip('.')}" if said else f"{named}{more}"


def conformance(provider: Provider | str, *, recipes: tuple[Recipe, ...] = ALL_RECIPES) -> ConformanceReport:
    """Run every recipe on a provider, without help from the CPU, and compare with NumPy. A recipe that fails is a
    result, never an exception.
    """
    chosen = provider if isinstance(provider, Provider) else provider_named(provider)
    return ConformanceReport(chosen, tuple(run_recipe(recipe, chosen) for recipe in recipes))


def run_recipe(recipe: Recipe, provider: Provider) -> CaseResult:
    """One recipe on one provider: alone, or where it does not take the graph alone, with the CPU's help."""
    graph = recipe.graph()
    draws = [recipe.feeds(graph, draw) for draw in range(DRAWS)]
    data = to_onnx(graph, name="recipe")
    said: str | None = None
    try:
        executable = provider.executable(data, fallback=False)
    except GraphRefused as refusal:
        said = refusal.message
        try:
            executable = provider.executable(data)
        except CoterieError as error:
            return CaseResult(recipe.name, "failed", inf, error.message)
    except CoterieError as error:
        return CaseResult(recipe.name, "failed", inf, error.message)
    try:
        runs = [executable.run(feeds) for feeds in draws]
    except CoterieError as error:
        return CaseResult(recipe.name, "failed", inf, error.message)
    found = max(
        distance(np.asarray(actual[name]), value)
        for actual, feeds in zip(runs, draws, strict=True)
        for name, value in evaluate(graph, feeds).items()
    )
    if found > TOLERANCE:
        return CaseResult(recipe.name, "differs", found, said)
    return CaseResult(recipe.name, "agrees" if said is None else "declined", found, said)


@cache
def recipes_digest() -> str:
    """SHA-256 (hex, 16 digits) of all recipes as files and numbers: a provider that was tried with others is tried
    again.
    """
    digest = hashlib.sha256()
    for recipe in ALL_RECIPES:
        graph = recipe.graph()
        digest.update(to_onnx(graph, name=recipe.name))
        for draw in range(DRAWS):
            digest.update(_bytes(recipe.feeds(graph, draw)))
    return digest.hexdigest()[:16]


def _bytes(feeds: Mapping[str, NDArray]) -> bytes:
    return b"".join(np.ascontiguousarray(value).tobytes() for _, value in sorted(feeds.items()))
