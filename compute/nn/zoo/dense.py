"""Models of dense layers: logistic regression, multi-layer perceptrons, means of embeddings."""

from collections.abc import Sequence
from typing import cast

from coterie.compute.nn.activations import ReLU
from coterie.compute.nn.embedding import Embedding
from coterie.compute.nn.linear import Linear
from coterie.compute.nn.module import Module
from coterie.compute.nn.pooling import MeanPool
from coterie.compute.nn.sequential import Flatten, Sequential
from coterie.errors import InputError


def logistic_regression(inputs: int, classes: int) -> Sequential:
    """One linear layer over all numbers of an example: x[B, ...] of ``inputs`` numbers each → logits [B, classes].

    With softmax cross-entropy it is multinomial logistic regression; inputs × classes + classes parameters.
    """
    return Sequential(Flatten(), Linear(inputs, classes))


def mlp(sizes: Sequence[int]) -> Sequential:
    """Linear layers with ReLU between them: x[B, sizes[0]] → [B, sizes[-1]]. Raises InputError for fewer than two
    sizes.
    """
    if not isinstance(cast(object, sizes), Sequence) or len(sizes) < 2:
        raise InputError(f"mlp needs the sizes of its input and its output at least, as in (4, 16, 3); got {sizes!r}.")
    layers: list[Module] = [Linear(sizes[0], sizes[1])]
    for inputs, outputs in zip(sizes[1:], sizes[2:], strict=False):
        layers += [ReLU(), Linear(inputs, outputs)]
    return Sequential(*layers)


def embedding_classifier(rows: int, size: int, classes: int, *, hidden: int | None = None) -> Sequential:
    """Mean of embeddings, then a linear layer or an MLP: ids int32[B, T] → logits [B, classes].

    rows: of the embedding table. size: of an embedding. hidden: of a ReLU layer between, none by default.
    """
    sizes = (size, classes) if hidden is None else (size, hidden, classes)
    return Sequential(Embedding(rows, size), MeanPool(), *mlp(sizes).layers)
