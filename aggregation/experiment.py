"""The experiment: what a researcher asks for, as one value. ``simulate`` and ``submit`` both take it unchanged."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Any, Literal, TypeAlias, cast, get_args

import numpy.typing as npt

from coterie import errors
from coterie.aggregation import sequence_lengths
from coterie.aggregation.external_model import ExternalModel
from coterie.aggregation.fitting import RESERVED_METRICS, check_terms
from coterie.aggregation.horizontal import Algorithm, FedAvg
from coterie.aggregation.horizontal.algorithm import changes_clients
from coterie.aggregation.losses import PerExample, SummedLoss
from coterie.aggregation.plan.manifest import (
    MOST_EPOCHS,
    MOST_HOLDOUT,
    MOST_ROWS,
    MOST_STEPS,
    MOST_STEPS_PER_CALL,
    Broadcast,
    NamedRule,
    Training,
)
from coterie.aggregation.private.secure_aggregation import FROM_COHORT, settled, with_room
from coterie.aggregation.server_optimizers import ServerOptimizer, server_sgd
from coterie.aggregation.terms import Terms
from coterie.compute.data.dataset import Dataset
from coterie.compute.data.source import Source
from coterie.compute.nn.foreign import as_module
from coterie.compute.nn.module import Module
from coterie.compute.onnx.importer.model import ImportedModel
from coterie.compute.onnx.providers import ProviderClass
from coterie.compute.optim.optimizer import Optimizer
from coterie.compute.optim.scheduled import scheduled
from coterie.compute.optim.schedules import Schedule
from coterie.compute.step.precision import Precision
from coterie.compute.step.step import optimizer_for
from coterie.protocol.frames import Frame, as_columns
from coterie.protocol.privacy import ExampleLevel, Privacy
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema
from coterie.protocol.secure_aggregation import SecureAggregation

DataTable: TypeAlias = Mapping[str, npt.NDArray[Any]] | Frame
EvaluationRows: TypeAlias = DataTable | str | Path | Source | Dataset | Callable[[DataSchema], DataTable]
"""Rows, or where they are: all that a device takes as its data."""

ComputePrecision: TypeAlias = Literal["float32", "bfloat16", "float16"]
FLOAT16 = Precision(dtype="float16", scale=2.0**4)
"""The scale begins there in each round, since a device keeps no state of an optimizer: low, for rounds of few steps."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Experiment:
    """A federated experiment over a population whose rows follow ``schema``.

    model: a module ``(params, x, mode) → prediction``, or a model that `coterie.compute.onnx.load` read from a file,
        which becomes one; x is the only feature's array, or a mapping by name when there are several; float features
        come normalised, int32 features without normalisation come as they are (ids).
    loss: (prediction, label) → ``[B]``; coterie weighs and averages it. Where it compares the rows of a batch, a third
        parameter ``sample_weight`` tells which are padding (0). Several by name are summed, and each is a metric too.
    optimizer: the clients'.
    metrics: more values per example, by name. With an `ExternalModel`, loss and optimizer are None.
    reducer: what turns updates into one change of the weights, as `coterie.aggregation.reducers.reducer` reads it.
    batch_size, epochs, max_steps, holdout: see plan.manifest.Training.
    codecs: for the update, by preference.
    broadcast: ``int8`` makes every version the one before plus levels of 8 bits (what is lost is added to the next), so
        that devices which have that one fetch about a quarter of the bytes.
    uploads: names of the tensors that are trained and uploaded, or patterns (``head.*``); None for all of the model's.
        The others stay as the first version has them.
    initial: first weights by name (the model's own from ``seed`` when None).
    evaluation: rows on which the coordinator measures every version: arrays by name, a DataFrame, a file or folder, a
        source or data set of ``coterie.compute.data``, or a function of the schema, as a device's data are given. A
        file is read when the experiment is submitted or simulated.
    evaluation_metrics: what it measures there over all rows at once: ``auc``, ``f1``, ``c_index`` (see
        `coterie.aggregation.whole_metrics`).
    evaluation_batch: rows per step of an evaluation; None for the training's.
    infer_batch: rows per call of the exported ``infer.onnx``.
    secure_aggregation: whether only sums over clients are ever seen, and how; None for yes where the cohort is 10 or
        more. What it excludes is refused by name (`coterie.aggregation.combinations`).
    privacy: what differential privacy the experiment must have; None for none.
    schedules: hyper-parameters of the optimizer as functions of the number of a device's step in its round, from 0
        (`coterie.compute.optim.schedules`); needs max_steps. What changes from round to round is
        ``RoundPolicy(hyper_schedule=)``.
    precision: in which a step computes the model and its gradients: ``float32``; ``bfloat16``, which is emulated; or
        ``float16``, whose loss is scaled, and whose steps that overflow are skipped. Weights, optimizer state, losses
        and what is uploaded stay float32, and so do evaluation and inference.
    recompute: whether a step keeps the inputs of the model's parts alone, and computes the rest once more in the
        backward pass: less memory, more time, the same update.
    steps_per_call: how many steps a device takes in one call of its runtime, where its provider runs loops: the same
        update sooner, for models whose step is short (docs/algorithms.md). It holds that many batches at once.
    variants: classes of providers (``cpu``, ``gpu``, ``web``, ``npu``) for which a plan has a training step beside the
        portable one, where theirs is another file: loops stay loops, operators that they lack are written with others.
        A device takes one that it has proved and that is quicker.
    lengths: shorter lengths of sequences, ``{"tokens": (32, 64)}``: a batch whose longest row fits is cut to one, and a
        step of that length is taken; the same update, sooner. 0 fills a feature's rows, ``low`` a label's, and the
        model must leave filled positions out (docs/algorithms.md).
    Raises errors.ExperimentError naming the field that is not possible.
    """

    name: str
    model: Module | ImportedModel | ExternalModel
    schema: DataSchema
    rounds: RoundPolicy
    loss: PerExample | Mapping[str, PerExample] | None = None
    optimizer: Optimizer | None = None
    algorithm: Algorithm = field(default_factory=FedAvg)
    batch_size: int = 32
    epochs: int = 1
    max_steps: int | None = None
    holdout: float = 0.2
    metrics: Mapping[str, PerExample] = field(default_factory=dict[str, PerExample])
    server_optimizer: ServerOptimizer = field(default_factory=server_sgd)
    reducer: str = "mean"
    codecs: tuple[str, ...] = ("float32",)
    broadcast: Broadcast = "float32"
    uploads: tuple[str, ...] | None = None
    seed: int = 0
    initial: Mapping[str, npt.NDArray[Any]] | None = None
    evaluation: EvaluationRows | None = None
    evaluation_metrics: tuple[str, ...] = ()
    evaluation_batch: int | None = None
    infer_batch: int = 1
    secure_aggregation: SecureAggregation | bool | None = None
    privacy: Privacy | None = None
    schedules: Mapping[str, Schedule] = field(default_factory=dict[str, Schedule])
    precision: ComputePrecision = "float32"
    recompute: bool = False
    steps_per_call: int = 1
    variants: tuple[ProviderClass, ...] = ()
    lengths: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])

    def __post_init__(self) -> None:
        object.__setattr__(self, "evaluation", as_columns(self.evaluation, "evaluation"))
        for name, (kinds, wanted) in _KINDS.items():
            value = getattr(self, name)
            if not isinstance(value, kinds) or (isinstance(value, bool) and name in _WHOLE):
                raise errors.ExperimentError(
                    f"Experiment {str(self.name)[:64]!r}: {name} must be {wanted}, not {_describe(value)}.",
                    code="experiment_invalid",
                )
        object.__setattr__(self, "model", as_module(self.model))
        if isinstance(cast(object, self.loss), Mapping):
            self._sum_losses(cast(Mapping[str, PerExample], self.loss))
        object.__setattr__(self, "codecs", tuple(self.codecs))
        object.__setattr__(self, "evaluation_metrics", tuple(self.evaluation_metrics))
        if self.secure is not None:
            object.__setattr__(self, "rounds", with_room(self.rounds, self.secure))
        for code, rules in (("experiment_invalid", _numbers), ("experiment_combination", _combinations)):
            for holds, message in rules(self):
                if not holds:
                    raise errors.ExperimentError(f"Experiment {self.name[:64]!r}: {message}.", code=code)
        object.__setattr__(self, "schedules", MappingProxyType(dict(self.schedules)))
        check_terms(self.terms)
        object.__setattr__(self, "metrics", MappingProxyType(dict(self.metrics)))
        object.__setattr__(self, "variants", tuple(self.variants))
        object.__setattr__(self, "lengths", MappingProxyType(dict(self.lengths)))
        object.__setattr__(self, "uploads", None if self.uploads is None else tuple(self.uploads))

    def _sum_losses(self, losses: Mapping[str, PerExample]) -> None:
        """Several losses become their sum, and metrics."""
        twice = sorted(losses.keys() & self.metrics.keys())
        if not losses or twice or not all(map(callable, losses.values())):
            why = f"{', '.join(twice)} is a metric too" if twice else "losses by name are functions, one at least"
            raise errors.ExperimentError(f"Experiment {self.name[:64]!r}: {why}.", code="experiment_invalid")
        object.__setattr__(self, "loss", SummedLoss(MappingProxyType(dict(losses))))
        object.__setattr__(self, "metrics", {**losses, **self.metrics})

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of the metric sums, in the order of the update's section."""
        extra = self.model.metrics if isinstance(self.model, ExternalModel) else tuple(self.metrics)
        return (*RESERVED_METRICS, *extra)

    @property
    def local_optimizer(self) -> Optimizer | None:
        """The clients' optimizer, following its schedules and with the loss scale of float16.

        Raises errors.ExperimentError for a schedule.
        """
        if self.optimizer is None:
            return None
        halved = FLOAT16 if self.precision == "float16" else None
        try:
            rule = scheduled(self.optimizer, self.max_steps or 1, self.schedules) if self.schedules else self.optimizer
            return optimizer_for(rule, halved)
        except errors.InputError as error:
            raise errors.ExperimentError(
                f"Experiment {self.name[:64]!r}: {error.message}", hint=error.hint, code="experiment_invalid"
            ) from error

    @property
    def secure(self) -> SecureAggregation | None:
        """How secure aggregation runs here, its mode settled; None where updates travel in the open."""
        asked = self.secure_aggregation
        if isinstance(asked, SecureAggregation):
            return settled(asked, self.privacy)
        wanted = self.rounds.cohort >= FROM_COHORT if asked is None else asked
        return settled(SecureAggregation(), self.privacy) if wanted else None

    @property
    def terms(self) -> Terms:
        """What is asked for, as the rules read it; what only the compiled model says is not in it."""
        external, rule = isinstance(self.model, ExternalModel), self.local_optimizer
        # Numbers of NumPy are numbers too.
        numbers = {} if rule is None else {name: float(value) for name, value in rule.hyper.items()}
        return Terms(
            name=self.name,
            algorithm=self.algorithm,
            trainer="external" if external else "plan",
            optimizer=None if rule is None else NamedRule(rule.name, numbers),
            server_optimizer=self.server_optimizer,
            hyper={**numbers, **self.algorithm.client.hyper},
            reducer=self.reducer,
            rounds=self.rounds,
            training=Training(
                batch_size=self.batch_size,
                epochs=self.epochs,
                max_steps=self.max_steps,
                holdout=float(self.holdout),
                precision=None if self.precision == "float32" else self.precision,
            ),
            codecs=self.codecs,
            broadcast=self.broadcast,
            schema=self.schema,
            secure=self.secure,
            secure_by_default=self.secure_aggregation is None,
            privacy=self.privacy,
            metrics=self.metric_names,
            central=self.evaluation is not None,
            evaluation_metrics=self.evaluation_metrics,
            own_weights=self.initial is not None,
        )


# What each field must be, since a type checker is not there to say it. The model is judged when it is compiled.
_KINDS: Mapping[str, tuple[Any, str]] = cast(
    Any,
    {
        "name": (str, "text"),
        "schema": (DataSchema, "a DataSchema(features, label)"),
        "rounds": (RoundPolicy, "a RoundPolicy(rounds=..., cohort=...)"),
        "loss": ((Callable, Mapping, NoneType), "a function of (prediction, label), or several by name"),
        "optimizer": ((Optimizer, NoneType), "an optimizer, for example optim.sgd(0.1)"),
        "algorithm": (Algorithm, "an algorithm, for example FedAvg()"),
        "batch_size": (int, "a whole number"),
        "epochs": (int, "a whole number"),
        "max_steps": ((int, NoneType), "a whole number or None"),
        "holdout": ((float, int), "a number"),
        "metrics": (Mapping, "a mapping of names to functions of (prediction, label)"),
        "server_optimizer": (ServerOptimizer, "a server optimizer, for example server_sgd()"),
        "reducer": (str, "text such as 'mean' or 'nnm(2)+trimmed_mean(2)'"),
        "codecs": ((tuple, list), "a tuple of codec names"),
        "uploads": ((tuple, list, NoneType), "a tuple of tensor names or patterns, or None"),
        "seed": (int, "a whole number"),
        "initial": ((Mapping, NoneType), "a mapping of names to arrays"),
        "evaluation": (
            (Mapping, str, PathLike, Source, Dataset, Callable, NoneType),
            "a mapping of names to arrays, a DataFrame, a file, a folder, a function or a source of rows",
        ),
        "evaluation_metrics": ((tuple, list), "a tuple of names such as ('auc',)"),
        "evaluation_batch": ((int, NoneType), "a whole number or None"),
        "infer_batch": (int, "a whole number"),
        "secure_aggregation": (
            (SecureAggregation, bool, NoneType),
            "True, False, a SecureAggregation(...), or None for True where the cohort is 10 or more",
        ),
        "privacy": ((*get_args(Privacy), NoneType), "a UserLevel(...), ExampleLevel(...), LocalLevel(...) or None"),
        "schedules": (Mapping, "a mapping of names to functions of a step's number"),
        "precision": (str, "'float32', 'bfloat16' or 'float16'"),
        "recompute": (bool, "True or False"),
        "steps_per_call": (int, "a whole number"),
        "lengths": (Mapping, "a mapping of names to lengths, {'tokens': (32, 64)}"),
        "variants": ((tuple, list), f"a tuple of classes of providers: {', '.join(get_args(ProviderClass))}"),
    },
)
_WHOLE = ("batch_size", "epochs", "max_steps", "seed", "evaluation_batch", "infer_batch", "steps_per_call")


def _describe(value: object) -> str:
    return f"{str(value)[:64]!r} ({type(value).__name__})"


def _numbers(experiment: Experiment) -> tuple[tuple[bool, str], ...]:
    """Each field by itself."""
    e = experiment
    nameless = [name for name in e.codecs if type(name) is not str]
    return (
        (0 < len(e.name) <= 128 and e.name.isprintable(), "its name needs 1 to 128 printable characters"),
        (1 <= e.batch_size <= MOST_ROWS, f"batch_size must be in 1..{MOST_ROWS}, not {e.batch_size}"),
        (1 <= e.epochs <= MOST_EPOCHS, f"epochs must be in 1..{MOST_EPOCHS}, not {e.epochs}"),
        (
            e.max_steps is None or 1 <= e.max_steps <= MOST_STEPS,
            f"max_steps must be in 1..{MOST_STEPS} or None, not {e.max_steps}",
        ),
        (
            1 <= e.steps_per_call <= MOST_STEPS_PER_CALL,
            f"steps_per_call must be in 1..{MOST_STEPS_PER_CALL}, not {e.steps_per_call}",
        ),
        (0 <= e.holdout <= MOST_HOLDOUT, f"holdout must be in 0..{MOST_HOLDOUT}, not {e.holdout}"),
        (
            e.evaluation_batch is None or 1 <= e.evaluation_batch <= MOST_ROWS,
            f"evaluation_batch must be in 1..{MOST_ROWS} or None, not {e.evaluation_batch}",
        ),
        (1 <= e.infer_batch <= MOST_ROWS, f"infer_batch must be in 1..{MOST_ROWS}, not {e.infer_batch}"),
        (0 <= e.seed < 1 << 53, f"seed must be a whole number in 0..2**53, not {e.seed}"),
        (bool(e.codecs), "codecs must name at least one codec"),
        (not nameless, f"codecs must be names such as 'int8', not {', '.join(map(_describe, nameless))}"),
        (
            e.uploads is None or (bool(e.uploads) and all(name and type(name) is str for name in e.uploads)),
            "uploads must name at least one tensor, or be None for all",
        ),
        (
            all(callable(schedule) for schedule in e.schedules.values()),
            "a schedule must be a function of a step's number",
        ),
        (
            e.precision in get_args(ComputePrecision),
            f"precision must be one of {', '.join(get_args(ComputePrecision))}, not {e.precision[:64]!r}",
        ),
        (
            all(each in get_args(ProviderClass) for each in e.variants) and len(set(e.variants)) == len(e.variants),
            f"variants must name classes of providers, each once: {', '.join(get_args(ProviderClass))}",
        ),
        (not (why := sequence_lengths.fault(e.schema, e.lengths)), why),
        (e.broadcast in get_args(Broadcast), f"broadcast must be one of {', '.join(get_args(Broadcast))}"),
        (all(callable(metric) for metric in e.metrics.values()), "a metric must be a function of (prediction, label)"),
        (
            all(math.isfinite(value) for value in e.algorithm.parameters.values()),
            "an algorithm's parameters must be finite",
        ),
    )


def _combinations(experiment: Experiment) -> tuple[tuple[bool, str], ...]:
    """Fields that exclude or need each other and that no request has; those of both are in `check_terms`."""
    e = experiment
    external = isinstance(e.model, ExternalModel)
    why = changes_clients(e.algorithm)
    twice = sorted(e.schedules.keys() & (e.rounds.hyper_schedule or {}).keys())
    return (
        (external or e.loss is not None, "it needs a loss: (prediction, label) -> [B]"),
        (external or e.optimizer is not None, "it needs an optimizer, for example optim.sgd(0.1)"),
        (
            not external or (e.loss is None and e.optimizer is None),
            "an ExternalModel brings its own loss and optimizer",
        ),
        (not external or not e.metrics, "name an ExternalModel's metrics in ExternalModel(metrics=...)"),
        (
            not external or not why,
            f"an ExternalModel's clients run code of their own, and {e.algorithm.name} {why}, which coterie can "
            "write only into a step of its own; choose FedAvg, FedBuff, Cyclic or another that works on updates, write "
            "the model as an nn.Module, or import its ONNX file",
        ),
        (
            not external or not e.schedules,
            "an ExternalModel's clients have schedules of their own; leave schedules out",
        ),
        (not twice, f"schedules and hyper_schedule both set {', '.join(twice)}; let it change by steps or by rounds"),
        (
            not e.schedules or e.max_steps is not None,
            "schedules need max_steps, the steps of a device in a round: the plan holds a number for each",
        ),
        (not external or e.evaluation_batch is None, "an ExternalModel has no eval graph; leave evaluation_batch out"),
        (not external or e.uploads is None, "an ExternalModel uploads all of its parameters; leave uploads out"),
        (
            not external or e.steps_per_call == 1,
            "an ExternalModel's clients take steps of their own; leave steps_per_call out",
        ),
        (
            not e.recompute or (not external and not isinstance(e.privacy, ExampleLevel) and e.precision == "float32"),
            "recompute is for steps in float32 that coterie compiles, without ExampleLevel privacy, which takes the "
            "gradient of each row; leave recompute out",
        ),
        (
            not e.lengths
            or not (external or isinstance(e.privacy, ExampleLevel) or e.variants or e.steps_per_call > 1),
            "lengths are of single steps that coterie compiles: not of an ExternalModel, with ExampleLevel privacy "
            "(the longest row would show), variants or steps_per_call; leave lengths out",
        ),
        (
            not e.variants or (not external and not isinstance(e.privacy, ExampleLevel)),
            "variants are of steps that coterie compiles, without ExampleLevel privacy, whose bound on a row's "
            "gradient is proven for the portable step alone; leave variants out",
        ),
    )
