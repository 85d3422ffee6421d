"""Whether the parts of an experiment go together: one list of rules over `Terms`, the same for Python and for REST."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from coterie import errors
from coterie.aggregation.accumulator import tree_reducer
from coterie.aggregation.combinations.privacy import privacy_clashes
from coterie.aggregation.combinations.secure import secure_clashes
from coterie.aggregation.horizontal.algorithm import Rules
from coterie.aggregation.plan.manifest import SAMPLE_WEIGHT
from coterie.aggregation.reducers.fit import check_reducer
from coterie.aggregation.selection import selector_of
from coterie.aggregation.terms import Terms
from coterie.aggregation.whole_metrics import WHOLE_METRICS
from coterie.calls import name_of
from coterie.privacy.dp.participation import check_policy
from coterie.protocol.codecs.table import unfit
from coterie.protocol.metrics import EXAMPLES
from coterie.protocol.privacy import ExampleLevel, LocalLevel, UserLevel
from coterie.protocol.schema import NEEDS_FEATURES

RESERVED_METRICS = (EXAMPLES, "loss")
"""Metrics that every experiment has."""
_LARGEST = float(np.finfo(np.float32).max)


def check_terms(terms: Terms) -> None:
    """Raise unless everything that is asked for can be had together.

    Raises errors.ExperimentError: by the code of the rule that is broken (`RULES`), ``selection_invalid``, what
    `check_reducer` raises, and ``privacy_invalid`` for rounds that the noise was not made for.
    """
    selector_of(terms.rounds.selection)
    _require_rules(terms, RULES)
    groups = None if terms.secure is None else terms.secure.groups
    check_reducer(
        terms.reducer,
        groups or terms.rounds.min_updates,
        terms.algorithm.name,
        trusted=terms.rounds.trusted,
        secret=terms.secure is not None,
        most_updates=groups or terms.rounds.cohort,
    )
    check_policy(terms.privacy, rounds=terms.rounds.rounds, rest_rounds=terms.rounds.rest_rounds)
    _require_rules(terms, OF_MODELS)


def check_tree(terms: Terms) -> None:
    """Raise unless what is asked for can be had where edge aggregators send sums of their devices' updates.

    Raises errors.ExperimentError: ``reducer_in_tree`` for a reducer that needs single updates;
    ``experiment_combination`` for secure aggregation, whose masks cancel among all, and for differential privacy, whose
    noise is made for one sum.
    """
    tree_reducer(terms.reducer)
    for what, asked in (("secure aggregation", terms.secure), ("differential privacy", terms.privacy)):
        if asked is not None:
            raise errors.ExperimentError(
                f"Experiment {terms.name[:64]!r}: {what} is incompatible with edge aggregators, which see their "
                "devices' updates and send sums of them.",
                hint="Let the devices join the coordinator itself, in a population of its own.",
                code="experiment_combination",
            )


def _require_rules(terms: Terms, table: "Sequence[tuple[str, Callable[[Terms], Rules]]]") -> None:
    for code, rules in table:
        for holds, message in rules(terms):
            if not holds:
                raise errors.ExperimentError(f"Experiment {terms.name[:64]!r}: {message}.", code=code)


def _names(terms: Terms) -> Rules:
    metrics, named_twice = terms.metrics, len(set(terms.metrics)) < len(terms.metrics)
    codecs_twice = sorted({name for name in terms.codecs if terms.codecs.count(name) > 1})
    return (
        (not codecs_twice, f"codecs lists {', '.join(codecs_twice)} twice; name each codec once"),
        (not named_twice, f"a metric is named twice; metrics {', '.join(RESERVED_METRICS)} are added by coterie"),
        (
            all(str(name).isidentifier() and len(name) <= 64 for name in metrics),
            "a metric's name must be a Python identifier of at most 64 characters",
        ),
    )


def _codecs(terms: Terms) -> Rules:
    wrong = unfit(terms.codecs)
    return ((not wrong, f"these codecs do not exist or do not fit weights: {'; '.join(wrong)}"),)


def _labels(terms: Terms) -> Rules:
    wrong = terms.schema.label.lacks(terms.rounds.labels)
    return (
        (
            not wrong,
            f"labels={terms.rounds.labels!r} asks for clients with the label {wrong[0] if wrong else None}, and the "
            "schema has no such label, so no device could take part",
        ),
    )


def _hyper(terms: Terms) -> Rules:
    scheduled = terms.rounds.hyper_schedule or {}
    unknown = sorted((set(scheduled) | set(terms.overrides)) - set(terms.hyper))
    return (
        (not unknown, f"there is no hyper-parameter {', '.join(unknown)}; its rules have {', '.join(terms.hyper)}"),
    )


def _numbers(terms: Terms) -> Rules:
    set_by: Sequence[tuple[str, Mapping[str, Sequence[float]]]] = (
        ("hyper", {name: (value,) for name, value in terms.overrides.items()}),
        ("hyper_schedule", terms.rounds.hyper_schedule or {}),
    )
    return tuple(rule for field, values in set_by for rule in _numbers_of(field, values, terms.hyper))


def _numbers_of(field: str, values: Mapping[str, Sequence[float]], defaults: Mapping[str, float]) -> Rules:
    # What an optimizer refuses when it is made, a request must not bring in later.
    negative = sorted(name for name, each in values.items() if name in defaults and min(each) < 0 <= defaults[name])
    large = sorted(name for name, each in values.items() if max(map(abs, each)) > _LARGEST)
    return (
        (not large, f"{field} sets {', '.join(large)} to a number that does not fit float32"),
        (not negative, f"{field} makes {', '.join(negative)} negative, which the experiment has not"),
    )


def _metrics(terms: Terms) -> Rules:
    known = {*terms.metrics, *terms.evaluation_metrics}
    target = terms.rounds.target
    return (
        (
            set(terms.evaluation_metrics) <= set(WHOLE_METRICS),
            f"evaluation_metrics must be some of {', '.join(WHOLE_METRICS)}, not {terms.evaluation_metrics!r}; put "
            "means over examples into metrics",
        ),
        (
            len(known) == len(terms.metrics) + len(terms.evaluation_metrics),
            "a name is listed twice in metrics and evaluation_metrics",
        ),
        (
            target is None or target.metric in known,
            f"the target's metric is none of {', '.join(sorted(known))}",
        ),
        (
            terms.rounds.best.metric in known - {EXAMPLES},
            f"the best metric is none of {', '.join(sorted(known - {EXAMPLES}))}",
        ),
    )


def _evaluation(terms: Terms) -> Rules:
    external = terms.trainer == "external"
    return (
        (
            not external or not terms.central,
            "its clients train with their own code, so there is no eval graph; leave evaluation out, the clients "
            "measure",
        ),
        (
            not terms.evaluation_metrics or terms.central,
            "evaluation_metrics are computed on the coordinator's own rows; give evaluation=rows",
        ),
    )


def _combinations(terms: Terms) -> Rules:
    rounds, external = terms.rounds, terms.trainer == "external"
    measured = terms.central or rounds.evaluate_every > 0
    columns = [*(feature.name for feature in terms.schema.features), terms.schema.label.name]
    shared = sorted(set(terms.optimizer.parameters if terms.optimizer else ()) & set(terms.algorithm.client.hyper))
    return (
        (terms.schema.has_features, f"in the data schema: {NEEDS_FEATURES}"),
        (SAMPLE_WEIGHT not in columns, f"{SAMPLE_WEIGHT!r} is a name that coterie feeds itself; rename that column"),
        (
            not external or terms.training.precision is None,
            "an ExternalModel's clients compute as their own code does; leave precision out",
        ),
        (not shared, f"optimizer and algorithm both have a hyper-parameter {', '.join(shared)}"),
        (
            not external or not isinstance(terms.privacy, ExampleLevel),
            "ExampleLevel privacy is clipping and noise in the plan's own step, which an ExternalModel does not have; "
            "write the model as an nn.Module, or choose LocalLevel(...)",
        ),
        *terms.algorithm.needs(terms),
        (
            not (rounds.rest_rounds or rounds.rest_s) or name_of(rounds.selection) != "cyclic",
            'selection="cyclic" counts through those who may be asked; where they rest between contributions some '
            'would never have a turn; leave rest_rounds and rest_s out, or choose selection="least_recent"',
        ),
        (
            rounds.evaluate_every == 0 or terms.training.holdout > 0,
            "clients cannot evaluate with holdout=0; set evaluate_every=0",
        ),
        (
            rounds.patience is None or measured,
            "patience needs an evaluation; give evaluation rows or set evaluate_every",
        ),
        (
            rounds.target is None or measured,
            "a target needs an evaluation; give evaluation rows or set evaluate_every",
        ),
        *secure_clashes(terms),
        *privacy_clashes(terms),
    )


def _models(terms: Terms) -> Rules:
    return (
        (
            not terms.evaluation_metrics or not terms.several,
            f"evaluation_metrics need one prediction for each row, and {terms.algorithm.name} keeps several models",
        ),
        (
            not terms.central or not terms.personal,
            f"with {terms.algorithm.name} each client has its own model, part of which stays on the client, so the "
            "coordinator has no model to measure; leave evaluation out and set "
            "evaluate_every, so that clients measure their own",
        ),
    )


def _statistics(terms: Terms) -> Rules:
    if not terms.statistics:
        return ()
    some = f"running statistics such as {terms.statistics[0]!r} (BatchNorm)"
    instead = "use nn.GroupNorm or nn.LayerNorm, and for quantisation-aware training QuantSettings(activations=None)"
    level, precision = type(terms.privacy).__name__, terms.training.precision
    return (
        (
            terms.algorithm.client.statistics,
            f"{some} cannot be trained by {terms.algorithm.name}; use a normalisation without them, for example "
            "nn.GroupNorm or nn.LayerNorm",
        ),
        (
            not isinstance(terms.privacy, UserLevel | LocalLevel),
            f"{some} are incompatible with {level} privacy: the clip is made for changes of weights, and a noised "
            f"variance may fall below 0; {instead}",
        ),
        (
            not isinstance(terms.privacy, ExampleLevel),
            f"{some} mix the rows of a batch, so no row has a gradient of its own to clip, and ExampleLevel privacy "
            f"cannot cover them; {instead}",
        ),
        (
            precision is None,
            f"{some} would be rounded to {precision} in every step; use nn.GroupNorm or nn.LayerNorm, or leave "
            "precision out",
        ),
    )


def _broadcast(terms: Terms) -> Rules:
    some = terms.statistics[0] if terms.statistics else None
    return (
        (
            some is None or terms.broadcast == "float32",
            f"it broadcasts versions as levels of 8 bits, which could round running statistics such as {some!r} below "
            "0; leave broadcast at 'float32', or use a normalisation without them, for example nn.GroupNorm",
        ),
    )


RULES: Sequence[tuple[str, Callable[[Terms], Rules]]] = (
    ("experiment_invalid", _names),
    ("unknown_codec", _codecs),
    ("labels_unknown", _labels),
    ("unknown_hyper", _hyper),
    ("hyper_invalid", _numbers),
    ("unknown_metric", _metrics),
    ("evaluation_unsupported", _evaluation),
    ("experiment_combination", _combinations),
)
"""The code of a refusal, and its rules: (whether it holds, what is said where it does not)."""
OF_MODELS: Sequence[tuple[str, Callable[[Terms], Rules]]] = (
    ("experiment_combination", _models),
    ("experiment_combination", _statistics),
    ("broadcast_statistics", _broadcast),
)
"""As `RULES`, of what only a compiled model says: they come last, so that the first refusal is the same before."""
