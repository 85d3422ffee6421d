"""Scripts written for MindSpore run with only their imports changed (B1, B4, B5, A10, A13)."""

# Scripts as their authors write them, without types.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false, reportMissingTypeArgument=false

from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.compute import mindspore as ms
from coterie.compute.array import Array
from coterie.compute.interactive.mode import use_mode
from coterie.compute.mindspore import Parameter, Tensor, nn, ops
from coterie.compute.mindspore.dataset import NumpySlicesDataset
from coterie.compute.mindspore.initializer import initializer
from coterie.errors import ArgumentTypeError, ArgumentValueError, InputError, ShapeError, TraceError

RNG = np.random.default_rng(5)
X = RNG.normal(size=(16, 6)).astype(np.float32)
Y = RNG.integers(0, 3, 16).astype(np.int32)


@pytest.fixture(params=["graph", "eager"])
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    with use_mode(request.param):
        yield request.param


class Linear(nn.Cell):
    def __init__(self, in_features, out_features, has_bias=True):
        super().__init__()
        self.has_bias = has_bias
        self.weight = Parameter(initializer("normal", [out_features, in_features]), name="weight")
        self.matmul = ops.MatMul(transpose_b=True)
        if self.has_bias:
            self.bias = Parameter(initializer("zeros", [out_features]), name="bias")
            self.bias_add = ops.Add()

    def construct(self, x):
        output = self.matmul(x, self.weight)
        if self.has_bias:
            output = self.bias_add(output, self.bias)
        return output


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first = Linear(6, 8)
        self.rest = nn.SequentialCell(nn.ReLU(), nn.Dense(8, 3))

    def construct(self, x):
        return self.rest(self.first(x))


@pytest.mark.capability("B1")
def test_parameters_of_nested_cells_are_named_by_their_attributes(mode: str) -> None:
    net = Network()
    names = [p.name for p in net.trainable_params()]
    assert names == ["first.weight", "first.bias", "rest.1.weight", "rest.1.bias"]
    assert [name for name, _ in net.cells_and_names()] == ["", "first", "rest", "rest.0", "rest.1"]
    weight, bias = net.first.weight.asnumpy(), net.first.bias.asnumpy()
    np.testing.assert_allclose(net.first(Tensor(X)).asnumpy(), X @ weight.T + bias, rtol=1e-5, atol=1e-6)
    assert isinstance(net(Tensor(X)), Tensor) and net(Tensor(X)).shape == (16, 3)


@pytest.mark.capability("B1")
def test_two_parameters_of_one_name_are_refused() -> None:
    class Twins(nn.Cell):
        def __init__(self):
            super().__init__()
            self.a = Parameter(np.zeros(3, np.float32), name="w")
            self.b = Parameter(np.zeros(3, np.float32), name="w")

    class Shadowed(nn.Cell):
        def __init__(self):
            super().__init__()
            self.fake = Parameter(np.zeros(3, np.float32), name="dense.weight")
            self.dense = nn.Dense(2, 2)

    for kind, name in ((Twins, "'w'"), (Shadowed, "'dense.weight'")):
        with pytest.raises(ValueError, match=f"{kind.__name__} has two parameters named {name}"):
            kind()
    with pytest.raises(ArgumentValueError, match="two parameters named 'weight'"):
        nn.SGD([*Linear(2, 2).trainable_params(), *Linear(2, 2).trainable_params()])

    class Early(nn.Cell):
        def __init__(self):
            self.dense = nn.Dense(2, 2)

    with pytest.raises(InputError, match=r"super\(\).__init__\(\) first"):
        Early()


def test_a_shared_cell_is_one_and_frozen_parameters_are_not_trained() -> None:
    net = Network()
    net.again = net.first
    net.first.weight.requires_grad = False
    assert [p.name for p in net.trainable_params()] == ["first.bias", "rest.1.weight", "rest.1.bias"]
    assert [p.name for p in net.untrainable_params()] == ["first.weight"]
    assert list(net.parameters_dict()) == ["first.weight", "first.bias", "rest.1.weight", "rest.1.bias"]


@pytest.mark.capability("B5")
def test_the_script_of_the_tutorial_runs_with_its_imports_changed(mode: str, tmp_path: Path) -> None:
    ms.set_seed(3)
    model = Network()
    loss_fn = nn.CrossEntropyLoss()
    optimizer = nn.SGD(model.trainable_params(), 0.5)

    # Define forward function
    def forward_fn(data, label):
        logits = model(data)
        loss = loss_fn(logits, label)
        return loss, logits

    # Get gradient function
    grad_fn = ms.value_and_grad(forward_fn, None, optimizer.parameters, has_aux=True)

    # Define function of one-step training
    def train_step(data, label):
        (loss, _), grads = grad_fn(data, label)
        optimizer(grads)
        return loss

    def train(model, dataset):
        model.set_train()
        losses = []
        for _, (data, label) in enumerate(dataset.create_tuple_iterator()):
            loss = train_step(data, label)
            losses.append(loss.asnumpy())
        return losses

    def test(model, dataset, loss_fn):
        num_batches = dataset.get_dataset_size()
        model.set_train(False)
        total, test_loss, correct = 0, 0, 0
        for data, label in dataset.create_tuple_iterator():
            pred = model(data)
            total += len(data)
            test_loss += loss_fn(pred, label).asnumpy()
            correct += (pred.argmax(1) == label).asnumpy().sum()
        return correct / total, test_loss / num_batches

    dataset = NumpySlicesDataset((X, Y), ["data", "label"], shuffle=False).batch(8)
    before = test(model, dataset, loss_fn)
    told = [loss for _ in range(40) for loss in train(model, dataset)]
    accuracy, loss = test(model, dataset, loss_fn)
    assert len(told) == 80 and loss < 0.5 * before[1] and accuracy > 0.8

    ms.save_checkpoint(model, tmp_path / "model.ckpt")
    other = Network()
    assert ms.load_param_into_net(other, ms.load_checkpoint(tmp_path / "model.ckpt")) == ([], [])
    assert test(other, dataset, loss_fn) == (accuracy, loss)


@pytest.mark.capability("B5")
def test_the_whole_step_is_one_graph_whose_parameters_are_inputs() -> None:
    ms.set_seed(4)
    model, loss_fn = Network(), nn.CrossEntropyLoss()
    optimizer = nn.Adam(model.trainable_params(), 0.01)
    grad_fn = ms.value_and_grad(lambda d, y: loss_fn(model(d), y), None, optimizer.parameters)

    @ms.jit(fullgraph=True)
    def train_step(data, label):
        loss, grads = grad_fn(data, label)
        optimizer(grads)
        return loss

    losses = [float(train_step(Tensor(X), Tensor(Y))) for _ in range(30)]
    assert train_step.compilations == 1 and losses[-1] < 0.8 * losses[0]
    assert optimizer.global_step.asnumpy().tolist() == [30]
    for parameter in model.trainable_params():
        parameter.set_data(np.zeros(parameter.shape, np.float32))
    assert float(train_step(Tensor(X), Tensor(Y))) == pytest.approx(np.log(3), rel=1e-5)  # it reads them anew
    assert train_step.compilations == 1


@pytest.mark.capability("B4")
@pytest.mark.parametrize("rule", ["SGD", "Momentum", "Adam", "AdamWeightDecay"])
def test_the_step_made_of_cells_is_the_functional_step_bit_for_bit(mode: str, rule: str) -> None:
    def made() -> tuple[Any, Any, Any]:
        ms.set_seed(7)
        model = Network()
        options: dict[str, Any] = {"momentum": 0.9} if rule == "Momentum" else {}
        return model, nn.CrossEntropyLoss(), getattr(nn, rule)(model.trainable_params(), 0.1, **options)

    model, loss_fn, optimizer = made()
    cells = nn.TrainOneStepCell(nn.WithLossCell(model, loss_fn), optimizer)
    cells.set_train()
    other, loss_of, step_of = made()

    @ms.jit
    def functional(data, label):
        loss, grads = ms.value_and_grad(lambda d, y: loss_of(other(d), y), None, step_of.parameters)(data, label)
        step_of(grads)
        return loss

    for _ in range(3):
        assert cells(Tensor(X), Tensor(Y)).asnumpy().tobytes() == functional(Tensor(X), Tensor(Y)).asnumpy().tobytes()
    for a, b in zip(model.get_parameters(), other.get_parameters(), strict=True):
        assert a.name == b.name and a.asnumpy().tobytes() == b.asnumpy().tobytes()


def test_a_sensitivity_and_the_loss_scale_undo_each_other() -> None:
    results = []
    for scale in (1.0, 1024.0):
        ms.set_seed(8)
        model = Network()
        optimizer = nn.SGD(model.trainable_params(), 0.1, loss_scale=scale)
        nn.TrainOneStepCell(nn.WithLossCell(model, nn.CrossEntropyLoss()), optimizer, sens=scale)(Tensor(X), Tensor(Y))
        results.append([p.asnumpy() for p in model.get_parameters()])
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.matmul = ops.MatMul()
        self.z = Parameter(Tensor(np.array([1.0], np.float32)), name="z")

    def construct(self, x, y):
        x = x * self.z
        return self.matmul(x, y)


class GradNet(nn.Cell):
    def __init__(self, net, **options):
        super().__init__()
        self.net = net
        self.grad_op = ops.GradOperation(**options)

    def construct(self, *inputs):
        return self.grad_op(self.net)(*inputs)


A = Tensor([[0.8, 0.6, 0.2], [1.8, 1.3, 1.1]], dtype=ms.float32)
B = Tensor([[0.11, 3.3, 1.1], [1.1, 0.2, 1.4], [1.1, 2.2, 0.3]], dtype=ms.float32)


@pytest.mark.capability("A10")
def test_grad_operation_gives_the_gradients_of_the_example(mode: str) -> None:
    by_x = [[4.51, 2.7, 3.6], [4.51, 2.7, 3.6]]
    by_y = [[2.6, 2.6, 2.6], [1.9, 1.9, 1.9], [1.3, 1.3, 1.3]]
    np.testing.assert_allclose(GradNet(Net())(A, B).asnumpy(), by_x, rtol=1e-5)
    first, second = GradNet(Net(), get_all=True)(A, B)
    np.testing.assert_allclose(first.asnumpy(), by_x, rtol=1e-5)
    np.testing.assert_allclose(second.asnumpy(), by_y, rtol=1e-5)
    (by_z,) = GradNet(Net(), get_by_list=True)(A, B)
    assert by_z.asnumpy()[0] == pytest.approx(float(np.sum(A.numpy() @ B.numpy())), rel=1e-5)
    both = GradNet(Net(), get_all=True, get_by_list=True)(A, B)
    assert [len(part) for part in both] == [2, 1]
    sens = Tensor(np.array([[0.1, 0.6, 0.2], [0.8, 1.3, 1.1]], np.float32))
    told = GradNet(Net(), sens_param=True)(A, B, sens)
    np.testing.assert_allclose(told.asnumpy(), [[2.211, 0.51, 1.49], [5.588, 2.68, 4.07]], rtol=1e-5)


@pytest.mark.capability("B6")
def test_the_quirks_of_results_are_kept(mode: str) -> None:
    x, w = Tensor(np.ones(5, np.float32)), Parameter(np.full(5, 0.5, np.float32), "w")

    def forward(x):
        z = x * w
        return (z * z).sum(), z

    # Without has_aux all outputs are summed; what is no scalar gets ones.
    np.testing.assert_allclose(ms.grad(forward)(x).asnumpy(), np.full(5, 2 * 0.25 + 0.5))
    gradients, aux = ms.grad(forward, has_aux=True)(x)
    np.testing.assert_allclose(gradients.asnumpy(), np.full(5, 0.5))
    assert isinstance(aux, tuple) and len(aux) == 1 and isinstance(aux[0], Tensor)
    (value, again), (by_x, by_w) = ms.value_and_grad(forward, 0, [w], has_aux=True)(x)
    assert value.asnumpy() == 1.25 and again.shape == (5,) and by_x.shape == (5,) and len(by_w) == 1
    assert ms.grad(forward, None, w, has_aux=True)(x)[0].shape == (5,)  # one weight, no sequence: no tuple
    assert [name for name, _ in ms.grad(forward, None, [w], has_aux=True, return_ids=True)(x)[0]] == ["w"]
    position, gradient = ms.grad(forward, 0, return_ids=True)(x)
    assert position == 0 and gradient.shape == (5,)
    one, two = ms.grad(lambda a, b: a * b, (1, 0))(x, 2.0 * x)
    assert one.asnumpy().tolist() == [1.0] * 5 and two.asnumpy().tolist() == [2.0] * 5


@pytest.mark.capability("B6")
def test_wrong_positions_raise_pythons_kinds(mode: str) -> None:
    x = Tensor(np.ones(2, np.float32))
    for position in (-1, (0, 0), None):
        with pytest.raises(ValueError):
            ms.grad(lambda a: a.sum(), position)(x)  # type: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="only 1 arguments"):
        ms.grad(lambda a: a.sum(), 1)(x)
    for position in ("0", 0.5, True):
        with pytest.raises(TypeError):
            ms.grad(lambda a: a.sum(), position)(x)  # type: ignore[reportArgumentType]
    with pytest.raises(ArgumentTypeError):
        ms.grad(3)  # type: ignore[reportArgumentType]


def test_a_cell_can_bring_its_own_gradient(mode: str) -> None:
    class Doubled(nn.Cell):
        def construct(self, x):
            return x * x

        def bprop(self, x, out, dout):
            return 10.0 * dout

    assert ms.grad(Doubled())(Tensor([1.0, 2.0])).asnumpy().tolist() == [10.0, 10.0]


def test_decisions_on_tensors_work_in_construct(mode: str) -> None:
    class Base(nn.Cell):
        def construct(self, x):
            return x * 3.0

    class Chosen(Base):
        def construct(self, x):
            if x.sum() > 0:
                y = super().construct(x)
            else:
                y = -x
            while y.sum() < 100.0:
                y = y * 2.0
            return y

    for point in ([1.0, 2.0], [-1.0, -2.0]):
        plain = np.asarray(point) * (3.0 if sum(point) > 0 else -1.0)
        factor = 1.0
        while plain.sum() * factor < 100:
            factor *= 2
        np.testing.assert_allclose(Chosen()(Tensor(point)).asnumpy(), plain * factor, rtol=1e-6)
        expected = factor * (3.0 if sum(point) > 0 else -1.0)
        assert ms.grad(Chosen())(Tensor(point)).asnumpy().tolist() == [expected, expected]


def test_writes_inside_of_a_gradient_are_carried_out(mode: str) -> None:
    class Counting(nn.Cell):
        def __init__(self):
            super().__init__()
            self.seen = Parameter(np.zeros((1,), np.float32), requires_grad=False)
            self.w = Parameter(np.ones((1,), np.float32))

        def construct(self, x):
            self.seen.set_data(self.seen + 1.0)
            return (x * self.w * self.seen).sum()

    net = Counting()
    gradient = ms.value_and_grad(net, None, net.trainable_params())
    for count in (1.0, 2.0):
        value, (by_w,) = gradient(Tensor([2.0]))
        assert (float(value), by_w.asnumpy().tolist(), net.seen.asnumpy().tolist()) == (2 * count, [2 * count], [count])

    @ms.jit(fullgraph=True)
    def twice(x):
        net(x)
        return net(x) + gradient(x)[0]

    assert float(twice(Tensor([2.0]))) == 8.0 + 10.0 and net.seen.asnumpy().tolist() == [5.0]


def test_what_a_parameter_cannot_be_is_refused() -> None:
    parameter = Parameter(np.zeros(3, np.float32), "p")
    with pytest.raises(ShapeError, match=r"'p' is float32\[3\] and cannot become float32\[2\]"):
        parameter.set_data(np.zeros(2, np.float32))

    def baked(x):
        return x * float(parameter.sum())

    with pytest.raises(TraceError):
        ms.jit(baked, fullgraph=True)(Tensor([1.0]))
    fallback = ms.jit(baked)
    assert fallback(Tensor([1.0])).asnumpy().tolist() == [0.0] and len(fallback.fallbacks) == 1

    def branching(x):
        if x.sum() > 0:
            y = parameter.set_data(x) + 1.0
        else:
            y = x
        return y

    with pytest.raises(TraceError, match=r"test_script.py:\d+: the parameter 'p' is written where a graph cannot"):
        ms.jit(branching, fullgraph=True)(Tensor([1.0, 2.0, 3.0]))
    ms.jit(branching)(Tensor([1.0, 2.0, 3.0]))
    assert parameter.asnumpy().tolist() == [1.0, 2.0, 3.0]


def test_a_host_fallback_leaves_no_symbol_in_a_parameter() -> None:
    parameter = Parameter(np.zeros(1, np.float32), "p")

    def step(x):
        parameter.set_data(parameter + x)
        return float(parameter.numpy()[0])

    compiled = ms.jit(step)
    assert [float(compiled(Tensor([2.0]))) for _ in range(3)] == [2.0, 4.0, 6.0]
    assert parameter.recorder is None


def test_the_example_learns_the_digits() -> None:
    path = Path(__file__).parents[3] / "examples" / "mindspore_style.py"
    spec = spec_from_file_location("mindspore_style", path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.main(epochs=5) > 0.85


def test_arrays_of_coterie_and_tensors_mix(mode: str) -> None:
    both = Tensor([1.0, 2.0]) + Array(np.asarray([1.0, 1.0], np.float32))
    assert isinstance(both, Tensor) and isinstance(np.tanh(both), Tensor) and isinstance(both[0], Tensor)
    assert ops.relu(Array(np.asarray([-1.0], np.float32))).asnumpy().tolist() == [0.0]
    assert Tensor([[1, 2]]).dtype == ms.int64 and Tensor([[1, 2]]).T.shape == (2, 1)
