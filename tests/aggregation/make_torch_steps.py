"""Write torch_steps.npz: the updates that PyTorch makes in the trainings of ``torch_steps``, in float64.

    pip install torch && python -m tests.aggregation.make_torch_steps

coterie draws the first weights and says which rows are in which batch; it has no part in the training.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportUnknownParameterType=false
# pyright: reportUntypedBaseClass=false

from collections.abc import Callable, Iterator, Mapping
from math import cos, pi
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tests.aggregation.torch_steps import BATCH, CASES, STEPS, batches_of, work_of

PLACE = Path(__file__).parent / "torch_steps.npz"
Loss = Callable[[Any, Any], Any]


class Joined(nn.Sequential):
    """Two inputs beside each other."""

    def forward(self, batch: Mapping[str, Any]) -> Any:
        return super().forward(torch.cat([batch["x"], batch["z"]], dim=1))


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 3))


def cox(score: Any, label: Any) -> Any:
    """Each event against those who are still there."""
    score, time, event = score[:, 0], label[:, 0], label[:, 1]
    terms = [
        torch.logsumexp(score[time >= time[row]], dim=0) - score[row] for row in range(len(score)) if event[row] > 0
    ]
    return sum(terms, torch.zeros(())) / len(score)


def next_token(scores: Any, label: Any) -> Any:
    """The mean over rows of each row's mean over its tokens that count."""
    rows = [
        functional.cross_entropy(row, wanted, ignore_index=-1) if (wanted >= 0).any() else torch.zeros(())
        for row, wanted in zip(scores, label, strict=True)
    ]
    return sum(rows, torch.zeros(())) / len(rows)


def sgd(rate: float, momentum: float = 0.0) -> Callable[[Any], Any]:
    return lambda params: torch.optim.SGD(params, lr=rate, momentum=momentum)


def adam(rate: float) -> Callable[[Any], Any]:
    return lambda params: torch.optim.Adam(params, lr=rate)


ENTROPY: Loss = functional.cross_entropy
PEERS: dict[str, tuple[Callable[[], nn.Module], Loss, Callable[[Any], Any]]] = {
    "scheduled": (dense, ENTROPY, adam(0.02)),
    "clipped": (dense, ENTROPY, sgd(0.5, 0.9)),
    "accumulated": (dense, ENTROPY, adam(0.02)),
    "next token": (lambda: nn.Sequential(nn.Embedding(7, 6), nn.Linear(6, 7)), next_token, sgd(0.5)),
    "several yes or no": (dense, lambda x, y: functional.binary_cross_entropy_with_logits(x, y.double()), sgd(0.5)),
    "masks": (lambda: nn.Sequential(nn.Conv2d(1, 3, 3, padding=1)), ENTROPY, sgd(0.5)),
    "boxes": (lambda: nn.Sequential(nn.Linear(5, 4)), functional.huber_loss, sgd(0.2)),
    "a loss over the batch": (lambda: nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1)), cox, sgd(0.2)),
    "two inputs": (lambda: Joined(nn.Linear(8, 3)), ENTROPY, sgd(0.5)),
    "two losses": (dense, lambda x, y: ENTROPY(x, y) + 0.1 * (x * x).sum(1).mean(), sgd(0.5)),
    "numbers": (lambda: nn.Sequential(nn.Linear(5, 4)), functional.mse_loss, adam(0.05)),
    "float16": (dense, ENTROPY, sgd(0.5)),
    "bfloat16": (dense, ENTROPY, sgd(0.5)),
}


def _tensor(array: Any) -> Any:
    value = torch.tensor(array)
    return value.long() if value.dtype == torch.int32 else value.double() if value.is_floating_point() else value


def updates(name: str) -> Iterator[tuple[str, Any]]:
    """Of every parameter: its last value less its first."""
    make, loss, optimizer_of = PEERS[name]
    work = work_of(name)
    model = make().double()
    names = {f"0.{key}" if key in ("weight", "bias") else key: key for key in work.weights}
    model.load_state_dict({theirs: _tensor(work.weights[ours]).double() for theirs, ours in names.items()})
    first = {key: value.clone() for key, value in model.state_dict().items()}
    optimizer = optimizer_of(model.parameters())
    group = 3 if name == "accumulated" else 1
    batches = [{key: _tensor(value) for key, value in batch.items()} for batch in batches_of(work)]
    if len(batches) != STEPS or len(batches[-1]["y"]) == BATCH:
        raise SystemExit("The last batch was to be a short one.")
    for begin in range(0, STEPS, group):
        gathered = batches[begin : begin + group]
        if len(gathered) < group:
            break  # What is left of a group moves nothing.
        optimizer.zero_grad()
        rows = sum(len(batch["y"]) for batch in gathered)
        for batch in gathered:
            given = batch if isinstance(model, Joined) else batch["x"]
            (loss(model(given), batch["y"]) * (len(batch["y"]) / rows)).backward()
        if name == "clipped":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        if name == "scheduled":
            optimizer.param_groups[0]["lr"] = 0.05 * (1 + cos(pi * begin / STEPS)) / 2
        optimizer.step()
    for theirs, ours in names.items():
        yield ours, model.state_dict()[theirs] - first[theirs]


def main() -> None:
    """Every case."""
    answers = {f"{name}/{key}": value.numpy() for name in CASES for key, value in updates(name)}
    np.savez_compressed(PLACE, **answers)
    print(f"{PLACE}: {len(answers)} arrays of PyTorch {torch.__version__}")


if __name__ == "__main__":
    main()
