"""SCAFFOLD: FedAvg whose clients correct their drift with control variates.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning"
(2020), algorithm 1 with option II. The server keeps c beside the model x; client i keeps c_i. In a round, a client of
the cohort S steps y ← y − lr · (g(y) − c_i + c), K times from y = x, and then

    c_i⁺ = c_i − c + (x − y) / (K · lr);    it uploads y − x and c_i⁺ − c_i.

The server moves x by the mean of the first (with its optimizer, the paper's global step size) and c by |S| / N times
the mean of the second. In the paper, which counts clients alike, c is then the mean of all c_i. Means here are weighted
by numbers of examples, as FedAvg's are: c is the weighted mean of all c_i when everybody takes part or all weigh the
same (``weight_cap=1``); where the weights of cohorts vary, |S| / N stands for their share of the weight. c travels
inside the model version, under ``variate/<name>``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.aggregation.horizontal.algorithm import (
    Algorithm,
    Begin,
    ClientPart,
    Finish,
    Finished,
    Rules,
    Shapes,
    Step,
    delta,
)
from coterie.aggregation.horizontal.needs import check_number, enough_clients, moving, one_version, plain_descent
from coterie.aggregation.horizontal.server_part import Aggregates, Optimize, ServerPart
from coterie.aggregation.plan.manifest import DELTA
from coterie.aggregation.reducers import Vector
from coterie.aggregation.server_optimizers import OptimizerState
from coterie.protocol.layout import Layout
from coterie.protocol.sections import SectionSpec

if TYPE_CHECKING:
    from coterie.aggregation.horizontal.algorithm import Arrays, MethodTerms

VARIATE = "variate"


def _client_state(shapes: Shapes) -> dict[str, tuple[int, ...]]:
    return dict(shapes.trained)


def _version(shapes: Shapes) -> dict[str, tuple[int, ...]]:
    return {**shapes.tensors, **{f"{VARIATE}/{name}": shape for name, shape in shapes.trained.items()}}


def _begin(context: Begin) -> Arrays:
    """c − c_i"""
    return {name: context.base[f"{VARIATE}/{name}"] - own for name, own in context.client_state.items()}


def _corrected(gradient: Arrays, step: Step) -> Arrays:
    return {name: value + step.constants[name] for name, value in gradient.items()}


def _finish(context: Finish) -> Finished:
    moved, rate = delta(context), context.steps * context.hyper["lr"]
    # c_i⁺ = c_i − c − (y − x) / (K lr), and begin left c − c_i.
    after = {name: -(correction + moved[name] / rate) for name, correction in context.constants.items()}
    change = {f"{VARIATE}/{name}": value - context.client_state[name] for name, value in after.items()}
    return Finished(sections={DELTA: moved, VARIATE: change}, client_state=after)


def _sections(shapes: Shapes, layout: Layout) -> tuple[SectionSpec, ...]:
    model = Layout.of(shapes.tensors).size
    return SectionSpec.over(DELTA, layout, [(0, model)]), SectionSpec.over(VARIATE, layout, [(model, layout.size)])


def _needs(terms: MethodTerms) -> Rules:
    why = "its variates are mean gradients, read off from the steps"
    return (
        *enough_clients(terms, "Scaffold", terms.algorithm.parameters["clients"]),
        *plain_descent(terms, "SCAFFOLD", why),
        *moving(terms, "SCAFFOLD", why),
        *one_version(terms, "SCAFFOLD"),
    )


def Scaffold(clients: int) -> Algorithm:
    """Stochastic controlled averaging.

    clients: N, how many there are in all, of which a round's cohort is a part.

    Raises errors.ExperimentError for a number that is not whole and positive.
    """
    total = check_number("Scaffold", "clients", clients, least=1, whole=True)

    def apply(aggregates: Aggregates, state: OptimizerState, optimize: Optimize) -> tuple[Vector, OptimizerState]:
        share = min(1.0, aggregates.clients / total)
        return optimize(aggregates.sections[DELTA]) + share * aggregates.sections[VARIATE], state

    return Algorithm(
        name="scaffold",
        parameters={"clients": total},
        client=ClientPart(
            client_state=_client_state,
            version=_version,
            begin=_begin,
            gradient=_corrected,
            sections=_sections,
            finish=_finish,
        ),
        server=ServerPart(apply=apply, reads=(DELTA, VARIATE)),
        needs=_needs,
    )
