"""Whether the variants and lengths of a plan give the same update, held against one another on the CPU."""

from dataclasses import replace
from itertools import takewhile
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.aggregation.compiling.sample_rows import sample_rows
from coterie.aggregation.plan.bundle import Plan
from coterie.aggregation.plan.stage import SAMPLE_WEIGHT, Stage
from coterie.aggregation.sequence_lengths import padding
from coterie.aggregation.walk import Supply, filled, run
from coterie.compute.runtime.choice import StepCase, disagreement
from coterie.compute.runtime.executable import Executable
from coterie.protocol.arrays import ArraysByName


def check_variants(plan: Plan, weights: ArraysByName, frozen: ArraysByName) -> None:
    """Make the first steps of a training on the CPU, by the portable file and by each variant, on made-up rows of the
    schema.

    weights, frozen: the first version, and the frozen tensors. Raises errors.ExperimentError (``variant_disagrees``)
    for a variant whose state after them is further from the portable one's than 1e-3 of 1 + its size, or than what
    rounding changes in it.
    """
    stage = plan.manifest.stepped
    if stage is None or not stage.variants:
        return
    case = _first_step(plan, stage, weights, frozen)
    for file in (each for each in stage.files if each.kind):
        if why := disagreement(case, plan.graphs[file.name]):
            raise errors.ExperimentError(
                f"The variant {file.name!r} of plan {plan.manifest.name!r} does not give the update of {stage.name!r}: "
                f"{why}.",
                hint=f"Leave {file.kind!r} out of variants; providers of that class take the portable graph then.",
                code="variant_disagrees",
            )


def check_lengths(plan: Plan, weights: ArraysByName, frozen: ArraysByName) -> None:
    """Make the first steps of a training on the CPU at each length and at the full one, on made-up rows that fit.

    Raises errors.ExperimentError (``length_matters``) where the state after them differs, by the tolerance of variants.
    """
    stage = plan.manifest.stepped
    if stage is None or not stage.lengths:
        return
    case, schema = _first_step(plan, stage, weights, frozen), plan.manifest.schema
    rows = {t.key: t.name for t in stage.from_source("batch")}
    # What is drawn has another shape at each length; where every draw is the same number, that changes nothing.
    drawn = {t.name: np.full(t.shape, 0.5, np.float32) for t in stage.from_source("random")}
    for file in (each for each in stage.files if each.length):
        feeds = {**case.feeds, **drawn}
        for key, length in file.length.lengths.items() if file.length else ():
            feeds[rows[key]] = feeds[rows[key]].copy()
            feeds[rows[key]][:, length:] = padding(schema, key)
        if why := disagreement(replace(case, feeds=feeds), plan.graphs[file.name], cut=True):
            raise errors.ExperimentError(
                f"The model of experiment {plan.manifest.name!r} learns from positions that only fill a row: at the "
                f"lengths {dict(file.length.lengths) if file.length else {}} {why}.",
                hint="Leave filled positions out: a mask (x != 0) in attention and in means over positions, and "
                "ignore= in a loss over positions. Or leave lengths out.",
                code="length_matters",
            )


def _first_step(plan: Plan, stage: Stage, weights: ArraysByName, frozen: ArraysByName) -> StepCase:
    manifest, rng = plan.manifest, np.random.default_rng(0)
    rows = sample_rows(manifest.schema, stage.batch, rng)
    supply = Supply(model=weights, frozen=frozen, hyper=manifest.hyper)
    for before in takewhile(lambda each: each.over != "steps", manifest.stages_of("train")):
        supply = run(before, Executable(plan.graphs[before.name]), supply, rows)
    values, carried = filled(stage, supply), frozenset(stage.carry.values())
    columns: dict[str, npt.NDArray[Any]] = {**rows, SAMPLE_WEIGHT: np.ones(stage.batch, np.float32)}
    drawn = {t.name: rng.random(t.shape, np.float32) for t in stage.from_source("random")}
    return StepCase(
        data=plan.graphs[stage.name],
        carry=stage.carry,
        constants={name: value for name, value in values.items() if name not in carried},
        state={name: value for name, value in values.items() if name in carried},
        feeds={t.name: columns[t.key] for t in stage.from_source("batch")} | drawn,
    )
