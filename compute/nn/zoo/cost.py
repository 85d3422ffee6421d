"""What the models of the zoo cost and how well they do, as it was measured on one machine."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

from coterie.errors import InternalError

FILE = Path(__file__).with_name("costs.json")


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a model costs.

    latency_us: one inference of one example, the weights in the file. step_us: one training step of 32 examples
    (forward, loss, gradients, SGD). size_bytes: the inference file. memory_bytes: what the training step holds at its
    fullest, by the memory planner (weights, gradients, activations, batch), without the runtime itself.
    """

    latency_us: float
    step_us: float
    size_bytes: int
    memory_bytes: int

    def scaled(self, factor: float) -> "Cost":
        """The cost where everything takes ``factor`` times as long."""
        return Cost(
            latency_us=self.latency_us * factor,
            step_us=self.step_us * factor,
            size_bytes=self.size_bytes,
            memory_bytes=self.memory_bytes,
        )


@dataclass(frozen=True, kw_only=True)
class Costs:
    """A table of measurements. machine: in words. yardstick_us: the yardstick's inference there, which any device can
    repeat. models: by (task, name), a model's cost and its accuracy on the task's test rows.
    """

    machine: str
    yardstick_us: float
    models: Mapping[tuple[str, str], tuple[Cost, float]]

    @staticmethod
    def from_json(value: object) -> "Costs":
        """The inverse of `to_json`. Raises InternalError for what is no such table."""
        try:
            said = cast(dict[str, Any], value)
            models = {
                (str(row["task"]), str(row["name"])): (
                    Cost(
                        latency_us=float(row["latency_us"]),
                        step_us=float(row["step_us"]),
                        size_bytes=int(row["size_bytes"]),
                        memory_bytes=int(row["memory_bytes"]),
                    ),
                    float(row["accuracy"]),
                )
                for row in said["models"]
            }
            return Costs(machine=str(said["machine"]), yardstick_us=float(said["yardstick_us"]), models=models)
        except (KeyError, TypeError, ValueError) as error:
            raise InternalError(f"The table of what the zoo's models cost cannot be read: {error!r}.") from error

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        rows = [
            {"task": task, "name": name, **_rounded(cost), "accuracy": round(accuracy, 4)}
            for (task, name), (cost, accuracy) in self.models.items()
        ]
        return {"machine": self.machine, "yardstick_us": round(self.yardstick_us, 1), "models": rows}


@cache
def recorded() -> Costs:
    """The table that comes with coterie; ``benchmarks/zoo.py --write`` makes it."""
    return Costs.from_json(json.loads(FILE.read_text(encoding="utf-8")))


def _rounded(cost: Cost) -> dict[str, Any]:
    return {
        "latency_us": round(cost.latency_us, 1),
        "step_us": round(cost.step_us, 1),
        "size_bytes": cost.size_bytes,
        "memory_bytes": cost.memory_bytes,
    }
