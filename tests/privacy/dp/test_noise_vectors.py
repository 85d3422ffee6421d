"""protocol/vectors/distributed_noise.json from the file alone: by this implementation, and by the definitions."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from coterie import errors
from coterie.privacy.dp import spread
from coterie.privacy.dp.distributed import DistributedNoise, decode, encode, event
from coterie.privacy.dp.noise.conditional_rounding import largest_square
from coterie.privacy.dp.noise.source import NoiseSource

FILE: dict[str, Any] = json.loads(
    (Path(__file__).parents[3] / "protocol" / "vectors" / "distributed_noise.json").read_text("ascii")
)


def cases(key: str) -> list[Any]:
    return [pytest.param(case, id=f"{key}-{index}") for index, case in enumerate(FILE[key])]


def by_definition(vector: list[int], stride: int, padded: int, shared: bytes) -> npt.NDArray[np.float64]:
    """Dealing and rotation as the file says them, with whole matrices of Sylvester's order."""
    cipher = Cipher(algorithms.AES(hashlib.sha256(shared + b"rotate").digest()), modes.CTR(bytes(16))).encryptor()
    bits = np.unpackbits(np.frombuffer(cipher.update(bytes(512)), np.uint8), bitorder="little")
    dealt = np.zeros(padded)
    dealt[: len(vector)] = [vector[i * stride % len(vector)] for i in range(len(vector))]
    sizes = [4096] * (padded // 4096) + [1 << k for k in range(11, 5, -1) if padded % 4096 >> k & 1]
    assert sum(sizes) == padded
    found: list[npt.NDArray[np.float64]] = []
    for size in sizes:
        block, dealt = dealt[:size], dealt[size:]
        matrix = np.ones((1, 1))
        while len(matrix) < size:
            matrix = np.block([[matrix, matrix], [matrix, -matrix]])
        found.append(matrix @ (np.where(bits[:size] == 1, -1.0, 1.0) * block) / np.sqrt(size))
    return np.concatenate(found)


@pytest.mark.parametrize("case", cases("spreads"))
def test_spreading(case: Any) -> None:
    vector, shared = np.array(case["vector"], np.float64), bytes.fromhex(case["shared"])
    assert spread.stride(case["length"]) == case["stride"]
    assert spread.padded(case["length"]) == case["padded"]
    assert np.allclose(spread.spread(vector, shared), case["spread"], rtol=0, atol=1e-9)
    meant = by_definition(case["vector"], case["stride"], case["padded"], shared)
    assert np.allclose(meant, case["spread"], rtol=0, atol=1e-9)


@pytest.mark.parametrize("case", cases("bounds"))
def test_the_bound_after_rounding(case: Any) -> None:
    assert largest_square(case["norm"], case["length"]) == case["square"]


@pytest.mark.parametrize("case", cases("encodings"))
def test_clients_and_their_sum(case: Any) -> None:
    terms, shared = DistributedNoise(**case["terms"]), bytes.fromhex(case["shared"])
    assert terms.square == case["square"]
    assert event(terms).rho == pytest.approx(case["rho"], rel=1e-12)
    vector = np.array(case["vector"], np.float64)
    for key, numbers in zip(case["keys"], case["numbers"], strict=True):
        assert encode(vector, terms, shared, NoiseSource(bytes.fromhex(key))).numbers.tolist() == numbers
    total = np.sum(case["numbers"], axis=0) % (1 << terms.bits)
    assert total.tolist() == case["sum"]
    assert np.allclose(decode(total.astype(np.uint32), terms, shared), case["decoded"], rtol=0, atol=1e-9)
    error = np.array(case["decoded"]) - 3 * vector
    assert np.abs(error).max() < 6 * np.sqrt(3 * (terms.variance + 0.25)) / terms.scale


@pytest.mark.parametrize("case", cases("refused"))
def test_impossible_terms(case: Any) -> None:
    with pytest.raises(errors.ArgumentValueError) as caught:
        DistributedNoise(**case["terms"])
    assert caught.value.reason == case["code"]
