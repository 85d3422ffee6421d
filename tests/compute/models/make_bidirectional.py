"""Write bidirectional.npz: what PyTorch says of recurrent layers of both directions.

    pip install torch && python tests/compute/models/make_bidirectional.py

For each layer: the weights by PyTorch's names without ``_l0``, ``KIND/weight/NAME``; an input ``KIND/x``, first states
``KIND/state/0`` and on, and the factor of its output ``KIND/seed``; the outputs ``KIND/y`` and last states
``KIND/last/0`` and on; and for every weight, the input and the states the gradient of sum(seed * output),
``KIND/gradient/NAME``. coterie has no part in it.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from pathlib import Path
from typing import Any

import numpy as np
import torch

PLACE = Path(__file__).parent / "bidirectional.npz"
STATES = {"GRU": 1, "LSTM": 2}


def answers(kind: str) -> dict[str, Any]:
    """The known answers of one layer of 2 inputs and 3 hidden, in float64."""
    torch.manual_seed(6)
    layer = getattr(torch.nn, kind)(2, 3, batch_first=True, bidirectional=True, dtype=torch.float64)
    x = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
    states = [torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True) for _ in range(STATES[kind])]
    y, last = layer(x, states[0] if kind == "GRU" else tuple(states))
    seed = torch.randn_like(y)
    (seed * y).sum().backward()
    weights = {name.replace("_l0", ""): value for name, value in layer.named_parameters()}
    named = {str(number): state for number, state in enumerate(states)}
    told = {f"weight/{name}": value for name, value in weights.items()} | {"x": x, "seed": seed, "y": y}
    told |= {f"state/{name}": state for name, state in named.items()}
    told |= {f"last/{number}": state for number, state in enumerate([last] if kind == "GRU" else last)}
    told |= {f"gradient/{name}": value.grad for name, value in {**weights, "x": x, **named}.items()}
    return {f"{kind}/{name}": value.detach().numpy() for name, value in told.items()}


if __name__ == "__main__":
    np.savez_compressed(PLACE, **answers("GRU"), **answers("LSTM"), torch=np.array(torch.__version__))
