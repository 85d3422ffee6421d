"""Asking: a query of a column as an ordinary experiment."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from coterie import errors
from coterie.aggregation.analytics.bound import LEAST, QueryNoise
from coterie.aggregation.analytics.checks import whole
from coterie.aggregation.analytics.noise import NoisyPrivacy, check_ring, checked, deviation, with_room
from coterie.aggregation.analytics.query import Query
from coterie.aggregation.analytics.rule import (
    LARGEST_EXACT,
    SETTINGS,
    TALLY,
    QueryRule,
    largest_of,
    method,
    most_rows,
    shapes_of,
)
from coterie.aggregation.analytics.tally import linear, parameters
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.plan.manifest import MOST_ROWS
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import Module, Parameters, ParameterSpec
from coterie.compute.optim import sgd
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema, Feature
from coterie.protocol.secure_aggregation import SecureAggregation


def ask(
    query: Query[Any],
    schema: DataSchema,
    *,
    clients: int,
    name: str | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    secure_aggregation: SecureAggregation | bool | None = None,
    privacy: NoisyPrivacy | None = None,
    **policy: Any,
) -> Experiment:
    """The experiment that asks ``clients`` clients in each of the query's rounds; `simulate` and `submit` take it.

    batch_size: rows that a device adds up at a time; when None 256, or as many as keep whole sums exact.
    secure_aggregation: as in `Experiment`; unless it is False, each client's sums may reach 2**24 for up to 255
        clients, and less for more (2**23 from 256 on), so that all fit its ring.
    privacy: hides every client as a whole, in the population's ledger; its ``clip`` is in rows: see
        `coterie.aggregation.analytics.bound`. Where the coordinator noises secret sums, the experiment's is wider by
        what rounding them needs.
    policy: further fields of the `RoundPolicy`, such as ``min_updates`` and ``deadline_s``.
    Raises errors.ExperimentError (``query_invalid``) for a column that the schema does not have or the query cannot be
    asked of, for a batch that is too large, for privacy that sums cannot have, and for so many noised sums that a
    secure ring has no room for them; ``query_hopeless`` where noise is larger than anything that so many clients can
    say.
    """
    _require_kinds(query, schema)
    if batch_size is not None:
        batch_size = whole(query.rule.name, "batch_size", batch_size, least=1, most=MOST_ROWS)
    columns = {feature.name: feature for feature in schema.features}
    if query.column not in (*columns, schema.label.name):
        raise errors.ExperimentError(
            f"The query asks about {query.column!r}; the schema has {', '.join((*columns, schema.label.name))}.",
            hint="Name a feature, or the label.",
            code="query_invalid",
        )
    feature = columns.get(query.column)
    elements = (feature or schema.label).size

    def experiment_of(rule: QueryRule, privacy: NoisyPrivacy | None) -> Experiment:
        most = most_rows(rule, elements)
        _check(query, feature, elements, batch_size or 1, most)
        model = _QueryModel(rule, feature, len(columns) == 1)
        cap = 1 if rule.clipped else rule.largest
        return Experiment(
            name=name or f"{rule.name} of {query.column}",
            model=model,
            schema=schema,
            loss=model.of_label if model.feature is None else linear,
            optimizer=sgd(1.0),
            algorithm=method(rule),
            batch_size=min(most, ROWS) if batch_size is None else batch_size,
            holdout=0.0,
            seed=seed,
            secure_aggregation=secure_aggregation,
            privacy=privacy,
            rounds=RoundPolicy(rounds=rule.rounds, cohort=clients, evaluate_every=0, weight_cap=cap, **policy),
        )

    if privacy is None:
        # Sums that nobody sees alone share a ring; many clients have less room in it each.
        reach = LARGEST_EXACT if secure_aggregation is False else largest_of(clients)
        return experiment_of(replace(query.rule, largest=reach), None)
    what = f"The query {query.rule.name}"
    terms = QueryNoise(clip=checked(what, privacy).clip, noise=1.0, elements=elements)
    # How much noise there is, depends on how the experiment's rounds run, and it knows that itself.
    provisional = query.noised(terms)
    shapes = shapes_of(provisional)
    wider = with_room(experiment_of(provisional, privacy), shapes)
    check_ring(what, experiment_of(provisional, wider), shapes, provisional.size)
    terms = replace(terms, noise=deviation(experiment_of(provisional, wider), shapes))
    terms.require_hope(query.rule.name, clients)
    return experiment_of(query.noised(terms), wider)


@dataclass(frozen=True)
class Foreseen:
    """What noise will make of an answer, known before it is paid for.

    error: the standard error of every count of rows.
    needed: of fewer rows in all than this no mean is said.
    counted: so many rows count at most.
    """

    error: float
    needed: float
    counted: float

    @property
    def sentence(self) -> str:
        """For whoever is about to pay."""
        return (
            f"Before it is paid for: every count will be off by about {self.error:.3g} rows (standard error), of "
            f"{self.counted:,.0f} that can count at most; fewer than {self.needed:,.0f} rows in all give no mean."
        )


def foreseen(experiment: Experiment) -> Foreseen:
    """What the noise of an experiment that `ask` made will do to its answer.

    Raises errors.InternalError for one without noise.
    """
    bound = experiment.model.rule.bound if isinstance(experiment.model, _QueryModel) else None
    if bound is None:
        raise errors.InternalError("Only a question with privacy has an error to foresee.")
    error = float(bound.deviations()[0])
    return Foreseen(error, LEAST * error, bound.terms.clip * experiment.rounds.cohort)


def _require_kinds(query: object, schema: object) -> None:
    """Callers are not all typed. Raises errors.ExperimentError (``query_invalid``)."""
    for given, kind, wanted, hint in (
        (query, Query, "a query such as count('age')", "The queries are in coterie.aggregation.analytics."),
        (
            schema,
            DataSchema,
            "the schema such as DataSchema(features=..., label=...)",
            "Give the one that the population's devices joined with.",
        ),
    ):
        if not isinstance(given, kind):
            raise errors.ExperimentError(
                f"ask(query, schema, clients=...) takes {wanted}, not a {type(given).__name__}.",
                hint=hint,
                code="query_invalid",
            )


def _check(query: Query[Any], feature: Feature | None, elements: int, rows: int, most: int) -> None:
    rules = (
        (
            query.rule.elements in (None, elements),
            f"{query.rule.name} was made for {query.rule.elements} elements and {query.column!r} has {elements}; "
            f"give elements={elements}",
        ),
        (
            feature is None or bool((feature.normalisation()[1] != 0).all()),
            f"the schema multiplies {query.column!r} by 0, so devices cannot say what it was",
        ),
        (rows <= most, f"a batch of {rows} rows is too large; {most} of {query.column!r} at most keep sums exact"),
    )
    for holds, message in rules:
        if not holds:
            raise errors.ExperimentError(f"The query {query.rule.name}: {message}.", code="query_invalid")


ROWS = 256
"""Of a batch, where nothing asks for fewer."""


@dataclass(frozen=True, eq=False)
class _QueryModel(Module):
    """⟨θ, φ(row)⟩ for a feature.

    For the label, which a model does not see, its parameters as they are: the loss puts them together with the label.
    alone: whether the schema has no other feature.
    """

    rule: QueryRule
    feature: Feature | None
    alone: bool

    def specs(self) -> dict[str, ParameterSpec]:
        """θ, and what devices are told."""
        return parameters(self.rule)

    def __call__(self, params: Parameters, x: Any, mode: Mode = EVAL) -> Array:
        """``[B]`` for a feature; ``[B, sizes of all parameters]`` for the label."""
        if self.feature is not None:
            values = _raw_values(x if self.alone else x[self.feature.name], self.feature)
            settings = {name: params[SETTINGS + name] for name in self.rule.settings}
            return xp.sum(self.rule.contribute(values, settings) * params[TALLY], axis=1)
        rows = x.shape[0] if self.alone else next(iter(x.values())).shape[0]
        packed = xp.concat([xp.reshape(params[name], (-1,)) for name in self.specs()])
        return xp.broadcast_to(packed, (rows, packed.size))

    def of_label(self, prediction: Array, label: Array) -> Array:
        """−⟨θ, φ(label)⟩, ``[B]``."""
        settings: dict[str, Array] = {}
        at = self.rule.size
        for name, value in self.rule.settings.items():
            settings[name] = xp.reshape(prediction[0, at : at + value.size], value.shape)
            at += value.size
        values = xp.reshape(xp.astype(label, xp.float32), (label.shape[0], -1))
        return -xp.sum(self.rule.contribute(values, settings) * prediction[:, : self.rule.size], axis=1)


def _raw_values(x: Array, feature: Feature) -> Array:
    """The values as devices hold them, ``[B, elements]`` in float32: the normalisation of the schema undone."""
    values = x if x.dtype.name == "float32" else xp.astype(x, xp.float32)
    if feature.is_normalised:
        offset, scale = feature.normalisation()
        values = values / scale + offset
        values = values if feature.dtype == "float32" else xp.round(values)
    return xp.reshape(values, (x.shape[0], feature.size))
