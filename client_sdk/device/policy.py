"""What a device lets itself be asked to do. Every rule holds before anything is downloaded, run or sent for it."""

from dataclasses import dataclass
from typing import Final

from coterie.aggregation.plan.bundle import Plan
from coterie.aggregation.plan.check import PlanLimits
from coterie.aggregation.plan.graph import GraphManifest
from coterie.errors import ConfigurationError, PolicyRefused
from coterie.protocol.device import Task

MEBIBYTE: Final = 1 << 20


@dataclass(frozen=True, kw_only=True)
class DevicePolicy:
    """A device's own floor.

    signers: public keys (hex) whose plans may run here; None for those that were pinned at enrolment. plan: limits of
    size for plans and their graphs. threads: of one training or evaluation. max_steps: local steps of one task at most;
    training ends there and sends what it has. max_weight: the most examples that this device ever claims. reveal_data:
    whether check-ins tell how many rows and which classes it has, for experiments that choose devices by that.

    memory_bytes: the most that a task's tensors may need, counted from the plan before anything runs: weights, both
    sets of the step's state, gradients (one more set of weights), the base, the flat update and one batch. Activations
    and ONNX Runtime itself are not counted and nothing is enforced by the operating system: run the client under
    ``ulimit -v`` or a cgroup for a hard cap.
    """

    signers: frozenset[str] | None = None
    plan: PlanLimits = PlanLimits()
    threads: int = 1
    memory_bytes: int | None = None
    max_upload_bytes: int = 256 * MEBIBYTE
    max_download_bytes: int = 1024 * MEBIBYTE
    max_weight: int | None = None
    max_steps: int | None = None
    reveal_data: bool = False

    def __post_init__(self) -> None:
        numbers = {
            "threads": self.threads,
            "memory_bytes": self.memory_bytes,
            "max_upload_bytes": self.max_upload_bytes,
            "max_download_bytes": self.max_download_bytes,
            "max_weight": self.max_weight,
            "max_steps": self.max_steps,
        }
        for name, value in numbers.items():
            if value is not None and value < 1:
                raise ConfigurationError(f"{name} must be at least 1, got {value}.")

    def weight_cap(self, task: Task) -> int:
        """The most examples to claim for a task."""
        return min(task.weight_cap, self.max_weight or task.weight_cap)

    def check_task(self, task: Task, pinned: frozenset[str]) -> None:
        """Raise PolicyRefused unless this device takes such a task. pinned: the signers of its enrolment."""
        allowed = pinned if self.signers is None else self.signers
        if task.plan.signer not in allowed:
            raise PolicyRefused(
                f"The task's plan is signed by key {task.plan.signer[:16]}…, which this device does not trust.",
                hint="Join again after the population's operator has added the researcher's key.",
                code="signer_refused",
            )
        sizes = [("model", task.model.size)] + ([("frozen part", task.frozen.size)] if task.frozen else [])
        for what, size in sizes:
            if size > self.max_download_bytes:
                raise PolicyRefused(
                    f"The task's {what} has {size} bytes; this device downloads at most {self.max_download_bytes}.",
                    code="download_too_large",
                )

    def check_plan(self, plan: Plan) -> None:
        """Raise PolicyRefused when the plan's tensors need more memory than this device gives."""
        need = memory_needed(plan)
        if self.memory_bytes is not None and need > self.memory_bytes:
            raise PolicyRefused(
                f"Plan {plan.manifest.name!r} needs at least {need} bytes; this device gives {self.memory_bytes}.",
                hint="Raise the memory cap, or let the researcher choose a smaller model or batch.",
                code="memory_refused",
            )

    def check_update(self, size: int, task: Task) -> None:
        """Raise PolicyRefused when an update has more bytes than this device sends or the task takes."""
        limit = min(self.max_upload_bytes, task.upload_limit)
        if size > limit:
            raise PolicyRefused(
                f"The update has {size} bytes; at most {limit} may be sent.",
                hint="Raise max_upload_bytes, or let the researcher choose a smaller codec.",
                code="upload_too_large",
            )


def memory_needed(plan: Plan) -> int:
    """Bytes of the tensors that a task of this plan holds at once, as `DevicePolicy.memory_bytes` counts them."""
    manifest = plan.manifest
    model = 4 * (manifest.layout.size + (manifest.frozen.layout.size if manifest.frozen else 0))
    if "train" not in manifest.graphs:
        return 3 * model
    carried, rest = _bytes(manifest.graphs["train"])
    return 3 * model + 2 * carried + rest


def _bytes(graph: GraphManifest) -> tuple[int, int]:
    """Bytes of the carried and of the other inputs."""
    carried = rest = 0
    for tensor in graph.inputs:
        size = 4
        for length in tensor.shape:
            size *= length
        if tensor.source in ("state", "zeros"):
            carried += size
        else:
            rest += size
    return carried, rest
