"""The client SDK: devices that train, and the researcher's client of the control plane."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.client_sdk.control.control import Control
    from coterie.client_sdk.control.submit import submit
    from coterie.client_sdk.device.device import Device
    from coterie.client_sdk.device.policy import DevicePolicy

_HOMES = {
    "Control": "coterie.client_sdk.control.control",
    "Device": "coterie.client_sdk.device.device",
    "DevicePolicy": "coterie.client_sdk.device.policy",
    "submit": "coterie.client_sdk.control.submit",
}
__all__ = ["Control", "Device", "DevicePolicy", "submit"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
