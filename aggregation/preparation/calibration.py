"""Federated calibration: what a model's activations are like on the rows of many clients, for quantisation.

    calibration = Calibration(model, schema)             # model: an ONNX file for inference
    run = simulate_full(calibration.ask(clients=20), clients)
    observations = calibration.answer(run.weights)       # of the version that the experiment ends with
    smaller = quantise_with(model, observations)

Each device runs the model on some of its rows and counts the numbers of every activation in bins; only sums of the
counts are seen. An experiment of two rounds: see `ranges`. The extremes of an activation are known to a bin, and what a
later round's rows have beyond them counts in the bins at the ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.aggregation.analytics.rule import HIGH, LOW, SETTINGS, TALLY, largest_of, method, shapes_of
from coterie.aggregation.analytics.tally import linear, parameters
from coterie.aggregation.preparation import bins
from coterie.aggregation.preparation.ranges import BINS, RangesRule, calibrate_rule
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import Module, Parameters, ParameterSpec
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.schema import DataSchema
from coterie.protocol.secure_aggregation import SecureAggregation

if TYPE_CHECKING:
    from coterie.aggregation.experiment import Experiment
    from coterie.compute.onnx import ImportedModel
    from coterie.compute.quant import Histogram

ROWS = 16
"""Of a batch, where the model takes any number of rows."""


@dataclass(frozen=True)
class Calibration:
    """The question for the ranges of a model's activations.

    model: an ONNX file for inference, as `coterie export` and a run's ``download`` write it.
    schema: of the rows; the model's inputs are its features, ``batch/<name>`` or ``<name>``, in their raw units; of one
        feature the only input.
    """

    model: bytes
    schema: DataSchema

    def ask(
        self,
        *,
        clients: int,
        rows: int = 256,
        name: str = "calibration",
        seed: int = 0,
        secure_aggregation: SecureAggregation | bool | None = None,
        **policy: Any,
    ) -> Experiment:
        """The experiment in which ``clients`` clients count on about ``rows`` rows each.

        Raises errors.ExperimentError (``model_mismatch``) for inputs that are no features, errors.GraphRefused for a
        model that cannot be read or quantised, and as `Experiment` does.
        """
        from coterie.aggregation.experiment import Experiment
        from coterie.compute.optim import sgd

        batch, rule = self._batch_size, self._rule(largest_of(clients))
        return Experiment(
            name=name,
            model=_ActivationCounts(self._activation_model, self.tensors, self._features, rule),
            schema=self._raw_schema,
            loss=linear,
            optimizer=sgd(1.0),
            algorithm=method(rule),
            batch_size=batch,
            infer_batch=batch,
            max_steps=max(1, rows // batch),
            holdout=0.0,
            seed=seed,
            secure_aggregation=secure_aggregation,
            rounds=RoundPolicy(rounds=rule.rounds, cohort=clients, evaluate_every=0, weight_cap=rule.largest, **policy),
        )

    def answer(self, version: Mapping[str, npt.NDArray[Any]]) -> dict[str, Histogram]:
        """What a finished calibration's version says, by tensor: what `coterie.compute.quant.quantise_with` takes.

        Raises errors.InputError (``query_mismatch``) for a version of anything else; errors.ExperimentError
        (``survey_unanswered``) where nothing was counted.
        """
        from coterie.compute.quant import Histogram

        rule = self._rule(1)
        if {name: value.shape for name, value in version.items()} != shapes_of(rule):
            raise errors.InputError(
                f"This version is not the result of a calibration of {rule.tensors} tensors.",
                hint="Read the newest version of the experiment that was made from this very calibration.",
                code="query_mismatch",
            )
        total = (version[HIGH].astype(np.float64) + version[LOW]).reshape(rule.tensors, BINS)
        found = bins.Range.of_settings({name: version[SETTINGS + name] for name in rule.settings})
        histograms: dict[str, Histogram] = {}
        for name, counts, edges in zip(self.tensors, total, found.edges(BINS), strict=True):
            held = np.flatnonzero(counts > 0)
            if found.logarithmic or not held.size:
                raise errors.ExperimentError(
                    f"There is no calibration of the tensor {name!r}: the calibration has not finished, or no "
                    "client answered.",
                    hint="Ask again when more clients are online, or with a longer deadline_s.",
                    code="survey_unanswered",
                )
            histograms[name] = Histogram(
                low=float(edges[held[0]]),
                high=float(edges[held[-1] + 1]),
                counts=counts,
                bounds=(float(edges[0]), float(edges[-1])),
            )
        return histograms

    @cached_property
    def tensors(self) -> tuple[str, ...]:
        """Names of the activations that are counted."""
        from coterie.compute.quant import observed

        return observed(self.model)

    @cached_property
    def _imported(self) -> ImportedModel:
        from coterie.compute.onnx import load
        from coterie.compute.quant.normal_form import in_normal_form
        from coterie.compute.quant.reading import read_model

        # The graph whose tensors have these names.
        model = load(in_normal_form(read_model(self.model)).SerializeToString())
        return model.freeze("*") if (*model.parameters, *model.buffers) else model

    @cached_property
    def _activation_model(self) -> ImportedModel:
        """The model that gives those of the activations that it computes, and not the inputs among them."""
        taken = {given.name for given in self._imported.inputs}
        computed = [name for name in self.tensors if name not in taken]
        return self._imported.cut(*computed) if computed else self._imported

    @cached_property
    def _features(self) -> dict[str, str]:
        """Input → feature."""
        names = {feature.name for feature in self.schema.features}
        inputs = [given.name for given in self._imported.inputs]
        if len(names) == len(inputs) == 1:
            return {inputs[0]: self.schema.features[0].name}
        found = {name: name.removeprefix("batch/") for name in inputs}
        unknown = [name for name, feature in found.items() if feature not in names]
        if unknown:
            raise errors.ExperimentError(
                f"The model takes {unknown[0]!r}, and the schema has {', '.join(sorted(names))}.",
                hint="Name the model's inputs as the schema's features.",
                code="model_mismatch",
            )
        return found

    @cached_property
    def _batch_size(self) -> int:
        """How many rows the model takes at once."""
        sizes = [given.sizes[0] for given in self._imported.inputs if given.sizes]
        return next((size for size in sizes if isinstance(size, int)), ROWS)

    @cached_property
    def _raw_schema(self) -> DataSchema:
        """The schema without normalisation, which the model does itself."""
        features = tuple(replace(feature, offset=0.0, scale=1.0) for feature in self.schema.features)
        return DataSchema(features, self.schema.label)

    def _rule(self, largest: int) -> RangesRule:
        return calibrate_rule(tensors=len(self.tensors), largest=largest)


@dataclass(frozen=True, eq=False)
class _StoredWeight:
    """An initialiser: a weight of the file."""

    value: npt.NDArray[np.float32]

    def __call__(self, shape: tuple[int, ...], bits: np.random.Philox) -> npt.NDArray[np.float32]:
        return self.value


@dataclass(frozen=True, eq=False)
class _ActivationCounts(Module):
    """⟨θ, counts of a row's activations⟩.

    features: input → feature.
    """

    model: ImportedModel
    tensors: tuple[str, ...]
    features: Mapping[str, str]
    rule: RangesRule

    def specs(self) -> dict[str, ParameterSpec]:
        """θ, what devices are told, and the model's weights, which stay as they are."""
        weights = {
            f"model/{name}": ParameterSpec(value.shape, _StoredWeight(value), "frozen")
            for name, value in self.model.frozen.items()
        }
        return {**parameters(self.rule), **weights}

    def __call__(self, params: Parameters, x: Any, mode: Mode = EVAL) -> Array:
        """``[B]``."""
        from coterie.aggregation.preparation.counting import in_bins

        rows = cast(Mapping[str, Array], x) if isinstance(x, Mapping) else None
        named = {name: cast(Array, x) if rows is None else rows[key] for name, key in self.features.items()}
        activations = dict(named)
        computed = [name for name in self.tensors if name not in named]
        if computed:
            given = tuple(xp.astype(named[wanted.name], wanted.dtype) for wanted in self.model.inputs)
            weights = {name: params[f"model/{name}"] for name in self.model.frozen}
            results = self.model.run(weights, given)
            activations |= zip(computed, results if len(computed) > 1 else (results,), strict=True)
        tally = xp.reshape(params[TALLY], (self.rule.tensors, BINS))
        low, width, logarithmic = (params[SETTINGS + name] for name in (bins.LOW, bins.WIDTH, bins.LOGARITHMIC))
        total: Array | None = None
        for place, name in enumerate(self.tensors):
            values = xp.astype(activations[name], xp.float32)
            one = slice(place, place + 1)
            found = in_bins(xp.reshape(values, (1, -1)), low[one], width[one], logarithmic, tally[one])
            added = xp.sum(xp.reshape(found, (values.shape[0], -1)), axis=1)
            total = added if total is None else total + added
        if total is None:
            raise errors.InternalError("A model without activations was to be calibrated.")
        return total
