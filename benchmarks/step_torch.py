"""The training steps of benchmarks/train_step.py in PyTorch: eager, its optimizers fused."""

from collections.abc import Callable, Mapping
from itertools import cycle
from typing import Any

import numpy as np
import torch
from step_data import HEADS, LAYERS, LENGTH, VOCABULARY, WIDTH, Workload, batches
from torch import nn


def prepare(
    workload: Workload, weights: Mapping[str, Any], threads: int
) -> tuple[Callable[[], None], Callable[[], float]]:
    """A function that makes one step, and one that reads the last loss. weights: the first ones, by coterie's names."""
    torch.set_num_threads(threads)
    net = network(workload, weights)
    optimizer = _optimizer(workload, list(net.parameters()))
    feeds = cycle([(x, y.astype(np.int64)) for x, y in batches(workload)])
    last: list[Any] = [None]

    def step() -> None:
        x, y = next(feeds)
        optimizer.zero_grad()
        logits = net(torch.from_numpy(x))
        loss = nn.functional.cross_entropy(logits.flatten(0, -2), torch.from_numpy(y).flatten())
        loss.backward()
        optimizer.step()
        last[0] = loss

    return step, lambda: float(last[0].detach())


def network(workload: Workload, weights: Mapping[str, Any]) -> Any:
    """The model of a workload with these weights."""
    net = _NETS[workload.kind](workload)
    renamed = {_renamed(name): torch.from_numpy(np.array(value)) for name, value in weights.items()}
    net.load_state_dict(dict(zip(net.state_dict(), renamed.values(), strict=True)) if not workload.tokens else renamed)
    return net


def _optimizer(workload: Workload, parameters: list[Any]) -> Any:
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[workload.optimizer]
    try:
        return kind(parameters, lr=workload.rate, fused=True)
    except (RuntimeError, TypeError):  # a version whose SGD is not fused on the CPU
        return kind(parameters, lr=workload.rate)


def _renamed(name: str) -> str:
    return f"{name}_l0" if name.startswith("1.weight_") or name.startswith("1.bias_") else name


def _mlp(workload: Workload) -> Any:
    layers: list[Any] = []
    for inputs, outputs in zip(workload.sizes, workload.sizes[1:], strict=False):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _images(first: int, second: int, padding: int, sizes: tuple[int, ...]) -> Any:
    layers: list[Any] = [
        *(nn.Conv2d(1, first, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(first, second, 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
    ]
    for inputs, outputs in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(b, t, d))


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = _Attention()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.norm1(x))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class _Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(LENGTH, WIDTH))

    def forward(self, x: Any) -> Any:
        return x + self.weight


class _Outputs(nn.GRU):
    def forward(self, x: Any) -> Any:
        return super().forward(x)[0]


def _transformer(workload: Workload) -> Any:
    blocks = [_Block() for _ in range(LAYERS)]
    ends = (nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY))
    return nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), _Positions(), *blocks, *ends)


def _gru(workload: Workload) -> Any:
    layer = _Outputs(WIDTH, WIDTH, batch_first=True)
    return nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), layer, nn.Linear(WIDTH, VOCABULARY))


_NETS: Mapping[str, Callable[[Workload], Any]] = {
    "mlp": _mlp,
    "lenet": lambda workload: _images(6, 16, 0, (400, 120, 84, 10)),
    "cnn": lambda workload: _images(32, 64, 2, (3136, 512, 10)),
    "transformer": _transformer,
    "gru": _gru,
}
