"""CSV files of many shops, with text in them, prepared and trained on without anyone seeing a row.

    python examples/skewed_csv.py                       (writes generated files under .coterie/shops first)

    coterie prepare examples/skewed_csv.py              the same in two steps: writes schema.json
    coterie simulate examples/skewed_csv.py

Each shop sells other things at other prices, in a currency of its own size. Nobody knows the mean price, all kinds of
goods or the reasons of returns; the survey finds them by secret sums, and every shop then reads its file alike.
"""

import csv
from pathlib import Path

import numpy as np

from coterie import Experiment, RoundPolicy, simulate
from coterie.aggregation.preparation import Category, Draft, Number, Prepared, Survey
from coterie.aggregation.preparation.tabular import tabular
from coterie.compute import nn, optim
from coterie.protocol.schema import DataSchema
from coterie.protocol.schema_file import read_schema
from coterie.simulation import prepare

FOLDER = Path(".coterie/shops")
SHOPS, ROWS = 12, 150
GOODS = {"shoes": 80.0, "books": 15.0, "lamps": 45.0, "tents": 250.0}

survey = Survey(Draft((Number("price"), Number("days"), Category("goods")), label=Category("returned")))


def clients() -> list[Path]:
    """Each shop's file."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    return [write(shop) for shop in range(SHOPS)]


def write(shop: int) -> Path:
    """A shop that sells one kind of goods more than others. Goods that cost more than usual come back, and early."""
    draw = np.random.Generator(np.random.PCG64(shop))
    path = FOLDER / f"shop-{shop:02d}.csv"
    usual = np.full(len(GOODS), 0.1)
    usual[shop % len(GOODS)] += 1 - usual.sum()
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("order", "goods", "price", "days", "returned"))
        for order in range(ROWS):
            goods = list(GOODS)[int(draw.choice(len(GOODS), p=usual))]
            ratio = float(draw.lognormal(0, 0.4))
            returned = "yes" if ratio * float(draw.lognormal(0, 0.1)) > 1.2 else "no"
            days = draw.gamma(2, 3) + (0 if returned == "yes" else 20)
            writer.writerow((f"{shop}-{order}", goods, f"{GOODS[goods] * ratio:.2f}", f"{days:.1f}", returned))
    return path


def trained(schema: DataSchema) -> Experiment:
    """What is trained once the schema is known."""
    return Experiment(
        name="returns",
        model=tabular(schema, hidden=(16,)),
        schema=schema,
        loss=nn.losses.softmax_cross_entropy,
        metrics={"accuracy": nn.metrics.accuracy},
        optimizer=optim.adam(0.01),
        batch_size=16,
        epochs=2,
        rounds=RoundPolicy(rounds=5, cohort=SHOPS),
    )


def experiment() -> Experiment:
    """For `coterie simulate` and `coterie submit`, after `coterie prepare`."""
    return trained(read_schema("schema.json"))


def main() -> None:
    """Prepare and train."""
    shops = clients()
    found: Prepared = prepare(survey, shops)
    print(*found.lines(), sep="\n")
    for record in simulate(trained(found.schema), shops).rounds:
        print(f"round {record.round}: loss {record.metrics['loss']:.3f}, accuracy {record.metrics['accuracy']:.3f}")


if __name__ == "__main__":
    main()
