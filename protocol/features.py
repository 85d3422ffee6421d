"""Features of the device protocol beyond its core: a device says which it has, and gets no task that needs another.

So the coordinator can learn something new while devices in the field stay as they are. The core is a training task of a
plan with ``begin``, ``train`` and ``finish``, in clear, whose update is float32.
"""

from collections.abc import Mapping
from typing import Final

EVALUATE: Final = "evaluate/1"
PROBE: Final = "probe/1"
FROZEN: Final = "frozen/1"
CLIENT_STATE: Final = "client_state/1"
EXAMPLE_LEVEL: Final = "example_level/1"
NOISE_SCHEDULE: Final = "noise_schedule/1"
SHARED_NOISE: Final = "shared_noise/1"

FEATURES: Final[Mapping[str, str]] = {
    EVALUATE: "tasks of the kind evaluate: the eval graph, and where the client's means lie",
    PROBE: "plans with a probe graph",
    FROZEN: "plans with frozen tensors, in a blob of their own",
    CLIENT_STATE: "plans that keep tensors on the device from round to round, in two phases",
    EXAMPLE_LEVEL: "plans whose steps draw private batches and private noise",
    NOISE_SCHEDULE: "plans whose private steps have other noise in each round",
    SHARED_NOISE: "secure aggregation in which each client adds its share of the noise",
}
OPSET: Final = 17
"""The ONNX opset of every plan's graphs."""
