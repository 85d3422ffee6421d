"""Who asks for a task, and which tasks are out of its reach whatever the rows say. Pure."""

from dataclasses import dataclass
from functools import partial

from coterie.aggregation.eligibility import has_the_data, measures
from coterie.aggregation.plan.needs import Needs
from coterie.aggregation.private.secure_aggregation import shares_noise
from coterie.aggregation.reducers import reducer
from coterie.protocol.control import ExperimentCreate
from coterie.protocol.device import LOCAL_NOISE, SECURE_AGGREGATION, Capabilities, DataReport, Idle, TaskKind
from coterie.protocol.features import OPSET, SHARED_NOISE
from coterie.protocol.privacy import LocalLevel
from coterie.server.rounds.eligibility import holdings
from coterie.server.rounds.spending import privacy_of
from coterie.server.store.devices import ClientBounds

KINDS: tuple[TaskKind, ...] = ("evaluate", "train")
"""The kinds of tasks, in the order in which a device is offered them."""


@dataclass(frozen=True, kw_only=True)
class Asker:
    """The device that checks in, and the nonce that its request used.

    clients: for how many an edge aggregator may speak.
    """

    id: str
    population: str
    nonce: str
    nonce_expires: int
    capabilities: Capabilities
    data: DataReport | None
    clients: ClientBounds | None


def within_reach(request: ExperimentCreate, needs: Needs, kind: TaskKind, asker: Asker) -> bool:
    """Whether a task of this experiment is one that the device can do, and is asked for data that it reports.

    needs: of the plan. What the device did before and what the round has left is for the rows to say.
    """
    if lacks(request, needs, asker) is not None or not needs.for_task(kind) <= set(asker.capabilities.features):
        return False
    if asker.clients is not None:
        # The accumulator of an edge aggregator would be a smaller sum than the one that was promised, and one device
        # moves a sum that is shortened as a whole by up to twice the norm that noise is made for.
        private = request.secure is not None or request.privacy is not None
        return not private and reducer(request.reducer).needs == "sums"
    return measures(request.rounds, kind) or has_the_data(request.rounds, partial(holdings, asker.data))


def lacks(request: ExperimentCreate, needs: Needs, asker: Asker) -> Idle | None:
    """What the device would need to do any training task of this experiment; None where nothing is wanting."""
    known = asker.capabilities
    # A device that does not know secure aggregation would send its update in clear.
    if request.secure is not None and SECURE_AGGREGATION not in known.secure:
        return "secrecy"
    # Nor does every device know local noise, and an edge aggregator adds none for the devices behind it.
    if isinstance(privacy_of(request), LocalLevel) and (asker.clients or LOCAL_NOISE not in known.secure):
        return "secrecy"
    if needs.trainer not in known.trainers:
        return "trainer_own" if needs.trainer == "external" else "trainer_plan"
    wanted = needs.features | ({SHARED_NOISE} if shares_noise(privacy_of(request)) else frozenset[str]())
    if not wanted <= set(known.features) or (needs.trainer == "plan" and known.opset < OPSET):
        return "features"
    return None
