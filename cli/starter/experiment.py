"""Tell the state of a machine from four sensor readings, without any machine's readings leaving its site.

coterie simulate experiment.py      all sites in this process
coterie submit experiment.py        the same experiment on a coordinator, with real clients
"""

from pathlib import Path

from coterie import DataSchema, Experiment, Feature, FedAvg, Label, RoundPolicy
from coterie.compute import nn, optim

DATA = Path(__file__).parent / "data"

# What every site's CSV must hold: four numbers a row, within these bounds, and one of three words.
schema = DataSchema(
    features=(
        Feature(
            name="readings",
            dtype="float32",
            shape=(4,),
            columns=("temperature", "pressure", "vibration", "current"),
            low=-1000.0,
            high=1000.0,
            offset=(60.0, 5.0, 2.0, 10.0),
            scale=(1 / 15, 1 / 1.5, 1 / 1.0, 1 / 4),
        ),
    ),
    label=Label(name="state", column="state", classes=("idle", "running", "worn")),
)

experiment = Experiment(
    name="machines",
    model=nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)),
    loss=nn.losses.softmax_cross_entropy,
    metrics={"accuracy": nn.metrics.accuracy},
    schema=schema,
    optimizer=optim.sgd(0.1, momentum=0.9),
    algorithm=FedAvg(),
    rounds=RoundPolicy(rounds=8, cohort=2, min_updates=2, deadline_s=60.0),
    batch_size=16,
    epochs=2,
    holdout=0.2,
)


def clients() -> list[Path]:
    """Each site's rows, for `coterie simulate`: files as here, or arrays by name."""
    return sorted(DATA.glob("site-*.csv"))
