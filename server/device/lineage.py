"""The links of an experiment's chain of versions, for devices that remember an earlier one."""

from typing import Annotated

from fastapi import Path, Query

from coterie.errors import NotFound
from coterie.protocol.canonical import LARGEST_INTEGER
from coterie.protocol.lineage import MOST_LINKS, LineageLink, Links
from coterie.server.auth.gate import OpenCoordinator, SigningDevice, gated_router
from coterie.server.store import experiments

router = gated_router("device")
ExperimentName = Annotated[str, Path(max_length=64)]
After = Annotated[int, Query(ge=0, le=LARGEST_INTEGER, description="The round of the version that the device knows.")]


@router.get(
    "/v1/device/experiments/{experiment}/lineage", operation_id="readLineage", summary="Which versions came after one"
)
async def links(
    experiment: ExperimentName, coordinator: OpenCoordinator, device: SigningDevice, after: After = 0
) -> Links:
    """At most 256 of them, in order; ask again from the last one for more. None where there are no more."""
    async with coordinator.storage.database.read() as session:
        row = await experiments.find(session, experiment)
        if row is None or row.population != device.population:
            raise NotFound(f"There is no experiment {experiment!r}.", code="experiment_unknown")
        rows = await experiments.models_page(session, experiment, after, MOST_LINKS)
    return Links(links=tuple(LineageLink(round=each.round, version=each.sha256) for each in rows))
