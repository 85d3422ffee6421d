"""The first step of a training by a plan, with all that it is run with."""

from coterie.aggregation.plan.bundle import Plan
from coterie.aggregation.plan.stage import Stage
from coterie.aggregation.walk import Supply, filled
from coterie.compute.runtime.choice import StepCase
from coterie.protocol.arrays import ArraysByName


def step_case(plan: Plan, stage: Stage, supply: Supply, feeds: ArraysByName) -> StepCase:
    """The step as a device takes it, with the plan's variants of it that are there.

    stage: the one that is stepped.
    supply: what the stages before it left.
    feeds: its inputs that change with each batch, by their names.
    Raises InputError as `filled` does.
    """
    graphs = plan.graphs
    values, carried = filled(stage, supply), frozenset(stage.carry.values())
    return StepCase(
        data=graphs[stage.name],
        carry=stage.carry,
        constants={name: value for name, value in values.items() if name not in carried},
        state={name: value for name, value in values.items() if name in carried},
        feeds=feeds,
        frozen=frozenset(t.name for t in stage.from_source("frozen")),
        batch=frozenset(t.name for t in stage.from_source("batch")),
        variants={file.kind: graphs[file.name] for file in stage.files if file.kind and file.name in graphs},
    )
