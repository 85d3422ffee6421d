"""A device in a process of its own that trains until it is told to end, and then says what it has loaded."""

import json
import sys
from pathlib import Path

import numpy as np

from coterie.client_sdk import Device


def main(url: str, token: str, folder: str, rows: str) -> None:
    with Device(url, data=dict(np.load(rows)), folder=Path(folder), token=token) as device:
        device.run(rounds=1)
    print(json.dumps(sorted({*sys.modules})))


if __name__ == "__main__":
    main(*sys.argv[1:])
