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
    if workload.large:
        # The names are the same; a BatchNorm of PyTorch also counts its batches.
        given = {name: torch.from_numpy(np.array(value)) for name, value in weights.items()}
        missing, unknown = net.load_state_dict(given, strict=False)
        if unknown or any(not name.endswith("num_batches_tracked") for name in missing):
            raise ValueError(f"{workload.name}: the weights lack {missing}, and {unknown} are unknown.")
        return net
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


class _Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.changes = stride != 1 or inputs != outputs
        if self.changes:
            self.conv3, self.norm3 = nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)

    def forward(self, x: Any) -> Any:
        y = nn.functional.relu(self.norm1(self.conv1(x)))
        short = self.norm3(self.conv3(x)) if self.changes else x
        return nn.functional.relu(self.norm2(self.conv2(y)) + short)


def _resnet18(workload: Workload) -> Any:
    widths = (64, 64, 128, 256, 512)
    blocks: list[Any] = []
    for stage, (before, width) in enumerate(zip(widths, widths[1:], strict=False)):
        blocks += [_Residual(before, width, 2 if stage else 1), _Residual(width, width, 1)]
    first = (nn.Conv2d(3, 64, 7, 2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(
        *first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], workload.classes)
    )


class _Words(nn.Module):
    def __init__(self, workload: Workload) -> None:
        super().__init__()
        shapes = {"words": workload.vocabulary, "positions": 512, "segments": 2}
        for name, rows in shapes.items():
            setattr(self, name, nn.Parameter(torch.zeros(rows, workload.width)))
        self.norm = nn.LayerNorm(workload.width, 1e-12)

    def forward(self, ids: Any) -> Any:
        seen = nn.functional.embedding(ids, self.words) + self.positions[: ids.shape[1]] + self.segments[0]
        return self.norm(seen)


class _Seeing(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Any, mask: Any) -> Any:
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(mixed.transpose(1, 2).reshape(b, t, d))


class _Encoded(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = _Seeing(width)
        self.norm1, self.norm2 = nn.LayerNorm(width, 1e-12), nn.LayerNorm(width, 1e-12)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any, mask: Any) -> Any:
        x = self.norm1(x + self.attention(x, mask))
        return self.norm2(x + self.down(nn.functional.gelu(self.up(x), approximate="tanh")))


class _Bert(nn.Module):
    def __init__(self, workload: Workload) -> None:
        super().__init__()
        self.embedding, self.count = _Words(workload), workload.layers
        for number in range(workload.layers):
            setattr(self, f"layer{number}", _Encoded(workload.width))
        self.pooler, self.head = (
            nn.Linear(workload.width, workload.width),
            nn.Linear(workload.width, workload.classes),
        )

    def forward(self, ids: Any) -> Any:
        x, mask = self.embedding(ids), (ids != 0)[:, None, None, :]
        for number in range(self.count):
            x = getattr(self, f"layer{number}")(x, mask)
        return self.head(torch.tanh(self.pooler(x[:, 0])))


_NETS: Mapping[str, Callable[[Workload], Any]] = {
    "mlp": _mlp,
    "lenet": lambda workload: _images(6, 16, 0, (400, 120, 84, 10)),
    "cnn": lambda workload: _images(32, 64, 2, (3136, 512, 10)),
    "transformer": _transformer,
    "gru": _gru,
    "resnet18": _resnet18,
    "bert": _Bert,
}
