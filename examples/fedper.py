"""FedPer in one file: the last layers stay with each client, and only what stands before them is averaged.

Arivazhagan et al.: "Federated Learning with Personalization Layers" (2019). A client keeps how its last layers differ
from those of the model version as client state; nothing uploads them, so the version's stay as they began. Clients
measure the model of their own, and each exports its own: `coterie client export`, `Simulation.infer(client=0)`.

    experiment = replace(experiment, algorithm=FedPer(2))
"""

from collections.abc import Mapping
from dataclasses import replace

from coterie.aggregation.horizontal import FedAvg
from coterie.aggregation.horizontal.algorithm import (
    Algorithm,
    Begin,
    ClientPart,
    Deployment,
    Evaluation,
    Finish,
    Finished,
    Shapes,
)
from coterie.aggregation.plan.manifest import DELTA
from coterie.compute.array import Array
from coterie.protocol.layout import Layout
from coterie.protocol.sections import SectionSpec

Arrays = Mapping[str, Array]


def FedPer(tensors: int = 2) -> Algorithm:
    """tensors: how many of the model's trained tensors, counted from the end, are personal: 2 are the weight and the
    bias of the last layer.
    """

    def personal(shapes: Shapes) -> dict[str, tuple[int, ...]]:
        return dict([*shapes.trained.items()][-tensors:])

    def own(version: Arrays, kept: Arrays) -> Arrays:
        return {name: version[name] + kept[name] if name in kept else version[name] for name in version}

    def start(context: Begin) -> Arrays:
        return own(context.base, context.client_state)

    def evaluated(context: Evaluation) -> Arrays:
        return own(context.version, context.client_state)

    def deployed(context: Deployment) -> tuple[Arrays, ...]:
        return (own(context.version, context.client_state),)

    def sections(shapes: Shapes, layout: Layout) -> tuple[SectionSpec, ...]:
        stays = personal(shapes)
        return (SectionSpec.over(DELTA, layout, [place for name, place in layout.slices.items() if name not in stays]),)

    def finish(context: Finish) -> Finished:
        change = {name: value - context.base[name] for name, value in context.end.items()}
        kept = {name: change[name] for name in context.client_state}
        shared = {name: value for name, value in change.items() if name not in kept}
        return Finished(sections={DELTA: shared}, client_state=kept)

    client = ClientPart(
        client_state=personal, start=start, sections=sections, finish=finish, evaluated=evaluated, deployed=deployed
    )
    return replace(FedAvg(), client=client)
