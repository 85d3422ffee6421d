"""The smallest client that there can be: one device's part of a round, with NumPy, ONNX Runtime and an AES.

    python examples/minimal_client.py PLAN WEIGHTS ROWS UPDATE [--seed 0]

PLAN is a folder with manifest.json and a graph for each stage (`Plan.save` writes it), WEIGHTS the model
version as a safetensors file, ROWS an .npz of the schema's features and label, UPDATE the .npz that is written: the
update's sections, and how many rows and steps it is of. It gives the numbers that coterie's own client gives, to the
last bit, and shows all that a client for another platform must do between download and upload.

What it leaves out: the network, signatures and checks of what was downloaded, secure aggregation, state between
rounds, a plan's probe, and example-level privacy, whose noise needs a secret source. It refuses plans that need these.
"""

import argparse
import json
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import onnxruntime

from coterie.compute.data.batches import Batches
from coterie.draws import random_arrays


def read_weights(path):
    """The arrays of a safetensors file of float32."""
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    header.pop("__metadata__", None)
    arrays = {}
    for name, entry in header.items():
        first, last = (end + offset for offset in entry["data_offsets"])
        arrays[name] = np.frombuffer(data[first:last], "<f4").reshape(entry["shape"])
    return arrays


def refuse(manifest):
    """Stop at a plan that needs what is left out."""
    needs = {
        "another shape than horizontal": manifest["shape"] != "horizontal",
        "a probe": any(stage["over"] == "pass" for stage in manifest["stages"] if "train" in stage["tasks"]),
        "private rows": "private" in manifest["training"],
        "frozen tensors": manifest["frozen"] is not None,
        "state between rounds": bool(manifest["client_state"]),
    }
    found = [what for what, needed in needs.items() if needed]
    if found:
        sys.exit(f"This plan has {' and '.join(found)}; the minimal client does without.")


class Client:
    """Runs the stages of a training, in the order of the manifest. Which input takes what, and where an output goes,
    the manifest says: every input has a source and a key, every output a destination and a key.
    """

    def __init__(self, folder, weights):
        self.manifest = json.loads((folder / "manifest.json").read_bytes())
        refuse(self.manifest)
        self.stages = [stage for stage in self.manifest["stages"] if "train" in stage["tasks"]]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.sessions = {
            name: onnxruntime.InferenceSession(
                (folder / f"{name}.onnx").read_bytes(), options, ["CPUExecutionProvider"]
            )
            for name in (stage["name"] for stage in self.stages)
        }
        self.state, self.sections = {}, {}
        hyper = self.manifest["hyper"]
        self.supply = {
            "model": lambda one: weights[one["key"]],
            "hyper": lambda one: np.array([hyper[one["key"]]], np.float32),
            "active": lambda one: np.ones(1, np.float32),
            "zeros": lambda one: self.state.get(one["name"], np.zeros(one["shape"], one["dtype"])),
            "state": lambda one: self.state[one["name"]],
            "counter": lambda one: np.array([self.counters[one["key"]]], np.float32),
            "batch": lambda one: self.batch[one["key"]],
            "random": lambda one: self.random[one["name"]],
        }

    def run(self, stage):
        """Fill the inputs by their sources, run the graph, put the outputs by their destinations."""
        feeds = {one["name"]: self.supply[one["source"]](one) for one in stage["inputs"]}
        names = [one["name"] for one in stage["outputs"]]
        outputs = dict(zip(names, self.sessions[stage["name"]].run(names, feeds), strict=True))
        places = {"state": {}, "carry": {}, "upload": self.sections}
        for one in stage["outputs"]:
            places[one["destination"]][one["key"]] = outputs[one["name"]]
        # Only now, so that no output is taken for an input of the same run.
        self.state |= places["state"] | places["carry"]

    def train(self, rows, seed):
        """The sections of the update, and how many rows and steps it is of."""
        training = self.manifest["training"]
        batches = Batches(rows, batch_size=training["batch_size"], seed=seed, epochs=training["epochs"])
        steps, count = 0, len(next(iter(rows.values())))
        for stage in self.stages:
            if stage["over"] == "once":
                self.counters = {"steps": float(steps), "weight": float(count)}
                self.run(stage)
                continue
            drawn = [one for one in stage["inputs"] if one["source"] == "random"]
            shapes = {one["name"]: tuple(one["shape"]) for one in drawn}
            for self.batch in islice(batches, training["max_steps"]):
                # Numbers in [0, 1) for dropout, from the task's seed.
                self.random = random_arrays(seed, steps, shapes)
                self.run(stage)
                steps += 1
        return self.sections, count, steps


def main():
    """Train, and write the update."""
    parser = argparse.ArgumentParser(description="One device's part of a round, without the client.")
    for name in ("plan", "weights", "rows", "update"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    try:
        with np.load(options.rows, allow_pickle=False) as file:
            rows = {name: file[name] for name in file.files}
        sections, count, steps = Client(options.plan, read_weights(options.weights)).train(rows, options.seed)
        np.savez(options.update, **sections, weight=count, steps=steps)
    except OSError as error:
        sys.exit(f"{error.filename}: {error.strerror}. --help says what each file is.")
    print(f"{count} rows, {steps} steps: {', '.join(f'{name} {value.size}' for name, value in sections.items())}")


if __name__ == "__main__":
    main()
