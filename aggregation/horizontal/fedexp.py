"""FedExP: FedAvg whose server step grows where the clients' changes disagree.

Jhunjhunwala, Wang, Joshi: "FedExP: Speeding Up Federated Averaging via Extrapolation" (2023), algorithm 1. With the
mean change Δ of a round's clients, the server's step size is

    max(1, Σ p_i ‖Δ_i‖² / (2 (‖Δ‖² + epsilon))).

The paper's p_i are 1 / M; here they are the weights of the mean. It evaluates the mean of the last two versions:
`coterie.aggregation.averaging`.
"""

from __future__ import annotations

from coterie.aggregation.horizontal.algorithm import (
    Algorithm,
    ClientPart,
    Finish,
    Finished,
    MethodTerms,
    Rules,
    Shapes,
    delta,
    squared_norm,
    whole_delta,
)
from coterie.aggregation.horizontal.needs import check_number, one_version, plain_server
from coterie.aggregation.horizontal.server_part import Aggregates, Optimize, ServerPart
from coterie.aggregation.plan.manifest import DELTA
from coterie.aggregation.reducers import Vector
from coterie.aggregation.server_optimizers import OptimizerState
from coterie.protocol.layout import Layout
from coterie.protocol.sections import SectionSpec

SQUARE = "square"
"""The section that holds ‖Δ_i‖²."""


def _finish(context: Finish) -> Finished:
    moved = delta(context)
    return Finished(sections={DELTA: moved, SQUARE: squared_norm(moved, context.trained)}, client_state={})


def _sections(shapes: Shapes, layout: Layout) -> tuple[SectionSpec, ...]:
    return (*whole_delta(shapes, layout), SectionSpec(name=SQUARE, length=1))


def _needs(terms: MethodTerms) -> Rules:
    why = "the method sets the length of the step itself"
    return (*plain_server(terms, "FedExP", why), *one_version(terms, "FedExP"))


def FedExP(epsilon: float = 1e-3) -> Algorithm:
    """Extrapolated averaging. epsilon ≥ 0: what keeps the step finite where the changes cancel.

    Raises errors.ExperimentError for an epsilon that is negative or not finite.
    """
    smallest = check_number("FedExP", "epsilon", epsilon, least=0)

    def apply(aggregates: Aggregates, state: OptimizerState, optimize: Optimize) -> tuple[Vector, OptimizerState]:
        mean, square = aggregates.sections[DELTA], float(aggregates.sections[SQUARE][0])
        below = 2 * (float(mean @ mean) + smallest)
        return optimize(mean * max(1.0, square / below if below else 1.0)), state

    return Algorithm(
        name="fedexp",
        parameters={"epsilon": smallest},
        client=ClientPart(sections=_sections, finish=_finish),
        server=ServerPart(apply=apply, reads=(DELTA, SQUARE)),
        needs=_needs,
    )
