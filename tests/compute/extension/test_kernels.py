"""Kernels: chosen by dtype and device, planned by the sizes that they report, and caught when they lie."""

# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest

from coterie.compute import Array, Registry, TensorSpec, jit, primitive, register_kernel, trace, use_registry
from coterie.compute import numpy as cnp
from coterie.compute.extension.kernels import Requirements, requirements
from coterie.compute.extension.registry import active_registry
from coterie.compute.extension.row import UserPrimitive
from coterie.compute.ir import NDArray, Type
from coterie.compute.memory.lifetimes import lifetimes
from coterie.errors import InputError
from tests.compute.extension.primitives import bare


@pytest.fixture(autouse=True)
def registry() -> Any:
    with use_registry(Registry()) as held:
        yield held


def twice() -> UserPrimitive:
    """A primitive that has no kernel of its own."""
    return bare("test.twice")


class Twice:
    """An honest kernel, which doubles by way of its workspace."""

    made = 0

    def init(self, inputs: tuple[Type, ...], attributes: Any) -> None:
        Twice.made += 1
        self.bytes = inputs[0].size * np.dtype(inputs[0].dtype).itemsize

    def input_bytes(self) -> Sequence[int]:
        return [self.bytes]

    def output_bytes(self) -> Sequence[int]:
        return [self.bytes]

    def workspace_bytes(self) -> Sequence[int]:
        return [self.bytes, 8]

    def launch(self, inputs: Sequence[NDArray], workspace: Sequence[NDArray], outputs: Sequence[NDArray]) -> None:
        scratch = workspace[0].view(inputs[0].dtype).reshape(inputs[0].shape)
        np.copyto(scratch, inputs[0])
        np.add(scratch, inputs[0], out=outputs[0])


V = np.asarray([1.0, 2.0, 3.0], np.float32)


@pytest.mark.capability("E2")
def test_e2_a_kernel_is_prepared_once_for_a_signature_and_the_planner_uses_its_sizes() -> None:
    row = twice()
    register_kernel(row, "float32", Twice)
    made = Twice.made
    for _ in range(3):
        assert row(V).numpy().tolist() == [2.0, 4.0, 6.0]
    assert Twice.made == made + 1
    assert row(np.ones((2, 2), np.float32)).numpy().tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert Twice.made == made + 2
    type_ = Type("float32", (3,))
    assert requirements(row, [type_], [type_]) == Requirements((12,), (12,), (12, 8))
    graph = trace(lambda x: row(x + 1.0), TensorSpec((3,))).graph
    (scratch,) = [block for block in lifetimes(graph) if block.start == block.end and block.kind == "temporary"]
    assert scratch.bytes == 20
    plain = bare("test.plain", kernel=lambda x: x + x)
    assert requirements(plain, [type_], [type_]) == Requirements((12,), (12,))


class WrongInputs(Twice):
    def input_bytes(self) -> Sequence[int]:
        return [self.bytes + 4]


class WrongOutputs(Twice):
    def output_bytes(self) -> Sequence[int]:
        return [self.bytes // 2]


class NoSizes(Twice):
    def workspace_bytes(self) -> Any:
        return [-1]


class SizeOfAString(Twice):
    def workspace_bytes(self) -> Any:
        return "much"


class BeyondWorkspace(Twice):
    def launch(self, inputs: Sequence[NDArray], workspace: Sequence[NDArray], outputs: Sequence[NDArray]) -> None:
        np.lib.stride_tricks.as_strided(workspace[0], (workspace[0].size + 16,), (1,))[:] = 7
        np.add(inputs[0], inputs[0], out=outputs[0])


class BeforeOutput(Twice):
    def launch(self, inputs: Sequence[NDArray], workspace: Sequence[NDArray], outputs: Sequence[NDArray]) -> None:
        np.add(inputs[0], inputs[0], out=outputs[0])
        np.lib.stride_tricks.as_strided(outputs[0], (2,), (-4,))[1] = 7


class HalfWritten(Twice):
    def launch(self, inputs: Sequence[NDArray], workspace: Sequence[NDArray], outputs: Sequence[NDArray]) -> None:
        outputs[0][:2] = 2 * inputs[0][:2]


class ReadsScratch(Twice):
    def launch(self, inputs: Sequence[NDArray], workspace: Sequence[NDArray], outputs: Sequence[NDArray]) -> None:
        outputs[0][:] = inputs[0] * 2 + workspace[0][0]


class KeepsCount(Twice):
    launches = 0

    def launch(self, inputs: Sequence[NDArray], workspace: Sequence[NDArray], outputs: Sequence[NDArray]) -> None:
        self.launches += 1
        outputs[0][:] = inputs[0] * self.launches


class WritesOperand(Twice):
    def launch(self, inputs: Sequence[NDArray], workspace: Sequence[NDArray], outputs: Sequence[NDArray]) -> None:
        outputs[0][:] = 2 * inputs[0]
        inputs[0][0] = 0


class WritesOperandByForce(Twice):
    def launch(self, inputs: Sequence[NDArray], workspace: Sequence[NDArray], outputs: Sequence[NDArray]) -> None:
        outputs[0][:] = 2 * inputs[0]
        inputs[0].base[0] += 1  # type: ignore[index]


class Fails(Twice):
    def launch(self, inputs: Sequence[NDArray], workspace: Sequence[NDArray], outputs: Sequence[NDArray]) -> None:
        raise RuntimeError("no such instruction")


class CannotBeMade(Twice):
    def __init__(self) -> None:
        raise OSError("no library")


LIARS: list[tuple[type[Twice], str]] = [
    (WrongInputs, r"reports input_bytes \[16\], and they are \[12\]"),
    (WrongOutputs, r"reports output_bytes \[6\], and they are \[12\]"),
    (NoSizes, "sizes in bytes"),
    (SizeOfAString, "sizes in bytes"),
    (BeyondWorkspace, "writes beyond workspace 0"),
    (BeforeOutput, "writes beyond y"),
    (HalfWritten, "leaves part of y unwritten"),
    (ReadsScratch, "unwritten, or is not deterministic"),
    (KeepsCount, "not deterministic"),
    (WritesOperand, "writes to an operand"),
    (WritesOperandByForce, "writes to an operand"),
    (Fails, r"kernel failed: RuntimeError: no such instruction \(.*test_kernels.py:\d+\)"),
    (CannotBeMade, "OSError: no library"),
]


@pytest.mark.capability("E2")
@pytest.mark.parametrize(("liar", "message"), LIARS, ids=[liar.__name__ for liar, _ in LIARS])
def test_e2_a_kernel_that_lies_is_found_out(liar: type[Twice], message: str) -> None:
    row = twice()
    register_kernel(row, "float32", liar)
    for _ in range(2):  # it is not trusted the second time either
        with pytest.raises(InputError, match=f"'test.twice' is broken: .*{message}") as caught:
            row(V.copy())
        assert caught.value.reason == "primitive_broken"


def marked(number: float) -> Any:
    return lambda x, y: np.full_like(x, number)


@pytest.mark.capability("E3")
def test_e3_dispatch_picks_the_kernel_of_the_dtypes_and_names_what_is_missing() -> None:
    row = primitive("test.pair", inputs=("x", "y"))(
        type("pair", (), {"infer_shape": staticmethod(lambda x, y: x), "infer_dtype": staticmethod(lambda x, y: x)})
    )
    register_kernel(row, "float32", marked(1))
    register_kernel(row, ("int32", "float32"), marked(2))
    f, i, h = (np.zeros(2, dtype) for dtype in ("float32", "int32", "float16"))
    assert row(f, f).numpy().tolist() == [1.0, 1.0]
    assert row(i, f).numpy().tolist() == [2, 2]
    for operands, dtypes in (((f, i), "float32, int32"), ((h, h), "float16, float16")):
        with pytest.raises(
            InputError,
            match=rf"'test.pair' has no kernel for \({dtypes}\); it has \(float32, float32\); "
            r"\(int32, float32\).*register_kernel",
        ) as caught:
            row(*operands)
        assert caught.value.reason == "kernel_missing"


def test_a_registered_kernel_wins_over_the_own_one_and_that_over_the_lowering() -> None:
    row = bare("test.three", lower=lambda x: x * 3.0)
    assert row(V).numpy().tolist() == [3.0, 6.0, 9.0]
    row = bare("test.two", kernel=lambda x: x * np.float32(2), lower=lambda x: x * 3.0)
    assert row(V).numpy().tolist() == [2.0, 4.0, 6.0]
    register_kernel(row, "float32", lambda x: x * np.float32(5))
    assert row(V).numpy().tolist() == [5.0, 10.0, 15.0]
    with use_registry(Registry()):
        assert row(V).numpy().tolist() == [2.0, 4.0, 6.0]
    assert jit(lambda x: row(x))(V).numpy().tolist() == [3.0, 6.0, 9.0]  # a file knows the lowering alone


WRONG: list[tuple[Any, str]] = [
    (lambda row: register_kernel("test.none", "float32", np.copy), "No primitive 'test.none' is registered"),
    (lambda row: register_kernel(row, ("float32", "float32"), np.copy), "cannot take"),
    (lambda row: register_kernel(row, "bfloat16", np.copy), "cannot take"),
    (lambda row: register_kernel(row, "float32", cast(Any, Twice())), "an object of Twice"),
    (lambda row: [register_kernel(row, "int32", k) for k in (np.copy, np.abs)], "already has a kernel"),
]


@pytest.mark.parametrize(("act", "message"), WRONG, ids=[w[1] for w in WRONG])
def test_a_registration_that_makes_no_sense_is_refused(act: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        act(twice())


def test_registering_the_same_again_changes_nothing() -> None:
    row = active_registry().register(twice())
    for _ in range(2):
        active_registry().register(row)
        register_kernel("test.twice", "float32", Twice)
    assert list(active_registry().primitives) == ["test.twice"] and len(active_registry().kernels) == 1
    with pytest.raises(InputError, match="already registered") as caught:
        active_registry().register(twice())
    assert caught.value.reason == "name_taken"


def test_results_of_a_kernel_are_arrays_of_their_own() -> None:
    row = twice()
    register_kernel(row, "float32", Twice)
    first, second = row(V), row(V * 2)
    assert first.numpy().tolist() == [2.0, 4.0, 6.0] and second.numpy().tolist() == [4.0, 8.0, 12.0]
    assert row(Array(np.zeros((0,), np.float32))).shape == (0,)
    assert float(cnp.sum(row(V))) == 12.0
