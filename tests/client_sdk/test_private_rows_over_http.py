"""Real devices that hide their rows from a real coordinator: rounds commit, and devices refuse what is not kept."""

from pathlib import Path

from sdk_kit import Lab, assert_two_noised_rounds, experiment, run

from coterie.client_sdk.device.policy import DevicePolicy
from coterie.protocol.privacy import ExampleLevel
from coterie.protocol.rounds import RoundPolicy

CLIENTS = 3
LEVEL = ExampleLevel(clip=1.0, delta=1e-5, noise_multiplier=1.0, rows=40)
TAKEN = DevicePolicy(max_epsilon=50.0, trusts=frozenset({"device"}), units=frozenset({"example"}))


def test_rounds_of_private_steps_spend_what_they_claim(tmp_path: Path) -> None:
    async def work(place: Lab) -> None:
        policy = RoundPolicy(rounds=2, cohort=CLIENTS, weight_cap=1, evaluate_every=0)
        wanted = experiment("own", rounds=policy, privacy=LEVEL, max_steps=5)
        history = await assert_two_noised_rounds(place, wanted, CLIENTS, TAKEN)
        first, second = (record.epsilon for record in history.rounds)
        assert first is not None and second is not None and 0 < first < second

    run(work, tmp_path)
