"""Methods over real HTTP: what devices and a coordinator make of them is what a simulation makes, also when every
device is stopped and started anew in between.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest
from as_simulated import assert_as_simulated
from sdk_kit import Coordinator, experiment, rows

from coterie.aggregation.horizontal import IFCA, Algorithm, FedDyn, Scaffold
from coterie.protocol.rounds import RoundPolicy

# Batches that hold all rows, so that the order of rows, which differs from run to run, does not matter.
ROWS = 60
# State on devices and in the version; state on devices and on the coordinator; several models and a probe.
METHODS: Mapping[str, Algorithm] = {rule.name: rule for rule in (Scaffold(2), FedDyn(2, 0.2), IFCA(2))}


@pytest.mark.parametrize("name", sorted(METHODS))
def test_devices_that_are_restarted_make_what_a_simulation_makes(
    coordinator: Coordinator, tmp_path: Path, name: str
) -> None:
    wanted = experiment(
        f"method {name}",
        algorithm=METHODS[name],
        batch_size=ROWS,
        epochs=3,
        holdout=0.0,
        rounds=RoundPolicy(rounds=3, cohort=2, evaluate_every=0),
        evaluation=rows(40, 9),
    )
    assert_as_simulated(coordinator, tmp_path, wanted, [rows(ROWS, seed) for seed in range(2)])
