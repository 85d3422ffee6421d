"""How a model draws random numbers while it trains: each draw is an input of the graph, which the host feeds."""

from dataclasses import replace
from itertools import count

from coterie.compute.array import Array
from coterie.compute.nn import mode as modes
from coterie.compute.trace import GraphInputs, TensorSpec

RANDOM = "random/"


def drawing_mode(inputs: GraphInputs, weight: Array, *, recompute: bool = False) -> modes.Mode:
    """The mode of training in which draw n, in the order of the calls, is the input ``random/<n>``.

    weight: of the rows, ``[B]``, for layers that average over them.
    recompute: whether parts of the model are computed again in the backward pass.
    """
    numbers = count()

    def uniform(shape: tuple[int, ...]) -> Array:
        name = f"{RANDOM}{next(numbers)}"
        return inputs[name] if name in inputs else inputs.request(name, TensorSpec(shape))

    return replace(modes.train(uniform, weight), recompute=recompute)
