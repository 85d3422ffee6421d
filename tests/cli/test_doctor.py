"""`coterie doctor` on execution providers: a table, a plan's graphs on each, and what a device remembers."""

from pathlib import Path

from conftest import Coterie

from coterie.cli.failures import BAD_INPUT
from coterie.client_sdk.device.store import Store
from coterie.compute.runtime.devices import provider_named
from coterie.compute.runtime.quarantine import failure
from coterie.compute.runtime.session import CPU
from coterie.compute.runtime.verdict import Identity, Verdict

EXPERIMENT = """
from coterie import Experiment, RoundPolicy, ExternalModel
from coterie.protocol.schema import DataSchema, Feature, Label
from coterie.compute.nn.losses import softmax_cross_entropy
from coterie.compute.nn.zoo import mlp
from coterie.compute.optim import adam

schema = DataSchema((Feature(name="x", shape=(4,), low=-10, high=10),), Label(name="y", low=0, high=2))
told = {"schema": schema, "batch_size": 8, "rounds": RoundPolicy(rounds=1, cohort=1, evaluate_every=0)}
experiment = Experiment(name="dense", model=mlp((4, 8, 3)), loss=softmax_cross_entropy, optimizer=adam(0.1), **told)
own = Experiment(name="own", model=ExternalModel({"w": (4, 3)}), **told)
"""


def test_every_provider_is_a_row_with_trust_coverage_and_the_time_of_a_step(coterie: Coterie, tmp_path: Path) -> None:
    (tmp_path / "dense.py").write_text(EXPERIMENT, encoding="utf-8")
    done = coterie("doctor", "--json", "--experiment", "dense.py")
    assert done.code == 0, done.err
    (row,) = [event for event in done.events if event["event"] == "provider"]
    assert row["provider"] == CPU and row["trusted"] and row["before"] == "" and row["step_ms"] > 0
    assert set(row["recipes"].values()) == {"agrees"} and "step of attention" in row["recipes"]
    assert row["coverage"] == dict.fromkeys(("begin", "train", "finish", "eval", "infer"), "every node")
    refused = coterie("doctor", "--experiment", "dense.py:own")
    assert refused.code == BAD_INPUT and "error[plan_external]" in refused.err


def test_a_devices_memory_is_read_and_brought_up_to_date(coterie: Coterie, tmp_path: Path) -> None:
    store = Store(tmp_path / "device")
    lost = failure(provider_named(CPU), "the device is lost")
    elsewhere = Verdict(Identity("Other", "1", "d", "r"), trusted=False, reason="differs in 'add'")
    for verdict in (lost, elsewhere):
        store.verdicts.record(verdict)
    store.close()
    done = coterie("doctor", "--json", "--store", "device")
    (row,) = [event for event in done.events if event["event"] == "provider"]
    assert row["trusted"] and row["before"] == "quarantined: the device is lost"
    store = Store(tmp_path / "device")
    assert store.verdicts.recall() == {
        lost.identity: Verdict(lost.identity, trusted=True),
        elsewhere.identity: elsewhere,
    }
    busy = coterie("doctor", "--store", "device")
    assert "error[store_in_use]" in busy.err
    store.close()
    absent = coterie("doctor", "--store", "nowhere")
    assert absent.code == BAD_INPUT and "error[store_absent]" in absent.err
