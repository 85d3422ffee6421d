"""Faults for tests: the table of every point between two durable facts of a device, and a hook that kills the process
there.

``COTERIE_CLIENT_FAULT="<point>:<nth>"`` sends SIGKILL to the process when it reaches the point for the nth time
(counted from 1). It is read when an agent is made. A test that enumerates ``POINTS`` has killed a device in every phase
of its work.
"""

from collections.abc import Mapping
from typing import ClassVar, Final, final

from coterie.faults import FaultHook

VARIABLE: Final = "COTERIE_CLIENT_FAULT"

POINTS: Final[Mapping[str, str]] = {
    "enrolled": "the coordinator knows the device, the device does not know that yet",
    "joined": "the membership is stored",
    "checked_in": "a check-in was answered, nothing of the answer is stored",
    "settled": "the outcome of earlier updates is stored, the new task is not",
    "leased": "the task is stored, nothing is downloaded",
    "remembered": "the task's place among the versions is stored, nothing is downloaded",
    "downloading": "a part of a blob is on disk",
    "downloaded": "plan and model are there and checked",
    "training": "a training step has run",
    "trained": "the update exists in memory only",
    "written": "the update's file is on disk, the store does not know it",
    "stored": "the store knows the update, nothing of it is sent",
    "uploading": "a part of the update is with the coordinator",
    "uploaded": "the coordinator acknowledged the update, the device has not stored that",
    "pending": "the update is stored as pending",
}

SECURE_POINTS: Final[Mapping[str, str]] = {
    "keys_ready": "the attempt's first state is stored, nothing of it is sent",
    "keys_sent": "the coordinator has the keys, the device has not noted that",
    "answering": "a message of the coordinator is here, its answer is not made",
    "shares_ready": "the shares are stored, nothing of them is sent",
    "shares_sent": "the coordinator has the shares, the device has not noted that",
    "masked_written": "the masked vector's file is on disk, the store does not know it",
    "masked_ready": "the store knows the masked vector, nothing of it is sent",
    "masked_sent": "the coordinator acknowledged the masked vector, the device has not noted that",
    "agreement_ready": "the agreement is stored, nothing of it is sent",
    "agreement_sent": "the coordinator has the agreement, the device has not noted that",
    "reveal_ready": "the shares that open the sum are stored, nothing of them is sent",
    "reveal_sent": "the coordinator has these shares, the device has not noted that",
    "ended": "the attempt is over, the device has not stored that",
}
"""The points of a task under secure aggregation, beside those of every task."""

PRIVATE_POINTS: Final[Mapping[str, str]] = {
    "charged": "what the update costs is on record, the update exists in memory only",
}
"""The points of a task that promises differential privacy, beside those of every task."""


@final
class DeviceFaults(FaultHook):
    """The points of a device."""

    points: ClassVar[Mapping[str, str]] = {**POINTS, **SECURE_POINTS, **PRIVATE_POINTS}
    variable = VARIABLE
