"""Write torch_answers.npz: what PyTorch says of layers and of random networks, in float64.

    pip install torch && python -m tests.compute.models.make_torch_answers

Of layers: outputs, and running statistics. Of each network (`test_networks.draw`): the loss, and of the gradient of
every parameter two numbers, its products with vectors (`test_networks.products`). coterie draws the weights and
the networks, and has no part in the answers.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coterie.compute import nn
from tests.compute.models import test_attention, test_networks, test_norms, test_recurrent

PLACE = Path(__file__).parent / "torch_answers.npz"
F64 = torch.float64


def tensors(params: Mapping[str, Any], names: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Parameters of coterie under PyTorch's names."""
    named = {name: name for name in params} if names is None else names
    return {theirs: torch.tensor(np.asarray(params[ours])) for ours, theirs in named.items()}


def norms() -> Iterator[tuple[str, Any]]:
    """Two steps of training and one of evaluation of each BatchNorm, and the other norms."""
    for name, (layer, shape) in test_norms.INPUTS.items():
        peer = getattr(torch.nn, type(layer).__name__)(3, eps=layer.epsilon, momentum=layer.momentum, dtype=F64)
        given = {key: array.numpy() for key, array in test_norms.parameters(layer).items()}
        peer.load_state_dict(tensors(given), strict=False)
        for step, training in enumerate((True, True, False)):
            peer.train(training)
            yield f"norms/{name}/{step}/y", peer(torch.tensor(test_norms.batch(shape)))
            for key in ("running_mean", "running_var"):
                yield f"norms/{name}/{step}/{key}", getattr(peer, key).clone()
    peers = (
        torch.nn.GroupNorm(2, 4, dtype=F64),
        torch.nn.RMSNorm(2, eps=1e-5, dtype=F64),
        torch.nn.InstanceNorm2d(4, dtype=F64),
    )
    for layer, peer in zip(test_norms.OTHERS, peers, strict=True):
        given = {key: array.numpy() for key, array in test_norms.parameters(layer).items()}
        peer.load_state_dict(tensors(given))
        yield f"norms/{type(layer).__name__}", peer(torch.tensor(test_norms.batch(test_norms.OF_OTHERS)))


def attention() -> Iterator[tuple[str, Any]]:
    """Attention and the transformer block, with and without a causal mask."""
    x = torch.tensor(test_attention.X)
    gelu = partial(torch.nn.functional.gelu, approximate="tanh")
    for causal in (False, True):
        mask = torch.nn.Transformer.generate_square_subsequent_mask(5, dtype=F64) if causal else None
        alone = torch.nn.MultiheadAttention(8, 2, batch_first=True, dtype=F64)
        given = test_attention.random_parameters(nn.MultiHeadAttention(8, 2, causal=causal))
        alone.load_state_dict(tensors(given, test_attention.ATTENTION))
        yield f"attention/{causal}", alone(x, x, x, attn_mask=mask, need_weights=False)[0]
        block = torch.nn.TransformerEncoderLayer(
            8, 2, 12, dropout=0.0, activation=gelu, batch_first=True, norm_first=True, dtype=F64
        )
        given = test_attention.random_parameters(nn.TransformerBlock(8, 2, hidden=12, causal=causal))
        block.load_state_dict(tensors(given, test_attention.BLOCK))
        yield f"block/{causal}", block(x, src_mask=mask)


def recurrent() -> Iterator[tuple[str, Any]]:
    """GRU and LSTM of one direction."""
    for kind, layer in (("GRU", nn.GRU(2, 5, True)), ("LSTM", nn.LSTM(2, 5, True))):
        peer = getattr(torch.nn, kind)(2, 5, batch_first=True, dtype=F64)
        given = test_recurrent.random_parameters(layer)
        peer.load_state_dict({f"{name}_l0": torch.tensor(value) for name, value in given.items()})
        yield f"recurrent/{kind}", peer(torch.tensor(test_recurrent.X))[0]


def networks() -> Iterator[tuple[str, Any]]:
    """Loss and gradients of each random network."""
    for depth in test_networks.DEPTHS:
        for seed in test_networks.SEEDS:
            network = test_networks.draw(depth, seed)
            params = network.first()
            theirs = {name: torch.tensor(array, requires_grad=True) for name, array in params.items()}
            uniform, x = network.uniform(), torch.tensor(network.x)
            for index, peer in enumerate(network.peers):
                of_layer = f"{index}."
                own = {n.removeprefix(of_layer): array for n, array in theirs.items() if n.startswith(of_layer)}
                x = peer(torch, own, x, uniform)
            losses = torch.nn.functional.cross_entropy(x, torch.tensor(network.y).long(), reduction="none")
            loss = (losses * torch.tensor(network.weight)).sum()
            loss.backward()
            yield f"networks/{depth}/{seed}", loss
            gradients = {
                name: np.zeros_like(params[name]) if array.grad is None else array.grad.numpy()
                for name, array in theirs.items()
            }
            for name, products in test_networks.products(gradients).items():
                yield f"networks/{depth}/{seed}/{name}", torch.tensor(products)


if __name__ == "__main__":
    found = dict((*norms(), *attention(), *recurrent(), *networks()))
    answers = {name: value.detach().numpy() for name, value in found.items()}
    np.savez_compressed(PLACE, **answers, torch=np.array(torch.__version__))
