"""A client in another language, written from docs/device-protocol.md, is a device like any other: tests/node."""

import asyncio
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sdk_kit import Coordinator, Events, coordinator_process, experiment, rows

from coterie.aggregation.compiling.compile import compile_plan
from coterie.aggregation.experiment import Experiment
from coterie.aggregation.history import History
from coterie.client_sdk.control.client import ControlClient
from coterie.client_sdk.control.submission import Submission, send
from coterie.client_sdk.device.agent import Agent
from coterie.client_sdk.device.settings import AgentSettings
from coterie.compute.nn import Dropout, Linear, ReLU, Sequential
from coterie.compute.onnx.providers import ProviderClass
from coterie.protocol.rounds import RoundPolicy
from coterie.protocol.secure_aggregation import SecureAggregation
from coterie.protocol.signing import SigningKey
from tests.node_js import FOLDER, node
from tests.patience import patience

CLIENTS = 5
VECTORS = Path(__file__).parents[2] / "protocol" / "vectors"
DRAWS = """
import { readFileSync } from "node:fs";
import { seedOf, stream, batchOrder, uniforms, heldOut } from "./training.mjs";
const told = JSON.parse(readFileSync(process.argv[1], "utf8"));
const hex = (array) => Buffer.from(array.buffer, array.byteOffset, array.byteLength).toString("hex");
console.log(JSON.stringify({
  seeds: told.seeds.map(({ parts }) => {
    const seed = seedOf(...parts);
    return { parts, seed: hex(seed), stream: hex(stream(seed, 0, 40)) };
  }),
  orders: told.orders.map((one) => ({ ...one, order: batchOrder(one.rows, one.seed, one.epoch) })),
  random_inputs: told.random_inputs.map((one) => ({ ...one, numbers: hex(uniforms(one.seed, one.step, one.count)) })),
  held_out: told.held_out.map((one) => ({
    ...one, held_out: heldOut(one.rows, one.share).flatMap((chosen, row) => (chosen ? [row] : [])),
  })),
}));
"""


SIGNED = """
import { createPrivateKey } from "node:crypto";
import { readFileSync } from "node:fs";
import { signedFields } from "./signing.mjs";
const told = JSON.parse(readFileSync(process.argv[1], "utf8"));
const pkcs8 = Buffer.concat([Buffer.from("302e020100300506032b657004220420", "hex"), Buffer.from(told.seed, "hex")]);
const key = createPrivateKey({ key: pkcs8, format: "der", type: "pkcs8" });
const own = ["upload-offset", "upload-length", "repr-digest"];
console.log(JSON.stringify(told.requests.map(({ fields, body, ...request }) => {
  const headers = Object.fromEntries(Object.entries(fields).filter(([name]) => own.includes(name)));
  return signedFields(key, told, { ...request, body: Buffer.from(body, "hex"), headers });
})));
"""

TRAINED = """
import { readFileSync } from "node:fs";
import { readTensors, updateFile } from "./files.mjs";
import { checkPlan, readColumns } from "./rules.mjs";
import { canonical, sha256Hex } from "./signing.mjs";
import { loaded, train } from "./training.mjs";
const told = JSON.parse(readFileSync(process.argv[1], "utf8"));
const bytes = (hex) => Buffer.from(hex, "hex");
const made = [];
for (const { training, seed, hyper, weight_cap: cap } of told.cases) {
  const plan = { ...structuredClone(told.manifest), training };
  const id = sha256Hex(canonical(plan));
  const task = { id: told.task.id, plan: { id }, model: { sha256: sha256Hex(bytes(told.version)) }, hyper };
  const stages = checkPlan(plan, task, plan.schema);
  for (const stage of stages) stage.session = await loaded(bytes(told.graphs[stage.name]));
  const version = readTensors(bytes(told.version), plan.layout);
  const columns = readColumns(plan.schema, told.rows);
  const all = { plan, stages, version, hyper: { ...plan.hyper, ...hyper }, columns, seed, cap, told: () => {} };
  const result = await train(all);
  const update = updateFile(task, plan, result).toString("hex");
  const metrics = Object.fromEntries(plan.metrics.map((name, i) => [name, result.sections.metrics.data[i]]));
  made.push({ plan: id, weight: result.weight, steps: result.steps, metrics, update });
}
const refusals = told.refused_manifests.map(({ change }) => {
  try {
    checkPlan({ ...told.manifest, ...change }, { hyper: {} }, told.manifest.schema);
    return null;
  } catch (error) {
    return error.code;
  }
});
console.log(JSON.stringify({ made, refusals }));
"""


def in_node(program: str, vectors: str, *, packages: bool = False) -> tuple[Any, Any]:
    """What a program says of a file of vectors, and the file.

    packages: whether it needs what `make test-node` installs.
    """
    path = VECTORS / vectors
    command = [node(packages=packages), "--input-type=module", "-e", program, str(path)]
    done = subprocess.run(command, capture_output=True, cwd=FOLDER, timeout=patience(60), check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return json.loads(done.stdout), json.loads(path.read_text("ascii"))


def test_node_draws_what_the_vectors_say() -> None:
    drawn, told = in_node(DRAWS, "training.json")
    assert drawn == {name: told[name] for name in drawn} and len(drawn) == 4


def test_node_signs_requests_as_the_vectors_do() -> None:
    signed, told = in_node(SIGNED, "http_signatures.json")
    assert signed == [request["fields"] for request in told["requests"]]


def test_node_trains_to_the_very_update_of_the_vectors() -> None:
    said, told = in_node(TRAINED, "plan.json", packages=True)
    assert said["made"] == [{name: case[name] for name in said["made"][0]} for case in told["cases"]]
    assert said["refusals"] == [case["code"] for case in told["refused_manifests"]]


async def node_client(place: Coordinator, token: str, folder: Path, counted: int) -> Events:
    """Run the client until so many of its updates were counted: what it told."""
    folder.mkdir(exist_ok=True)
    table = {name: array.tolist() for name, array in rows(60, 9).items()}
    (folder / "rows.json").write_text(json.dumps(table))
    process = await asyncio.create_subprocess_exec(
        node(packages=True),
        str(FOLDER / "client.mjs"),
        *(place.url, token, str(folder / "rows.json"), str(folder / "store.json"), str(counted)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, wrong = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, wrong.decode()[-3000:]
    return [json.loads(line) for line in out.decode().splitlines()]


async def take_part(
    place: Coordinator, wanted: Experiment, folder: Path, others: int, counted: Sequence[int]
) -> tuple[History, list[Events]]:
    """The rounds of an experiment in which the Node client and Python's take part, and what it told in each run."""
    control = ControlClient(place.url, token=place.token)
    agents: list[Agent] = []
    try:
        view = await send(control, Submission(experiment=wanted, key=SigningKey.from_seed(b"r" * 32)))
        tokens = [(await control.enrolment_token(view.population)).token for _ in range(others + 1)]
        for number in range(others):
            data = rows(60, number)
            settings = AgentSettings(url=place.url, folder=folder / f"d{number}", data=data, token=tokens[number])
            agents.append(Agent(settings))
        running = [asyncio.create_task(agent.run(rounds=counted[-1])) for agent in agents]
        told = [await node_client(place, tokens[-1], folder / "node", count) for count in counted]
        await asyncio.gather(*running)
        return await control.history(view.id), told
    finally:
        for agent in agents:
            await agent.close()
        await control.close()


@pytest.mark.parametrize("variants", [(), ("npu",)], ids=["plain", "variants"])
def test_it_trains_in_the_open_and_goes_on_after_a_restart(tmp_path: Path, variants: tuple[ProviderClass, ...]) -> None:
    """With dropout, so that random inputs are drawn; alone, so that a committed round is its update. It knows nothing
    of variants, and passes by those of a plan.
    """
    model = Sequential(Linear(4, 8), ReLU(), Dropout(0.2), Linear(8, 3))
    policy = RoundPolicy(rounds=3, cohort=1, evaluate_every=0)
    wanted = experiment(model=model, rounds=policy, variants=variants)
    assert len(compile_plan(wanted).plan.manifest.stage("train").variants) == len(variants)

    async def work() -> None:
        with coordinator_process(tmp_path) as place:
            async with asyncio.timeout(patience(120)):
                history, (first, second) = await take_part(place, wanted, tmp_path, 0, (1, 3))
        assert [(one.state, one.accepted) for one in history.rounds] == [("committed", 1)] * 3
        # The check-in that settles the first update may bring the next task.
        assert {event["event"] for event in first} == {"joined", "uploaded", "settled", "done"}
        assert {event.get("state") for event in first if event["event"] == "uploaded"} == {"accepted"}
        assert "joined" not in [event["event"] for event in second]
        assert second[-1]["counted"] == 3
        losses = [one.training["loss"] for one in history.rounds]
        assert losses[-1] < losses[0]

    asyncio.run(work())


@pytest.mark.parametrize("mode", ["semi_honest", "consistent"])
def test_it_trains_in_secret_among_clients_in_python(mode: Any, tmp_path: Path) -> None:
    wanted = experiment(
        secure_aggregation=SecureAggregation(mode=mode),
        rounds=RoundPolicy(rounds=2, cohort=CLIENTS, evaluate_every=0),
    )

    async def work() -> None:
        with coordinator_process(tmp_path) as place:
            async with asyncio.timeout(patience(150)):
                history, (told,) = await take_part(place, wanted, tmp_path, CLIENTS - 1, (2,))
        assert [(one.state, one.accepted) for one in history.rounds] == [("committed", CLIENTS)] * 2
        attempts = [event for event in told if event["event"] == "attempt"]
        assert [(event["state"], event["mode"]) for event in attempts] == [("summed", mode)] * 2
        assert told[-1] == {"event": "done", "counted": 2, "public": told[-1]["public"]}

    asyncio.run(work())
