"""Methods by name, learning and analytics alike: what a server needs to rebuild its part of a plan's method."""

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import Parameter, signature
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from coterie import errors
from coterie.aggregation.analytics.count import count_rule
from coterie.aggregation.analytics.heavy_hitters import heavy_hitters_rule
from coterie.aggregation.analytics.histogram import histogram_rule
from coterie.aggregation.analytics.mean import mean_rule
from coterie.aggregation.analytics.quantiles import quantiles_rule
from coterie.aggregation.analytics.rule import QuerySums, method
from coterie.aggregation.horizontal import ALGORITHMS, Algorithm
from coterie.aggregation.own_methods import MakeMethod, check_name, own_methods
from coterie.aggregation.preparation.ranges import calibrate_rule
from coterie.aggregation.preparation.rule import survey_rule

if TYPE_CHECKING:
    from coterie.aggregation.plan.manifest import Manifest


def _algorithm_maker(make: Callable[..., QuerySums]) -> Callable[..., Algorithm]:
    @wraps(make)
    def algorithm(**numbers: float) -> Algorithm:
        return method(make(**numbers))

    return algorithm


METHODS: Mapping[str, Callable[..., Algorithm]] = MappingProxyType(
    {
        **ALGORITHMS,
        "count": _algorithm_maker(count_rule),
        "mean": _algorithm_maker(mean_rule),
        "histogram": _algorithm_maker(histogram_rule),
        "quantiles": _algorithm_maker(quantiles_rule),
        "heavy_hitters": _algorithm_maker(heavy_hitters_rule),
        "survey": _algorithm_maker(survey_rule),
        "calibrate": _algorithm_maker(calibrate_rule),
    }
)


def register(name: str, make: MakeMethod) -> MakeMethod:
    """Let simulations in this process find a method of one's own by its name.

    make: a function of numbers, each with a name, whose `Algorithm` has this name and those numbers as parameters. A
        coordinator needs the method as an installed package's entry point (`coterie.aggregation.own_methods`), since it
        aggregates in other processes.
    Raises errors.ExperimentError (``algorithm_parameter``) for a name of coterie's own, or what is no function.
    """
    check_name(name, name in METHODS)
    if not callable(cast(object, make)):
        raise errors.ExperimentError(
            f"register({name!r}, …) takes the function that makes the method, not {make!r}.",
            hint="Write register('fedlc', FedLC), without calling it.",
            code="algorithm_parameter",
        )
    own_methods().add(name, make)
    return make


def known_methods() -> tuple[str, ...]:
    """The names of all methods: coterie's, registered ones and those of installed packages."""
    return (*METHODS, *(name for name in own_methods().names() if name not in METHODS))


def algorithm(name: str, parameters: Mapping[str, float]) -> Algorithm:
    """Rebuild a method from its name and numbers. Raises errors.ExperimentError: ``unknown_algorithm``, or
    ``algorithm_parameter`` and ``query_invalid`` for a number out of range.
    """
    make = METHODS.get(name) or own_methods().find(name)
    # What a method takes beside numbers (a function of the model, say) matters to devices alone and has a default.
    known = signature(make).parameters if make else dict[str, Parameter]()
    complete = set(parameters) <= set(known) and all(
        name in parameters for name, parameter in known.items() if parameter.default is parameter.empty
    )
    rule = make(**parameters) if make and complete else None
    if rule is None or rule.name != name or set(rule.parameters) != set(parameters):
        raise errors.ExperimentError(
            f"There is no algorithm {name[:64]!r} with the parameters {', '.join(sorted(parameters)) or 'none'}.",
            hint=f"This coordinator knows {', '.join(known_methods())}. A method of your own: register(name, make) in "
            "a simulation; for a coordinator, a package with an entry point of the group coterie.methods.",
            code="unknown_algorithm",
        )
    return rule


def check_method(manifest: "Manifest") -> None:
    """Raise errors.ExperimentError unless a server can carry out the plan's method: what `algorithm` raises, or
    ``algorithm_sections`` for a section that it reads and the plan does not have.
    """
    named = manifest.algorithm
    reads = algorithm(named.name, named.parameters).server.reads
    absent = sorted(set(reads) - {spec.name for spec in manifest.sections})
    if absent:
        raise errors.ExperimentError(
            f"The plan says that its method is {named.name}, which reads the section {absent[0]!r}, and updates of "
            "this plan have none.",
            hint="Compile the plan from an experiment with that method.",
            code="algorithm_sections",
        )
