"""A few whole models."""

from collections.abc import Sequence
from typing import cast

from coterie.compute.nn.activations import ReLU
from coterie.compute.nn.convolution import Conv2d
from coterie.compute.nn.embedding import Embedding, PositionalEmbedding
from coterie.compute.nn.linear import Linear
from coterie.compute.nn.module import Module
from coterie.compute.nn.normalisation import LayerNorm
from coterie.compute.nn.pooling import MaxPool2d, MeanPool
from coterie.compute.nn.recurrent import GRU
from coterie.compute.nn.sequential import Flatten, Sequential
from coterie.compute.nn.transformer import TransformerBlock
from coterie.errors import InputError


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


def lenet() -> Sequential:
    """LeNet-5 (LeCun et al. 1998), ReLU and max pooling: images [B, 1, 28, 28] → logits [B, 10]; 61 706 parameters."""
    return Sequential(
        Conv2d(1, 6, 5, padding=2),
        ReLU(),
        MaxPool2d(2),
        Conv2d(6, 16, 5),
        ReLU(),
        MaxPool2d(2),
        Flatten(),
        Linear(400, 120),
        ReLU(),
        Linear(120, 84),
        ReLU(),
        Linear(84, 10),
    )


def fedavg_cnn() -> Sequential:
    """The CNN of McMahan et al. 2017: images [B, 1, 28, 28] → logits [B, 10]; 1 663 370 parameters."""
    return Sequential(
        Conv2d(1, 32, 5, padding=2),
        ReLU(),
        MaxPool2d(2),
        Conv2d(32, 64, 5, padding=2),
        ReLU(),
        MaxPool2d(2),
        Flatten(),
        Linear(3136, 512),
        ReLU(),
        Linear(512, 10),
    )


def embedding_classifier(rows: int, size: int, classes: int, *, hidden: int | None = None) -> Sequential:
    """Mean of embeddings, then a linear layer or an MLP: ids int32[B, T] → logits [B, classes].

    rows: of the embedding table. size: of an embedding. hidden: of a ReLU layer between, none by default.
    """
    sizes = (size, classes) if hidden is None else (size, hidden, classes)
    return Sequential(Embedding(rows, size), MeanPool(), *mlp(sizes).layers)


def transformer(
    vocabulary: int = 128, width: int = 64, heads: int = 4, layers: int = 2, length: int = 32
) -> Sequential:
    """A decoder that predicts the next token at every position: ids int32[B, T] → logits [B, T, vocabulary], T at most
    ``length``; causal, normalised before each part. 118 656 parameters as it stands.
    """
    blocks = [TransformerBlock(width, heads, causal=True) for _ in range(layers)]
    return Sequential(
        Embedding(vocabulary, width),
        PositionalEmbedding(length, width),
        *blocks,
        LayerNorm(width),
        Linear(width, vocabulary),
    )


def gru(vocabulary: int = 128, width: int = 64, *, unroll: bool = True) -> Sequential:
    """One GRU layer that predicts the next token at every position: ids int32[B, T] → logits [B, T, vocabulary]; 41 472
    parameters as it stands.
    """
    return Sequential(Embedding(vocabulary, width), GRU(width, width, unroll), Linear(width, vocabulary))
