"""Optimizers against an independent float64 account of PyTorch's formulas, and the law of ``active``; schedules by
their numbers.
"""

from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.compute import optim
from coterie.compute.array import Array
from coterie.compute.ir import NDArray
from coterie.compute.onnx.writer import to_onnx
from coterie.compute.runtime.executable import Executable
from coterie.compute.runtime.reference import evaluate
from coterie.compute.trace import GraphInputs, TensorSpec, trace_named
from coterie.errors import InputError

Known = Callable[[NDArray, list[NDArray]], Iterator[NDArray]]


def known_sgd(lr: float, momentum: float = 0, nesterov: bool = False, weight_decay: float = 0) -> Known:
    """torch.optim.SGD with dampening 0, as its documentation states it."""

    def run(p: NDArray, gradients: list[NDArray]) -> Iterator[NDArray]:
        buffer = None
        for g in gradients:
            g = g + weight_decay * p
            if momentum:
                buffer = g if buffer is None else momentum * buffer + g
                g = g + momentum * buffer if nesterov else buffer
            p = p - lr * g
            yield p

    return run


def known_adam(
    lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, l2: float = 0, decay: float = 0
) -> Known:
    """torch.optim.Adam (l2) and AdamW (decay), as their documentation states them."""

    def run(p: NDArray, gradients: list[NDArray]) -> Iterator[NDArray]:
        m, v = np.zeros_like(p), np.zeros_like(p)
        for t, g in enumerate(gradients, 1):
            p = p - lr * decay * p
            g = g + l2 * p
            m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g * g
            p = p - lr * (m / (1 - betas[0] ** t)) / (np.sqrt(v / (1 - betas[1] ** t)) + eps)
            yield p

    return run


def known_adagrad(lr: float, initial: float = 0, eps: float = 1e-10, l2: float = 0) -> Known:
    """torch.optim.Adagrad, as its documentation states it."""

    def run(p: NDArray, gradients: list[NDArray]) -> Iterator[NDArray]:
        square = np.full_like(p, initial)
        for g in gradients:
            g = g + l2 * p
            square = square + g * g
            p = p - lr * g / (np.sqrt(square) + eps)
            yield p

    return run


def known_yogi(lr: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-3, initial: float = 1e-6) -> Known:
    """Algorithm 2 of the paper."""

    def run(p: NDArray, gradients: list[NDArray]) -> Iterator[NDArray]:
        m, v = np.zeros_like(p), np.full_like(p, initial)
        for g in gradients:
            m = betas[0] * m + (1 - betas[0]) * g
            v = v - (1 - betas[1]) * np.sign(v - g * g) * g * g
            p = p - lr * m / (np.sqrt(v) + eps)
            yield p

    return run


def known_rmsprop(lr: float, alpha: float = 0.99, eps: float = 1e-8, momentum: float = 0, l2: float = 0) -> Known:
    """torch.optim.RMSprop, not centred, as its documentation states it."""

    def run(p: NDArray, gradients: list[NDArray]) -> Iterator[NDArray]:
        square, buffer = np.zeros_like(p), np.zeros_like(p)
        for g in gradients:
            g = g + l2 * p
            square = alpha * square + (1 - alpha) * g * g
            buffer = momentum * buffer + g / (np.sqrt(square) + eps)
            p = p - lr * buffer
            yield p

    return run


def known_nadam(
    lr: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, l2: float = 0, psi: float = 4e-3
) -> Known:
    """torch.optim.NAdam, as its documentation states it."""

    def run(p: NDArray, gradients: list[NDArray]) -> Iterator[NDArray]:
        m, v, product = np.zeros_like(p), np.zeros_like(p), 1.0
        for t, g in enumerate(gradients, 1):
            g = g + l2 * p
            now, then = (betas[0] * (1 - 0.5 * 0.96 ** (at * psi)) for at in (t, t + 1))
            product = product * now
            m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g * g
            mean = then * m / (1 - product * then) + (1 - now) * g / (1 - product)
            p = p - lr * mean / (np.sqrt(v / (1 - betas[1] ** t)) + eps)
            yield p

    return run


def known_shampoo(lr: float, decay: float = 1.0, epsilon: float = 1e-4) -> Known:
    """Shampoo as its paper states it, its roots by eigenvalues."""

    def root(moment: NDArray, power: int) -> NDArray:
        damped = moment + epsilon * np.trace(moment) / len(moment) * np.eye(len(moment))
        values, vectors = np.linalg.eigh(damped)
        return (vectors * values ** (-1 / power)) @ vectors.T

    def run(p: NDArray, gradients: list[NDArray]) -> Iterator[NDArray]:
        left, right, square = 0.0, 0.0, np.zeros_like(p)
        for g in gradients:
            if p.ndim < 2:
                square = decay * square + g * g
                p = p - lr * g / (np.sqrt(square) + 1e-8)
            else:
                left, right = decay * left + g @ g.T, decay * right + g.T @ g
                p = p - lr * root(left, 4) @ g @ root(right, 4)
            yield p

    return run


OPTIMIZERS: dict[str, tuple[optim.Optimizer, Known]] = {
    "sgd": (optim.sgd(0.1), known_sgd(0.1)),
    "sgd decay": (optim.sgd(0.1, weight_decay=0.05), known_sgd(0.1, weight_decay=0.05)),
    "momentum": (optim.sgd(0.1, momentum=0.9), known_sgd(0.1, 0.9)),
    "momentum decay": (optim.sgd(0.1, momentum=0.8, weight_decay=0.05), known_sgd(0.1, 0.8, weight_decay=0.05)),
    "nesterov": (optim.sgd(0.1, momentum=0.9, nesterov=True, weight_decay=0.01), known_sgd(0.1, 0.9, True, 0.01)),
    "adam": (optim.adam(0.01), known_adam(0.01)),
    "adam betas": (optim.adam(0.01, beta1=0.5, beta2=0.9, epsilon=1e-3), known_adam(0.01, (0.5, 0.9), 1e-3)),
    "adam l2": (optim.adam(0.01, weight_decay=0.1), known_adam(0.01, l2=0.1)),
    "adamw": (optim.adamw(0.01, weight_decay=0.1), known_adam(0.01, decay=0.1)),
    "adagrad": (optim.adagrad(0.05), known_adagrad(0.05)),
    "adagrad l2": (optim.adagrad(0.05, initial=0.3, weight_decay=0.1), known_adagrad(0.05, 0.3, l2=0.1)),
    "rmsprop": (optim.rmsprop(0.01), known_rmsprop(0.01)),
    "rmsprop momentum": (
        optim.rmsprop(0.01, decay=0.9, epsilon=1e-3, momentum=0.8, weight_decay=0.1),
        known_rmsprop(0.01, 0.9, 1e-3, 0.8, 0.1),
    ),
    "rmsprop packed": (optim.packed(optim.rmsprop(0.01, momentum=0.9)), known_rmsprop(0.01, momentum=0.9)),
    "nadam": (optim.nadam(0.01), known_nadam(0.01)),
    "nadam betas": (
        optim.nadam(0.01, beta1=0.5, beta2=0.9, epsilon=1e-3, weight_decay=0.1, momentum_decay=0.5),
        known_nadam(0.01, (0.5, 0.9), 1e-3, 0.1, 0.5),
    ),
    "nadam packed": (optim.packed(optim.nadam(0.01)), known_nadam(0.01)),
    "yogi": (optim.yogi(0.01), known_yogi(0.01)),
    "yogi betas": (optim.yogi(0.01, beta1=0.5, beta2=0.9, initial=0.04), known_yogi(0.01, (0.5, 0.9), initial=0.04)),
    "yogi packed": (optim.packed(optim.yogi(0.01)), known_yogi(0.01)),
    "adam packed": (optim.packed(optim.adam(0.01)), known_adam(0.01)),
    "adamw packed": (optim.packed(optim.adamw(0.01, weight_decay=0.1)), known_adam(0.01, decay=0.1)),
}
SHAPES = {"0.weight": (3, 4), "0.bias": (4,), "gain": ()}
each = pytest.mark.parametrize(("optimizer", "known"), OPTIMIZERS.values(), ids=OPTIMIZERS)
ON, OFF = np.ones(1, np.float32), np.zeros(1, np.float32)
Dict = dict[str, NDArray]


def numbers(seed: int, scale: float = 1.0) -> Dict:
    rng = np.random.default_rng(seed)
    return {name: np.asarray(rng.normal(size=shape) * scale, np.float32) for name, shape in SHAPES.items()}


def arrays(values: Dict) -> dict[str, Array]:
    return {name: Array(value) for name, value in values.items()}


def plain(values: dict[str, Array]) -> Dict:
    return {name: value.numpy() for name, value in values.items()}


def advance(
    optimizer: optim.Optimizer, grads: Dict, state: Dict, params: Dict, active: NDArray = ON
) -> tuple[Dict, Dict]:
    hyper = {name: np.array([value], np.float32) for name, value in optimizer.hyper.items()}
    moved, after = optimizer.update(arrays(grads), arrays(state), arrays(params), arrays(hyper), Array(active))
    return plain(moved), plain(after)


@each
def test_steps_equal_the_known_answers(optimizer: optim.Optimizer, known: Known):
    params, gradients = numbers(1), [numbers(10 + t) for t in range(12)]
    state = plain(optimizer.init(arrays(params)))
    expected = {
        name: list(known(params[name].astype(np.float64), [g[name].astype(np.float64) for g in gradients]))
        for name in params
    }
    for t, gradient in enumerate(gradients):
        params, state = advance(optimizer, gradient, state, params)
        for name, value in params.items():
            np.testing.assert_allclose(value, expected[name][t], rtol=2e-5, atol=2e-6)
            assert value.shape == SHAPES[name] and value.dtype == np.float32


def bits(values: Dict) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in values.items()}


@each
@settings(max_examples=25)
@given(steps=st.integers(0, 4), seed=st.integers(0, 1000), scale=st.sampled_from([1e-6, 1.0, 1e3]))
def test_an_inactive_step_returns_everything_bit_for_bit(
    optimizer: optim.Optimizer, known: Known, steps: int, seed: int, scale: float
):
    params = numbers(seed)
    state = plain(optimizer.init(arrays(params)))
    for t in range(steps):
        params, state = advance(optimizer, numbers(seed + t, scale), state, params)
    same_params, same_state = advance(optimizer, numbers(seed + 99, scale), state, params, OFF)
    assert bits(same_params) == bits(params) and bits(same_state) == bits(state)


@each
def test_a_parameter_without_gradient_stays(optimizer: optim.Optimizer, known: Known):
    params = numbers(3)
    state = plain(optimizer.init(arrays(params)))
    moved, _ = advance(optimizer, {"gain": np.ones((), np.float32)}, state, params)
    assert bits(moved)["0.weight"] == bits(params)["0.weight"]
    assert moved["gain"] < params["gain"]


@each
def test_a_zero_gradient_never_gives_nan(optimizer: optim.Optimizer, known: Known):
    params = numbers(3)
    state = plain(optimizer.init(arrays(params)))
    zero = {name: np.zeros_like(value) for name, value in params.items()}
    for active in (OFF, ON, OFF, ON):
        params, state = advance(optimizer, zero, state, params, active)
    assert all(np.isfinite(value).all() for value in (params | state).values())


@each
def test_the_update_is_the_same_eager_in_the_reference_and_in_onnx(optimizer: optim.Optimizer, known: Known):
    params = {name: value for name, value in numbers(1).items() if value.ndim}
    state = plain(optimizer.init(arrays(params)))
    groups = {
        "grad": {name: value for name, value in numbers(2).items() if value.ndim},
        "state": state,
        "param": params,
        "hyper": {name: np.array([value], np.float32) for name, value in optimizer.hyper.items()},
    }
    feeds = {f"{group}/{name}": value for group, values in groups.items() for name, value in values.items()} | {
        "active": ON
    }

    def step(inputs: GraphInputs) -> dict[str, Array]:
        def group(which: str) -> dict[str, Array]:
            return {name.partition("/")[2]: array for name, array in inputs.items() if name.startswith(f"{which}/")}

        moved, after = optimizer.update(group("grad"), group("state"), group("param"), group("hyper"), inputs["active"])
        return {f"next/{name}": array for name, array in (moved | after).items()}

    graph = trace_named(step, {name: TensorSpec(value.shape, value.dtype.name) for name, value in feeds.items()})
    eager = advance(optimizer, groups["grad"], state, params)
    reference = evaluate(graph, feeds)
    onnx = Executable(to_onnx(graph, name="update")).run(feeds)
    for name, value in (eager[0] | eager[1]).items():
        np.testing.assert_array_equal(reference[f"next/{name}"], value)
        np.testing.assert_allclose(onnx[f"next/{name}"], value, rtol=1e-5, atol=1e-7)


MISTAKES = [
    (lambda: optim.sgd(-1.0), "sgd: lr must be at least 0"),
    (lambda: optim.sgd(float("nan")), "sgd: lr must be"),
    (lambda: optim.sgd(1e39), "sgd: lr must be at least 0 and below inf in float32, got 1e.39"),
    (lambda: optim.sgd(0.1, momentum=1.0), "momentum must be at least 0 and below 1"),
    (lambda: optim.sgd(0.1, nesterov=True), "nesterov needs momentum"),
    (lambda: optim.adam(beta2=1.0), "adam: beta2 must be"),
    (lambda: cast(Any, optim).sgd("0.1"), "sgd: lr must be at least 0 and below inf in float32, got '0.1'"),
    (lambda: optim.yogi(beta2=1.0), "yogi: beta2 must be"),
    (lambda: optim.yogi(initial=-1.0), "yogi: initial must be"),
    (lambda: optim.rmsprop(decay=1.0), "rmsprop: decay must be"),
    (lambda: optim.nadam(momentum_decay=-1.0), "nadam: momentum_decay must be"),
    (lambda: optim.adagrad(epsilon=0.0), "adagrad: epsilon must be at least 1e-30"),
    (lambda: optim.adamw(epsilon=0.0), "adamw: epsilon must be at least 1e-30"),
    (lambda: optim.shampoo(decay=0.0), "shampoo: decay must be above 0 and at most 1"),
    (lambda: optim.shampoo(epsilon=0.0), "shampoo: epsilon must be at least 1e-07"),
    (lambda: optim.shampoo(decay="1"), "shampoo: decay must be above 0 and at most 1, got '1'"),  # pyright: ignore[reportArgumentType]
    (lambda: optim.shampoo(largest=2.5), "shampoo: largest must be a whole number of at least 1, got 2.5"),  # pyright: ignore[reportArgumentType]
    (lambda: optim.shampoo(largest=0), "shampoo: largest must be a whole number of at least 1"),
    (lambda: optim.step_decay(1, factor=0.5, every=0), "every must be a whole number of at least 1"),
    (lambda: optim.cosine(1, length=0), "length must be a whole number of at least 1"),
    (lambda: optim.warmup(optim.constant(1), length=0), "length must be a whole number of at least 1"),
]


@pytest.mark.parametrize(("make", "reason"), MISTAKES, ids=[reason for _, reason in MISTAKES])
def test_mistakes_are_named(make: Callable[[], object], reason: str):
    with pytest.raises(InputError, match=reason):
        make()


SCHEDULES = [
    (optim.constant(0.3), [0.3, 0.3, 0.3]),
    (optim.step_decay(8, factor=0.5, every=2), [8, 8, 4, 4, 2]),
    (optim.cosine(2, length=4), [2, 1 + 0.5**0.5, 1, 1 - 0.5**0.5, 0, 0]),
    (optim.cosine(2, length=2, final=1), [2, 1.5, 1, 1]),
    (optim.warmup(optim.constant(4), length=3), [1, 2, 3, 4, 4]),
    (optim.warmup(optim.step_decay(4, factor=0.5, every=1), length=1), [2, 4, 2, 1]),
]


@pytest.mark.parametrize(("schedule", "expected"), SCHEDULES)
def test_schedules_give_their_numbers(schedule: optim.Schedule, expected: list[float]):
    assert [schedule(number) for number in range(len(expected))] == pytest.approx(expected, abs=1e-12)


@settings(max_examples=30)
@given(
    shapes=st.lists(st.sampled_from([(), (1,), (7,), (3, 4), (2, 3, 2), (300, 300)]), max_size=6),
    steps=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_packing_changes_no_bit_of_an_update(shapes: list[tuple[int, ...]], steps: int, seed: int):
    """Any mixture of small and large tensors: the same parameters, and in the state the same numbers, joined."""
    rng = np.random.default_rng(seed)

    def draw() -> Dict:
        return {f"p{i}": np.asarray(rng.normal(size=shape), np.float32) for i, shape in enumerate(shapes)}

    params, plain_rule, joined_rule = draw(), optim.adam(0.01), optim.packed(optim.adam(0.01))
    joined = params
    state, joined_state = (plain(rule.init(arrays(params))) for rule in (plain_rule, joined_rule))
    for _ in range(steps):
        gradients = draw()
        params, state = advance(plain_rule, gradients, state, params)
        joined, joined_state = advance(joined_rule, gradients, joined_state, joined)
        assert bits(joined) == bits(params)
    small = [name for name in params if params[name].size <= 1 << 16]
    if len(small) >= 3:
        for what in ("first", "second"):
            expected = np.concatenate([state[f"{name}.{what}"].reshape(-1) for name in small])
            np.testing.assert_array_equal(joined_state[f"packed.{what}"], expected)
    else:
        assert bits(joined_state) == bits(state)


def test_only_optimizers_that_gain_by_it_are_packed():
    for rule in (optim.sgd(0.1), optim.sgd(0.1, momentum=0.9)):
        assert optim.packed(rule) is rule
    assert optim.packed(optim.adam()) is not optim.adam()
    state = optim.packed(optim.adam()).init(arrays(numbers(0) | {"packed": np.zeros(2, np.float32)}))
    assert "packed_.first" in state and state["packed_.first"].shape == (19,)


def test_numbers_of_numpy_are_numbers() -> None:
    params = {"w": Array(np.ones(3, np.float32))}
    rule = optim.adam(np.float32(0.1), weight_decay=np.float64(0.5))  # pyright: ignore[reportArgumentType]
    assert rule.hyper["lr"] == np.float32(0.1) and rule.init(params).keys() == optim.adam(0.1).init(params).keys()


W, HYPER, ACTIVE = {"w": Array(np.ones(3, np.float32))}, {"lr": Array(np.ones(1, np.float32))}, Array(np.ones(1))
HYPERS = HYPER | dict.fromkeys((*optim.adam().hyper, "momentum"), HYPER["lr"])
MISUSES: list[tuple[Callable[[], object], str]] = [
    (lambda: optim.sgd(0.1).update(W, {}, W, {}, ACTIVE), "sgd: hyper lacks lr; it has nothing.*optimizer.hyper"),
    (lambda: optim.sgd(0.1).update(W, {}, W, {"rate": ACTIVE}, ACTIVE), "sgd: hyper lacks lr; it has rate"),
    (lambda: optim.adam().update(W, {}, W, HYPERS, ACTIVE), r"state .* lacks 'adam.first_correction'.*init\(params\)"),
    (lambda: optim.sgd(0.1, momentum=0.9).update(W, {}, W, HYPERS, ACTIVE), "lacks 'w.momentum'"),
    (lambda: optim.sgd(0.1).update(W | {"v": ACTIVE}, {}, W, HYPER, ACTIVE), "gradients of v, which are no parameters"),
    (
        lambda: optim.sgd(0.1).update({"w": ACTIVE}, {}, W, HYPER, ACTIVE),
        r"gradient of 'w' is \[1\].*parameter is \[3\]",
    ),
    (lambda: optim.sgd(0.1).update(cast(Any, ACTIVE), {}, W, HYPER, ACTIVE), "grads must be arrays by name.*The order"),
    (lambda: optim.adam().init(cast(Any, ACTIVE)), "init takes parameters by name, got a Array"),
]


@pytest.mark.parametrize(("call", "reason"), MISUSES, ids=[reason for _, reason in MISUSES])
def test_a_wrong_call_of_an_optimizer_names_the_line_and_a_fix(call: Callable[[], object], reason: str) -> None:
    with pytest.raises(InputError, match=rf"test_optimizers.py:\d+: .*{reason}"):
        call()
