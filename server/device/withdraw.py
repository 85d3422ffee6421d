"""A device that leaves for good."""

from coterie.server.auth.gate import OpenCoordinator, SigningDevice, gated_router
from coterie.server.rounds.shut_out import shut_out
from coterie.server.store import nonces
from coterie.server.store.tables import DeviceRow

router = gated_router("device")


@router.post("/v1/device/withdraw", operation_id="withdrawDevice", status_code=204, summary="Leave the population")
async def withdraw(coordinator: OpenCoordinator, device: SigningDevice) -> None:
    """For good: the device's task ends, its later requests are refused, and its key cannot enrol again. Updates
    accepted before stay counted.
    """
    async with coordinator.storage.database.write("revoke") as session:
        row = await session.get_one(DeviceRow, device.id)
        await shut_out(coordinator.rounds, session, row, "withdrawn", by=device.id)
        await nonces.spend(session, device.nonce, device.nonce_expires)
    coordinator.presence.devices.forget(device.id)
