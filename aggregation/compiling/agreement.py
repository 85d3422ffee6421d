"""Whether the variants of a plan give the same update, held against one another on the CPU."""

from itertools import takewhile
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.aggregation.compiling.sample_rows import sample_rows
from coterie.aggregation.plan.bundle import Plan
from coterie.aggregation.plan.stage import SAMPLE_WEIGHT, Stage
from coterie.aggregation.step_case import step_case
from coterie.aggregation.walk import Supply, run
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
    case = first_step(plan, stage, weights, frozen)
    for file in (each for each in stage.files if each.kind):
        if why := disagreement(case, plan.graphs[file.name]):
            raise errors.ExperimentError(
                f"The variant {file.name!r} of plan {plan.manifest.name!r} does not give the update of {stage.name!r}: "
                f"{why}.",
                hint=f"Leave {file.kind!r} out of variants; providers of that class take the portable graph then.",
                code="variant_disagrees",
            )


def first_step(plan: Plan, stage: Stage, weights: ArraysByName, frozen: ArraysByName) -> StepCase:
    """The first step of a training on made-up rows of the schema, with the first version."""
    manifest, rng = plan.manifest, np.random.default_rng(0)
    rows = sample_rows(manifest.schema, stage.batch, rng)
    supply = Supply(model=weights, frozen=frozen, hyper=manifest.hyper)
    for before in takewhile(lambda each: each.over != "steps", manifest.stages_of("train")):
        supply = run(before, Executable(plan.graphs[before.name]), supply, rows)
    columns: dict[str, npt.NDArray[Any]] = {**rows, SAMPLE_WEIGHT: np.ones(stage.batch, np.float32)}
    drawn = {t.name: rng.random(t.shape, np.float32) for t in stage.from_source("random")}
    return step_case(plan, stage, supply, {t.name: columns[t.key] for t in stage.from_source("batch")} | drawn)
