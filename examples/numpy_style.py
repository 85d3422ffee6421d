"""A classifier of handwritten digits as one writes it in NumPy, with gradients and a compiled step.

    python examples/numpy_style.py            (needs scikit-learn for the data)

The functions take arrays and return arrays; there are no layers and no optimizer classes. `jit` makes the whole step,
forward pass, gradient and update, one graph on ONNX Runtime. Take `@jit` away and the same lines run on NumPy.
"""

import numpy
from sklearn.datasets import load_digits

from coterie.compute import grad, jit
from coterie.compute import numpy as np


def forward(params, x):
    """Two layers: x [B, 64] → logits [B, 10]."""
    hidden = np.tanh(x @ params["w1"] + params["b1"])
    return hidden @ params["w2"] + params["b2"]


def loss(params, x, y):
    """Mean cross entropy of one-hot labels y [B, 10]."""
    logits = forward(params, x)
    highest = np.max(logits, axis=1, keepdims=True)
    norm = highest + np.log(np.sum(np.exp(logits - highest), axis=1, keepdims=True))
    return -np.mean(np.sum(y * (logits - norm), axis=1))


@jit(fullgraph=True)
def step(params, x, y, rate):
    """One step of gradient descent."""
    gradient = grad(loss)(params, x, y)
    return {name: value - rate * gradient[name] for name, value in params.items()}


def main() -> None:
    """Train for ten epochs and print the accuracy on rows that were not trained on."""
    digits = load_digits()
    x, y = (digits.data / 16).astype("float32"), numpy.eye(10, dtype="float32")[digits.target]
    draw = numpy.random.default_rng(0)
    params = {
        "w1": draw.normal(size=(64, 64), scale=0.1).astype("float32"),
        "b1": numpy.zeros(64, "float32"),
        "w2": draw.normal(size=(64, 10), scale=0.1).astype("float32"),
        "b2": numpy.zeros(10, "float32"),
    }
    for _ in range(10):
        for rows in draw.permutation(1472).reshape(-1, 32):
            params = step(params, x[rows], y[rows], numpy.float32(0.5))
    correct = forward(params, x[1472:]).numpy().argmax(axis=1) == digits.target[1472:]
    print(f"accuracy {correct.mean():.3f}, compiled {step.compilations} time(s)")


if __name__ == "__main__":
    main()
