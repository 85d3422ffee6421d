"""The mechanisms of differential privacy that the wire knows by name. What each does stands in `coterie.privacy.dp`.

A light module: a command line reads it for its options.
"""

from typing import Final, Literal, TypeAlias, get_args

MatrixMechanism: TypeAlias = Literal["toeplitz", "banded", "blt"]
"""Correlate the noise of different rounds (DP-FTRL)."""
DistributedMechanism: TypeAlias = Literal[
    "discrete_gaussian",
    "skellam",
]
"""Are added on the devices, a share on each, under secure aggregation. Each has a file of its name in
`coterie.privacy.dp.noise`.
"""
CentralMechanism: TypeAlias = Literal["gaussian", MatrixMechanism, DistributedMechanism]
"""How a round's sum is noised."""
LocalMechanism: TypeAlias = Literal["gaussian", "randomised_response", "sign_ds"]
"""How one device's update is noised."""

MATRIX: Final[tuple[MatrixMechanism, ...]] = get_args(MatrixMechanism)
DISTRIBUTED: Final[tuple[DistributedMechanism, ...]] = get_args(DistributedMechanism)
