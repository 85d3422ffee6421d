"""The plan trainer that a device's policy asks for: on which provider, and in how many processes."""

from typing import TYPE_CHECKING

from coterie.client_sdk.device.policy import DevicePolicy
from coterie.client_sdk.device.seats import CpuSeats, Seats
from coterie.client_sdk.device.store import DeviceStore
from coterie.client_sdk.device.trainers.plan import PlanTrainer
from coterie.compute.runtime.spread.asked import ALONE, read_parallel

if TYPE_CHECKING:
    from coterie.client_sdk.device.parallel import DeviceParallel


def plan_trainer(policy: DevicePolicy, store: DeviceStore) -> tuple[PlanTrainer, Seats, "DeviceParallel | None"]:
    """The trainer, and what it asks for providers and for processes; None for one process.

    store: remembers which providers are trusted, and what operators cost here.
    """
    parallel = None
    if policy.parallel != ALONE:
        from coterie.client_sdk.device.parallel import DeviceParallel
        from coterie.compute.runtime.pipeline.operator_times import OperatorTimes

        times = OperatorTimes(store.folder / "operator_times")
        parallel = DeviceParallel(read_parallel(policy.parallel, policy.threads), times)
    seats = _seats(policy, store)
    return PlanTrainer(providers=seats, parallel=parallel), seats, parallel


def _seats(policy: DevicePolicy, store: DeviceStore) -> Seats:
    if policy.provider == "cpu":
        return CpuSeats()
    # What tries providers loads the compiler, which a device on the CPU does without.
    from coterie.client_sdk.device.providers import DeviceProviders
    from coterie.client_sdk.device.watch import Watch

    return DeviceProviders(policy.provider, store.verdicts.recall(), watch=Watch(store.folder / "computing.json"))
