"""The private training steps of benchmarks/private_step.py in Opacus: ghost clipping, the fastest of its modes on both
models (see RESULTS.md), without noise.
"""

from collections.abc import Callable, Mapping
from itertools import cycle
from typing import Any

import numpy as np
import torch
from opacus import PrivacyEngine
from step_data import Workload, batches
from step_torch import network
from torch.utils.data import DataLoader, TensorDataset

CLIP = 1.0


def prepare(
    workload: Workload, weights: Mapping[str, Any], threads: int
) -> tuple[Callable[[], None], Callable[[], float]]:
    """A function that makes one step, and one that reads the last loss."""
    torch.set_num_threads(threads)
    data = [(torch.from_numpy(x), torch.from_numpy(y.astype(np.int64))) for x, y in batches(workload)]
    plain = network(workload, weights)
    private, optimizer, criterion, _ = PrivacyEngine().make_private(
        module=plain,
        optimizer=torch.optim.SGD(plain.parameters(), lr=workload.rate),
        criterion=torch.nn.CrossEntropyLoss(),
        data_loader=DataLoader(TensorDataset(*data[0]), batch_size=workload.batch),
        noise_multiplier=0.0,
        max_grad_norm=CLIP,
        poisson_sampling=False,
        grad_sample_mode="ghost",
    )
    feeds, last = cycle(data), [0.0]

    def step() -> None:
        x, y = next(feeds)
        optimizer.zero_grad()
        loss = criterion(private(x), y)
        loss.backward()
        optimizer.step()
        last[0] = loss

    return step, lambda: float(getattr(last[0], "item", lambda: last[0])())
