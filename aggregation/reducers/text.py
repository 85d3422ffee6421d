"""Reducers by their text: ``mean``, ``krum(2)``, ``norm_bound(5)+nnm(2)+trimmed_mean(2)``.

Parts are joined by ``+``: any number of steps, then a rule, which is the mean when there is none. Parameters are
numbers, by position or by name (``geometric_median(iterations=20)``). Executors rebuild reducers from this text, so
only text, numbers and bytes cross processes.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

from coterie import errors
from coterie.aggregation.reducers.adasum import adasum
from coterie.aggregation.reducers.bulyan import bulyan
from coterie.aggregation.reducers.caf import MOST_ATTACKERS as MOST_OF_CAF
from coterie.aggregation.reducers.caf import caf
from coterie.aggregation.reducers.centered_clipping import centered_clipping
from coterie.aggregation.reducers.coordinates import meamed, median, trimmed_mean
from coterie.aggregation.reducers.fltrust import fltrust
from coterie.aggregation.reducers.geometric_median import geometric_median
from coterie.aggregation.reducers.krum import krum, multi_krum
from coterie.aggregation.reducers.mda import MOST_ATTACKERS as MOST_OF_MDA
from coterie.aggregation.reducers.mda import mda
from coterie.aggregation.reducers.monna import monna
from coterie.aggregation.reducers.part import MixingStep, UpdateRule
from coterie.aggregation.reducers.pipeline import Pipeline
from coterie.aggregation.reducers.reducer import Reducer
from coterie.aggregation.reducers.single import single
from coterie.aggregation.reducers.smea import MOST_ATTACKERS as MOST_OF_SMEA
from coterie.aggregation.reducers.smea import smea
from coterie.aggregation.reducers.steps import arc, bucketing, nnm, norm_bound, plain_mean
from coterie.aggregation.reducers.sums import MEAN, SUM, bounded_mean
from coterie.calls import Call, Parameter, name_of, read_call

LONGEST_TEXT = 200
MOST_PARTS = 8
# A text comes from a researcher, and what it asks for runs on the coordinator.
MOST_ITERATIONS = 10_000


@dataclass(frozen=True)
class RuleFactory:
    """How a step or a rule is made from its numbers."""

    make: Callable[..., Any]
    parameters: tuple[Parameter, ...] = ()


_F = Parameter("f", 0)

STEPS: Mapping[str, RuleFactory] = MappingProxyType(
    {
        "norm_bound": RuleFactory(norm_bound, (Parameter("bound", 1e-30, whole=False),)),
        "arc": RuleFactory(arc, (_F,)),
        "nnm": RuleFactory(nnm, (_F,)),
        "bucketing": RuleFactory(bucketing, (Parameter("s", 1),)),
    }
)
RULES: Mapping[str, RuleFactory] = MappingProxyType(
    {
        "mean": RuleFactory(plain_mean),
        "median": RuleFactory(median),
        "trimmed_mean": RuleFactory(trimmed_mean, (_F,)),
        "meamed": RuleFactory(meamed, (_F,)),
        "krum": RuleFactory(krum, (_F,)),
        "multi_krum": RuleFactory(multi_krum, (_F, Parameter("m", 0, 0))),
        "bulyan": RuleFactory(bulyan, (_F,)),
        "mda": RuleFactory(mda, (Parameter("f", 0, most=MOST_OF_MDA),)),
        "monna": RuleFactory(monna, (_F,)),
        "caf": RuleFactory(caf, (Parameter("f", 0, most=MOST_OF_CAF),)),
        "smea": RuleFactory(smea, (Parameter("f", 0, most=MOST_OF_SMEA),)),
        "geometric_median": RuleFactory(
            geometric_median,
            (Parameter("nu", 1e-30, 1e-6, whole=False), Parameter("iterations", 1, 100, most=MOST_ITERATIONS)),
        ),
        "centered_clipping": RuleFactory(
            centered_clipping,
            (Parameter("tau", 1e-30, 100.0, whole=False), Parameter("iterations", 1, 1, most=MOST_ITERATIONS)),
        ),
        "fltrust": RuleFactory(fltrust),
        "adasum": RuleFactory(adasum),
    }
)


PARAMETERS: Mapping[str, tuple[Parameter, ...]] = MappingProxyType(
    {name: part.parameters for name, part in (*STEPS.items(), *RULES.items())}
)


def reducer(text: str) -> Reducer:
    """The reducer of that text.

    Raises errors.ExperimentError: ``unknown_reducer`` for a part that does not exist, ``reducer_invalid`` for text that
    does not parse, numbers out of range, or a rule before the end.
    """
    if not isinstance(cast(object, text), str):
        raise _invalid(f"it must be text, not a {type(text).__name__}")
    if text == SUM.name:
        return SUM
    if len(text) > LONGEST_TEXT or text.count("+") >= 2 * MOST_PARTS:
        raise _invalid(f"its text is longer than {LONGEST_TEXT} characters or has too many parts")
    pieces = [piece.strip() for piece in re.split(r"\+(?=\s*[a-z])", text)]
    # arc's f may be left out: it is then the largest that the other parts name.
    read = [_read(piece) for piece in pieces if piece.strip("()") != "arc"]
    named = [int(part.numbers["f"]) for part in read if "f" in part.numbers]
    if len(read) < len(pieces):
        if not named:
            raise _invalid("arc needs to know how many attackers to allow for: arc(f), or a rule with f beside it")
        read = [_read(f"arc({max(named)})" if piece.strip("()") == "arc" else piece) for piece in pieces]
    for part in read[:-1]:
        if part.name not in STEPS:
            raise _invalid(f"{part.name} is a rule, so it must come last; before it there may be {', '.join(STEPS)}")
    if read[-1].name in STEPS:
        read.append(Call("mean", {}))
    return _assemble(read)


def _assemble(read: list[Call]) -> Reducer:
    name = "+".join(part.text for part in read)
    *before, last = read
    if last.name == MEAN.name and all(part.name == "norm_bound" for part in before):
        bounds = tuple(part.numbers["bound"] for part in before)
        return bounded_mean(name, bounds) if bounds else MEAN
    steps: list[MixingStep] = [STEPS[part.name].make(*part.numbers.values()) for part in before]
    rule: UpdateRule = RULES[last.name].make(*last.numbers.values())
    return single(Pipeline(name, tuple(steps), rule))


def _read(piece: str) -> Call:
    name = name_of(piece)
    if name is not None and name not in PARAMETERS:
        raise errors.ExperimentError(
            f"There is no reducer {name[:64]!r}.",
            hint=f"Choose one of {', '.join(RULES)}; before it, joined by '+', any of {', '.join(STEPS)}.",
            code="unknown_reducer",
        )
    return read_call(piece, PARAMETERS, _invalid)


def _invalid(why: str) -> errors.ExperimentError:
    return errors.ExperimentError(
        f"The reducer cannot be read: {why}.",
        hint="Write it as krum(2) or norm_bound(5)+nnm(2)+trimmed_mean(2); docs/robustness.md lists all parts.",
        code="reducer_invalid",
    )
