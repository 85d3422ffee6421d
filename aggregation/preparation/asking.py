"""The experiment that asks a survey."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coterie.aggregation.analytics.noise import NoisyPrivacy
from coterie.aggregation.analytics.rule import MOST_COMPARED, SETTINGS, TALLY, method
from coterie.aggregation.analytics.tally import linear, parameters
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.preparation import rule as rules
from coterie.aggregation.preparation.bins import LOGARITHMIC, LOW, WIDTH
from coterie.aggregation.preparation.counting import in_bins, of_texts
from coterie.aggregation.preparation.draft import Draft
from coterie.aggregation.preparation.hashing import COLUMNS, LONGEST, matrix
from coterie.aggregation.preparation.rule import SurveyRule
from coterie.compute import numpy as xp
from coterie.compute.array import Array
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import Module, Parameters, ParameterSpec
from coterie.compute.optim import sgd
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.secure_aggregation import SecureAggregation

ROWS = 256
"""Of a batch, where nothing asks for fewer."""


def experiment(
    draft: Draft,
    rule: SurveyRule,
    *,
    clients: int,
    name: str,
    seed: int,
    hash_seed: int,
    secure_aggregation: SecureAggregation | bool | None,
    privacy: NoisyPrivacy | None,
    policy: dict[str, Any],
) -> Experiment:
    """See `Survey.ask`."""
    held = 1 + 40 * rule.numbers + rule.texts * (8 * COLUMNS + 4 * rule.most)
    return Experiment(
        name=name,
        model=_Surveyed(draft, rule, hash_seed),
        schema=draft.declared,
        loss=linear,
        optimizer=sgd(1.0),
        algorithm=method(rule),
        batch_size=max(1, min(ROWS, MOST_COMPARED // held)),
        holdout=0.0,
        seed=seed,
        secure_aggregation=secure_aggregation,
        privacy=privacy,
        rounds=RoundPolicy(
            rounds=rule.rounds,
            cohort=clients,
            evaluate_every=0,
            weight_cap=1 if rule.clipped else rule.largest,
            **policy,
        ),
    )


@dataclass(frozen=True, eq=False)
class _Surveyed(Module):
    """⟨θ, what a row adds⟩, θ being the parameter `TALLY`."""

    draft: Draft
    rule: SurveyRule
    hash_seed: int

    def specs(self) -> dict[str, ParameterSpec]:
        """θ, and what devices are told."""
        return parameters(self.rule)

    def __call__(self, params: Parameters, x: Any, mode: Mode = EVAL) -> Array:
        """``[B]``."""
        features = self.draft.declared.features
        rows = {features[0].name: x} if len(features) == 1 else x
        count = next(iter(rows.values())).shape[0]
        tally, rule = params[TALLY], self.rule
        middle = 1 + rule.numbers * rule.bins
        found = xp.broadcast_to(tally[0], (count,))
        if rule.numbers:
            parts = [xp.reshape(rows[part.name], (count, part.elements)) for part in self.draft.numbers]
            weights = xp.reshape(tally[1:middle], (rule.numbers, rule.bins))
            bins = [params[SETTINGS + name] for name in (LOW, WIDTH, LOGARITHMIC)]
            values = xp.matrix_transpose(parts[0] if len(parts) == 1 else xp.concat(parts, axis=1))
            found = found + xp.sum(in_bins(values, bins[0], bins[1], bins[2], weights), axis=0)
        if rule.texts:
            texts = xp.stack([xp.astype(rows[part.name], xp.float32) for part in self.draft.categories], axis=1)
            weights = xp.reshape(tally[middle:], (rule.texts, rule.most, COLUMNS))
            discovered = xp.asarray([float(part.among is None) for part in self.draft.categories], dtype=xp.float32)
            stage, slots = params[SETTINGS + rules.STAGE], params[SETTINGS + rules.SLOTS]
            texts = xp.reshape(texts, (count, rule.texts, LONGEST))
            found = found + of_texts(texts, stage, slots, weights, matrix(self.hash_seed), discovered)
        return found
