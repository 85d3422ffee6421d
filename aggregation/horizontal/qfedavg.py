"""q-FedAvg: clients with larger losses count for more, so that accuracy is spread more fairly.

Li, Sanjabi, Beirami, Smith: "Fair Resource Allocation in Federated Learning" (2020), algorithm 2. With F_k the client's
loss at the round's model x, L = 1 / lr and g_k = L (x − y_k):

    delta_k = F_k^q · g_k;    h_k = q F_k^(q−1) ‖g_k‖² + L F_k^q;    x ← x − Σ delta_k / Σ h_k.

The paper samples clients in proportion to their data and adds equally; cohorts here are uniform, so both sums weigh
each client by its number of examples, which is the same in expectation. q = 0 is FedAvg. F_k comes from a pass over
the rows before training, and leaves the device only inside these sums.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from coterie.aggregation.horizontal.algorithm import (
    Algorithm,
    ClientPart,
    Finish,
    Finished,
    MethodTerms,
    Probe,
    Rules,
    Shapes,
    delta,
    squared_norm,
    whole_delta,
)
from coterie.aggregation.horizontal.needs import check_number, moving, one_version, plain_server
from coterie.aggregation.horizontal.server_part import Aggregates, Optimize, ServerPart
from coterie.aggregation.plan.manifest import DELTA
from coterie.aggregation.reducers import Vector
from coterie.aggregation.server_optimizers import OptimizerState
from coterie.protocol.layout import Layout
from coterie.protocol.sections import SectionSpec

if TYPE_CHECKING:
    from coterie.compute.array import Array

CURVATURE = "curvature"
"""The section that holds h_k."""

# A loss of 0 to a power below 1 has no slope; the authors' code adds this as well.
SMALLEST_LOSS = 1e-10


def _loss(probe: Probe) -> Array:
    return probe.loss(probe.version)


def _finish(context: Finish) -> Finished:
    from coterie.compute import numpy as xp

    q, lipschitz = context.hyper["q"], 1 / context.hyper["lr"]
    loss = context.probe["loss"] / context.probe["examples"] + SMALLEST_LOSS
    power = xp.pow(loss, q)
    moved = delta(context)
    square = squared_norm(moved, context.trained) * lipschitz * lipschitz
    curvature = q * xp.pow(loss, q - 1) * square + lipschitz * power
    scaled = {name: power * lipschitz * moved[name] for name in moved}
    return Finished(sections={DELTA: scaled, CURVATURE: curvature}, client_state={})


def _sections(shapes: Shapes, layout: Layout) -> tuple[SectionSpec, ...]:
    return (*whole_delta(shapes, layout), SectionSpec(name=CURVATURE, length=1))


def _apply(aggregates: Aggregates, state: OptimizerState, optimize: Optimize) -> tuple[Vector, OptimizerState]:
    # Losses whose q-th power is below what float32 holds leave nothing to divide by, and nothing to learn.
    curvature = float(aggregates.sections[CURVATURE][0])
    scaled = aggregates.sections[DELTA]
    return optimize(scaled / curvature if curvature else np.zeros_like(scaled)), state


def _needs(terms: MethodTerms) -> Rules:
    rule = terms.optimizer
    return (
        (
            rule is None or "lr" in rule.parameters,
            f"q-FedAvg needs a clients' optimizer with one learning rate `lr`, not {rule.name if rule else None!r}",
        ),
        *moving(terms, "q-FedAvg", "its step is measured in units of it"),
        *plain_server(terms, "q-FedAvg", "the method sets the length of the step itself"),
        *one_version(terms, "q-FedAvg"),
    )


def QFedAvg(q: float = 1.0) -> Algorithm:
    """q-fair federated averaging. q ≥ 0: how much fairness counts; 0 is FedAvg.

    Raises errors.ExperimentError for a q that is negative or not finite.
    """
    power = check_number("QFedAvg", "q", q, least=0)
    return Algorithm(
        name="qfedavg",
        parameters={"q": power},
        client=ClientPart(hyper={"q": power}, probe={"loss": _loss}, sections=_sections, finish=_finish),
        server=ServerPart(apply=_apply, reads=(DELTA, CURVATURE)),
        needs=_needs,
    )
