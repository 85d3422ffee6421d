"""`coterie new`: a project that runs, to change into one's own."""

import csv
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.output import JsonOption, Output
from coterie.errors import ConfigurationError

FILES = ("experiment.py", "README.md")
ROWS = 240
SITES = 3
# State → the mean of temperature, pressure, vibration and current while a machine is in it.
STATES = {"idle": (42.0, 4.0, 0.8, 4.0), "running": (65.0, 5.5, 2.0, 12.0), "worn": (78.0, 5.0, 3.6, 14.0)}
SPREAD = (12.0, 1.0, 0.9, 4.0)
# How often a site sees the state that it sees most.
USUAL = 0.6


def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to make.")],
    json: JsonOption = False,
) -> None:
    """Write a starter project: an experiment, generated data for three sites, and what to run."""
    output = Output(json)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(
            f"{folder} exists and is not an empty folder.", hint="Name a new folder.", code="folder_exists"
        )
    data = folder / "data"
    data.mkdir(parents=True)
    written: list[Path] = []
    for name in FILES:
        (folder / name).write_text(
            files("coterie.cli.starter").joinpath(name).read_text(encoding="utf-8"), encoding="utf-8"
        )
        written.append(folder / name)
    for site in range(SITES):
        path = data / f"site-{site + 1}.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("temperature", "pressure", "vibration", "current", "state"))
            writer.writerows(_rows(site))
        written.append(path)
    output.event("created", folder=folder, files=[str(path) for path in written])
    output.say(f"Made {folder}. Now:")
    output.say(f"  cd {folder}")
    output.say("  coterie simulate experiment.py")


def _rows(site: int) -> Iterator[tuple[str, ...]]:
    """Generated readings: normal around the state's mean; which state is drawn depends on the site."""
    import numpy as np

    draw = np.random.default_rng(site)
    states = tuple(STATES)
    for _ in range(ROWS):
        usual = draw.random() < USUAL
        state = states[site] if usual else states[int(draw.integers(len(states)))]
        reading = draw.normal(STATES[state], SPREAD)
        yield (*(f"{value:.2f}" for value in reading), state)
