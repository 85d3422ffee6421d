"""A split network: what a researcher asks of organisations that hold different columns of the same rows."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, cast

from coterie import errors
from coterie.aggregation.fitting import RESERVED_METRICS
from coterie.aggregation.losses import PerExample
from coterie.aggregation.plan.check_session import ROWS_IN_STEP, cut_fault, keeps_rows
from coterie.aggregation.plan.manifest import MOST_EPOCHS, MOST_ROWS, SAMPLE_WEIGHT
from coterie.aggregation.plan.session_manifest import MOST_ROLES, UNCHANGED
from coterie.compute.nn.module import Module
from coterie.compute.optim.optimizer import Optimizer
from coterie.protocol.canonical import LARGEST_INTEGER
from coterie.protocol.cut import CutPolicy
from coterie.protocol.schema import DataSchema, Feature, Label

MODEL: Final = "model"
"""The part of a role's network that makes its embedding."""
TOP: Final = "top"
"""The part that makes the prediction of all embeddings."""
NO_LABEL: Final = Label(name="no_label", constant=0)
"""The label of rows whose labels another role has."""


@dataclass(frozen=True, kw_only=True)
class FeatureRole:
    """A role that has features of the rows, and no label.

    role: its name in the session.
    features: its columns.
    model: (params, x, mode) → embedding ``[B, width]``; x as in `coterie.aggregation.experiment.Experiment`.
    """

    role: str
    features: tuple[Feature, ...]
    model: Module

    @property
    def schema(self) -> DataSchema:
        """How its rows are read. Raises errors.ConfigurationError for features that are none."""
        return DataSchema(self.features, NO_LABEL)


@dataclass(frozen=True, kw_only=True)
class LabelRole:
    """The role that has the labels, and it may be features of its own.

    role: its name in the session.
    schema: its columns and the label; ``DataSchema((), label)`` for a role that has the label alone.
    model: as of a `FeatureRole`, on its own features; None for a role that has none.
    top: (params, embeddings ``[B, sum of the widths]``, mode) → prediction. Its own embedding comes first, then those
        of the other roles in their order.
    """

    role: str
    schema: DataSchema
    model: Module | None = None
    top: Module

    @property
    def models(self) -> Mapping[str, Module]:
        """Its parts of the network by name: its own model, where it has features, and the top."""
        return ({} if self.model is None else {MODEL: self.model}) | {TOP: self.top}


@dataclass(frozen=True, kw_only=True, eq=False)
class SplitNetwork:
    """One network over the columns of several organisations, each of which runs, keeps and trains its own part.

    features: the roles without labels, each of which sends its embedding of every batch and gets the gradient of it.
    labels: the role with the labels.
    loss, metrics: (prediction, label) → one value for each row, ``[B]``.
    optimizer: of every part.
    batch_size, epochs, seed: see plan.session_manifest.SessionTraining.
    evaluation_batch: rows per message of an evaluation or prediction.
    cut: compression of embeddings and gradients, and noise on them and on labels; see `coterie.protocol.cut`.

    The first weights of a part are drawn by the role itself, of no seed that others know: whoever knew them could work
    out the first rows from the first embeddings. (Weights that begin at a constant are known to all.) No part draws
    random numbers while it trains (dropout) or keeps running statistics (BatchNorm).

    Raises errors.ExperimentError naming the field that is not possible.
    """

    name: str
    features: tuple[FeatureRole, ...]
    labels: LabelRole
    loss: PerExample
    optimizer: Optimizer
    metrics: Mapping[str, PerExample] = field(default_factory=dict[str, PerExample])
    batch_size: int = 64
    epochs: int = 1
    seed: int = 0
    evaluation_batch: int = 1024
    cut: CutPolicy = UNCHANGED

    def __post_init__(self) -> None:
        for holds, message in (*_kinds(self), *_numbers(self)):
            if not holds():
                raise errors.ExperimentError(f"Split network {str(self.name)[:64]!r}: {message}.", code="split_invalid")
        object.__setattr__(self, "features", tuple(self.features))
        object.__setattr__(self, "metrics", MappingProxyType(dict(self.metrics)))

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of the metric sums."""
        return (*RESERVED_METRICS, *self.metrics)


_Rule = tuple[Callable[[], bool], str]


def _kinds(split: SplitNetwork) -> tuple[_Rule, ...]:
    """What each field must be, since a type checker is not there to say it."""
    parts = cast(object, split.features)
    listed = cast(tuple[object, ...], parts) if isinstance(parts, tuple | list) else (None,)
    return (
        (
            lambda: isinstance(cast(object, split.name), str) and 0 < len(split.name) <= 128,
            "its name needs 1 to 128 characters",
        ),
        (lambda: all(isinstance(part, FeatureRole) for part in listed), "features must be a tuple of FeatureRole"),
        (lambda: isinstance(cast(object, split.labels), LabelRole), "labels must be a LabelRole"),
        (lambda: 0 < len(listed) < MOST_ROLES, f"it needs 1 to {MOST_ROLES - 1} roles with features"),
        (
            lambda: isinstance(cast(object, split.labels.schema), DataSchema),
            "the schema of labels must be a DataSchema(features, label)",
        ),
        (lambda: isinstance(cast(object, split.metrics), Mapping), "metrics must be a mapping of names to functions"),
        (lambda: callable(split.loss), "loss must be a function of (prediction, label)"),
        (
            lambda: isinstance(cast(object, split.cut), CutPolicy),
            'cut must be a CutPolicy, for example CutPolicy(compression="int8")',
        ),
        (
            lambda: isinstance(cast(object, split.optimizer), Optimizer),
            "optimizer must be an optimizer, for example optim.sgd(0.1)",
        ),
    )


def _numbers(split: SplitNetwork) -> tuple[_Rule, ...]:
    def whole(value: object, low: int, high: int) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high

    def roles() -> list[str]:
        return [split.labels.role, *(part.role for part in split.features)]

    def models() -> list[object]:
        return [*split.labels.models.values(), *(part.model for part in split.features)]

    def fault() -> str:
        schema, cut = cast(object, split.labels.schema), cast(object, split.cut)
        return cut_fault(cut, schema.label) if isinstance(schema, DataSchema) and isinstance(cut, CutPolicy) else ""

    def columns() -> list[str]:
        schemas = (split.labels.schema, *(part.schema for part in split.features))
        return [feature.name for schema in schemas for feature in schema.features] + [split.labels.schema.label.name]

    return (
        (lambda: len(set(roles())) == len(roles()), "two roles have one name"),
        (
            lambda: all(re.fullmatch("[a-z0-9][a-z0-9_-]{0,31}", str(role)) for role in roles()),
            "the name of a role has 1 to 32 lower-case letters, digits, - and _, as in a session",
        ),
        (lambda: all(isinstance(model, Module) for model in models()), "every model must be a module of compute.nn"),
        (
            lambda: (split.labels.model is not None) == split.labels.schema.has_features,
            "the role with the labels has a model if it has features, and only then",
        ),
        (lambda: keeps_rows(split.labels.schema), ROWS_IN_STEP),
        (lambda: not fault(), fault()),
        (lambda: SAMPLE_WEIGHT not in columns(), f"{SAMPLE_WEIGHT!r} is a name that coterie feeds itself"),
        (lambda: whole(split.batch_size, 1, MOST_ROWS), f"batch_size must be in 1..{MOST_ROWS}"),
        (lambda: whole(split.evaluation_batch, 1, MOST_ROWS), f"evaluation_batch must be in 1..{MOST_ROWS}"),
        (lambda: whole(split.epochs, 1, MOST_EPOCHS), f"epochs must be in 1..{MOST_EPOCHS}"),
        (lambda: whole(split.seed, 0, LARGEST_INTEGER), "seed must be a whole number of at least 0"),
        (
            lambda: all(str(name).isidentifier() and name not in RESERVED_METRICS for name in split.metrics),
            f"a metric's name must be a Python identifier, and {', '.join(RESERVED_METRICS)} are added by coterie",
        ),
    )
