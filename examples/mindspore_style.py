"""A training script as one writes it for MindSpore; only the imports say coterie. A CNN learns scikit-learn's digits.

    python examples/mindspore_style.py

Every call of the network, of the gradient function and of the optimizer is one compiled graph; with ``ms.jit`` on the
training step, the whole step is. ``ms.set_context(mode=ms.PYNATIVE_MODE)`` runs it line by line instead.
"""

from typing import Any, cast

import numpy as np
from sklearn.datasets import load_digits  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]

from coterie.compute import mindspore as ms
from coterie.compute.mindspore import nn
from coterie.compute.mindspore.dataset import Dataset, NumpySlicesDataset


class Network(nn.Cell):
    """Two convolutions and two dense layers: images [N, 1, 8, 8] → logits [N, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.SequentialCell(
            nn.Conv2d(1, 8, 3, pad_mode="same", has_bias=True),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, pad_mode="same", has_bias=True),
            nn.ReLU(),
            nn.MaxPool2d(2, 2),
        )
        self.flatten = nn.Flatten()
        self.hidden = nn.Dense(256, 64, activation="relu")
        self.dropout = nn.Dropout(p=0.1)
        self.output = nn.Dense(64, 10)

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        x = self.flatten(self.features(x))
        return self.output(self.dropout(self.hidden(x)))


def accuracy(model: Network, dataset: Dataset) -> float:
    """The share of the rows whose digit is found."""
    model.set_train(False)
    right = total = 0
    for image, label in dataset.create_tuple_iterator():
        right += (model(image).argmax(1) == label).asnumpy().sum()
        total += len(label)
    return float(right / total)


def main(epochs: int = 5) -> float:
    """Train, say how it goes, and give the accuracy on held-out rows."""
    ms.set_seed(1)
    digits = cast("Any", load_digits())
    images = (digits.images[:, None] / 16.0).astype(np.float32)
    labels = digits.target.astype(np.int32)
    training = NumpySlicesDataset((images[:1500], labels[:1500]), ["image", "label"]).batch(50)
    held_out = NumpySlicesDataset((images[1500:], labels[1500:]), ["image", "label"], shuffle=False).batch(99)

    model = Network()
    loss_fn = nn.CrossEntropyLoss()
    optimizer = nn.Adam(model.trainable_params(), 0.003)

    def forward_fn(data: ms.Tensor, label: ms.Tensor) -> tuple[ms.Tensor, ms.Tensor]:
        logits = model(data)
        return loss_fn(logits, label), logits

    grad_fn = ms.value_and_grad(forward_fn, None, optimizer.parameters, has_aux=True)

    @ms.jit
    def train_step(data: ms.Tensor, label: ms.Tensor) -> ms.Tensor:
        (loss, _), gradients = grad_fn(data, label)
        optimizer(gradients)
        return loss

    for epoch in range(epochs):
        model.set_train()
        loss = ms.Tensor(0.0)
        for data, label in training.create_tuple_iterator():
            loss = train_step(data, label)
        print(f"epoch {epoch + 1}: loss {float(loss):.4f}, accuracy {accuracy(model, held_out):.3f}")
    return accuracy(model, held_out)


if __name__ == "__main__":
    main()
