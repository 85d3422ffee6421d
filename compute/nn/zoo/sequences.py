"""Models of sequences of ids: those that predict the next token at every position, and those that predict the one token
after a window, which is one label an example and so fits an experiment's schema.
"""

from dataclasses import dataclass

from coterie.compute.array import Array
from coterie.compute.nn.embedding import Embedding, PositionalEmbedding
from coterie.compute.nn.linear import Linear
from coterie.compute.nn.mode import EVAL, Mode
from coterie.compute.nn.module import Module, Parameters, ParameterSpec, check_input
from coterie.compute.nn.normalisation import LayerNorm
from coterie.compute.nn.recurrent import GRU
from coterie.compute.nn.sequential import Sequential
from coterie.compute.nn.transformer import TransformerBlock
from coterie.compute.optim.optimizer import check_whole


@dataclass(frozen=True)
class LastStep(Module):
    """x[B, T, D] → its last step, [B, D]."""

    def specs(self) -> dict[str, ParameterSpec]:
        return {}

    def __call__(self, params: Parameters, x: Array, mode: Mode = EVAL) -> Array:
        check_input(x, ("B", "T", "D"), self)
        return x[:, -1, :]


def gru(vocabulary: int = 128, width: int = 64, *, unroll: bool = True) -> Sequential:
    """One GRU layer that predicts the next token at every position: ids int32[B, T] → logits [B, T, vocabulary]; 41 472
    parameters as it stands.
    """
    return Sequential(Embedding(vocabulary, width), GRU(width, width, unroll), Linear(width, vocabulary))


def transformer(
    vocabulary: int = 128, width: int = 64, heads: int = 4, layers: int = 2, length: int = 32
) -> Sequential:
    """A decoder that predicts the next token at every position: ids int32[B, T] → logits [B, T, vocabulary], T at most
    ``length``; causal, normalised before each part. 118 656 parameters as it stands.
    """
    return Sequential(*_decoder(vocabulary, width, heads, layers, length), Linear(width, vocabulary))


def char_gru(vocabulary: int = 86, embedding: int = 8, hidden: int = 64, layers: int = 1) -> Sequential:
    """The character after a window: ids int32[B, T] → logits [B, vocabulary]; 20 486 parameters as it stands.

    The shape of the character model of McMahan et al. 2017 (embeddings of 8, recurrent layers, a linear layer), with
    GRU layers in place of two LSTM layers of 256.
    """
    check_whole("char_gru", layers=layers)
    recurrent = [GRU(embedding if number == 0 else hidden, hidden) for number in range(layers)]
    return Sequential(Embedding(vocabulary, embedding), *recurrent, LastStep(), Linear(hidden, vocabulary))


def char_transformer(
    vocabulary: int = 86, width: int = 64, heads: int = 4, layers: int = 2, length: int = 32
) -> Sequential:
    """The character after a window: ids int32[B, T] → logits [B, vocabulary], T at most ``length``; 113 238 parameters
    as it stands. The decoder of ``transformer``, of which the last position alone is read.
    """
    return Sequential(*_decoder(vocabulary, width, heads, layers, length), LastStep(), Linear(width, vocabulary))


def _decoder(vocabulary: int, width: int, heads: int, layers: int, length: int) -> list[Module]:
    """ids int32[B, T] → [B, T, width]."""
    check_whole("transformer", layers=layers)
    blocks = [TransformerBlock(width, heads, causal=True) for _ in range(layers)]
    return [Embedding(vocabulary, width), PositionalEmbedding(length, width), *blocks, LayerNorm(width)]
