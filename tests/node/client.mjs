/**
 * A device written from docs/device-protocol.md: joins, trains in the open or in secret, and is counted.
 *
 *     node client.mjs URL TOKEN ROWS.json STORE COUNTED
 *
 * ROWS.json holds the schema's features and label by name, STORE is the file of what it remembers, COUNTED how many of
 * its updates rounds shall count before it ends. It prints one JSON object a line. It only trains: an evaluation, a probe,
 * frozen tensors, private steps and trainers of one's own it gives back by name.
 */

import { createHash, createPrivateKey, createPublicKey, generateKeyPairSync, randomBytes, sign, verify } from "node:crypto";
import { existsSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import ort from "onnxruntime-node";
import { canonical, toHex, utf8 } from "../privacy/secagg/webcrypto/primitives.mjs";
import { aggregate } from "./secure.mjs";
import { digestOf, signedFields } from "./signing.mjs";
import { encodeTensors, readTensors } from "./tensors.mjs";
import { batches, heldOut, randomInputs } from "./training.mjs";

const [url, token, rowsFile, storeFile, wanted] = process.argv.slice(2);
const { host: authority, pathname } = new URL(url);
const prefix = pathname.replace(/\/$/, "");
const rows = JSON.parse(readFileSync(rowsFile, "utf8"));
const ARRAYS = { float32: Float32Array, int32: Int32Array, uint8: Uint8Array };
const CAPABILITIES = {
  sdk: "coterie-node/0", runtime: "onnxruntime-node/1", opset: 17, codecs: ["float32"], trainers: ["plan"],
  secure: ["secagg/1"], features: ["client_state/1"], threads: 1,
};
const RENEWED = ["nonce_stale", "nonce_used"];
const DROPPED = ["device_unknown", "device_revoked"];

const say = (event, fields = {}) => console.log(JSON.stringify({ event, ...fields }));
const sha256 = (data) => createHash("sha256").update(data).digest("hex");
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** An answer that is no success: the problem's code and words. */
class Problem extends Error {
  constructor(status, { code, detail, ...rest }) {
    super(`${code}: ${detail}`);
    Object.assign(this, { status, code, rest });
  }
}

/** What the device gives back, and the code that it says. */
class Refused extends Error {
  constructor(code, why) {
    super(why);
    this.code = code;
  }
}

// What is remembered: written whole before whatever rests on it leaves.

const store = existsSync(storeFile) ? JSON.parse(readFileSync(storeFile, "utf8")) : { pending: {}, state: {}, heads: {} };
function remember(changes) {
  Object.assign(store, changes);
  writeFileSync(`${storeFile}.new`, JSON.stringify(store));
  renameSync(`${storeFile}.new`, storeFile);
}

if (!store.key) remember({ key: generateKeyPairSync("ed25519").privateKey.export({ format: "jwk" }) });
const key = createPrivateKey({ key: store.key, format: "jwk" });
const raw = (text) => Buffer.from(text, "base64url");
const publicHex = raw(store.key.x).toString("hex");
const keyOf = (hex) =>
  createPublicKey({ key: { kty: "OKP", crv: "Ed25519", x: Buffer.from(hex, "hex").toString("base64url") }, format: "jwk" });

function checkSigned(domain, message, signature, signer) {
  const whole = Buffer.concat([utf8(domain), utf8(message)]);
  if (!verify(null, whole, keyOf(signer), Buffer.from(signature, "base64"))) {
    throw new Refused("signature_invalid", `This is not signed by ${signer.slice(0, 16)}.`);
  }
}

// Requests.

let nonce = "none";

function signed(method, target, body, headers) {
  const [path, query = ""] = target.split("?");
  return signedFields(key, { device: store.device, nonce }, { method, authority, path: prefix + path, query, body, headers });
}

async function send(method, target, body, headers, accept = []) {
  const answer = await fetch(`${url.replace(/\/$/, "")}${target}`, { method, headers, body: body.length ? body : undefined });
  nonce = answer.headers.get("coterie-nonce") ?? "none";
  if (answer.ok || accept.includes(answer.status)) return answer;
  const told = await answer.json().catch(() => ({ code: `http_${answer.status}`, detail: "" }));
  throw new Problem(answer.status, told);
}

/** A signed request, signed once more where its nonce was stale. */
async function request(method, target, { body = new Uint8Array(0), headers = {}, accept } = {}) {
  try {
    return await send(method, target, body, signed(method, target, body, headers), accept);
  } catch (error) {
    if (!RENEWED.includes(error.code)) throw error;
    return send(method, target, body, signed(method, target, body, headers), accept);
  }
}

const post = (target, message) =>
  request("POST", target, { body: utf8(canonical(message)), headers: { "content-type": "application/json" } });

async function blob(digest) {
  const data = new Uint8Array(await (await send("GET", `/v1/blobs/${digest}`, "", {})).arrayBuffer());
  if (sha256(data) !== digest) throw new Refused("digest_mismatch", `The blob ${digest} is another one.`);
  return data;
}

/** The whole file in one part; what is there already after a broken connection is not asked for, since all is always right. */
async function upload(task, file) {
  const headers = {
    "content-type": "application/octet-stream", "upload-offset": "0", "upload-length": String(file.length),
    "repr-digest": digestOf(file),
  };
  return (await request("PATCH", `/v1/device/tasks/${task.id}/update`, { body: file, headers })).json();
}

async function join() {
  if (store.device) return;
  const bearer = { authorization: `Bearer ${token}`, "content-type": "application/json" };
  const info = await (await send("GET", "/v1/device/population", "", bearer)).json();
  if (!info.protocol.includes(1)) throw new Refused("protocol_version", "There is no version in common.");
  const body = canonical({
    public_key: publicHex, schema_digest: info.schema_digest, name: "node", capabilities: CAPABILITIES, protocol: [1],
  });
  const { device_id, nonce: first } = await (await send("POST", "/v1/device/enrol", utf8(body), bearer)).json();
  remember({ device: device_id, coordinator: info.coordinator_key, signers: info.signers, schema: canonical(info.data_schema) });
  nonce = first;
  say("joined", { device: device_id, population: info.population });
}

// A task.

async function checkTask(task) {
  const { signature, ...fields } = task;
  checkSigned("coterie task v1\n", canonical(fields), signature, store.coordinator);
  if (task.device !== store.device) throw new Refused("task_of_another", "The task is another device's.");
  if (!store.signers.includes(task.plan.signer)) throw new Refused("signer_unknown", "Nobody here knows who signed the plan.");
  checkSigned("coterie plan v1\n", task.plan.id, task.plan.signature, task.plan.signer);
  if (task.kind !== "train" || task.privacy || task.local || task.secure?.noise) {
    throw new Refused("policy_refused", "This device trains, without noise of its own, and does nothing else.");
  }
}

const headOf = (before, { round, version }, { experiment, plan }) =>
  sha256(`coterie/lineage/v1\n${canonical({ before, experiment, plan: plan.id, round, version })}`);

/** The task's version is of the chain of the newest one that this device has seen. */
async function checkLineage(task) {
  const [seen, lineage] = [store.heads[task.experiment], task.lineage];
  const broken = () => new Refused("lineage_broken", "The history of versions is not the one that this device knows.");
  if (!lineage) {
    if (seen || task.secure) throw broken();
    return;
  }
  const head = headOf(lineage.before, { round: lineage.round, version: task.model.sha256 }, task);
  if (seen) {
    const [forward, again] = [lineage.round >= seen.round, lineage.round === seen.round];
    let [reached, after] = forward ? [seen.head, seen.round] : [head, lineage.round];
    const until = Math.max(lineage.round, seen.round);
    for (let links = [{}]; links.length && after < until; ) {
      links = (await (await request("GET", `/v1/device/experiments/${task.experiment}/lineage?after=${after}`)).json()).links;
      for (const link of links.filter(({ round }) => round <= until)) reached = headOf(reached, link, task);
      after = links.at(-1)?.round ?? after;
    }
    // The task's own version may not be committed yet, so its link is not there: then the head before it must be reached.
    const good = forward ? reached === head || (!again && lineage.before === reached) : reached === seen.head;
    if (!good || seen.plan !== task.plan.id) throw broken();
    if (!forward) return;
  }
  remember({ heads: { ...store.heads, [task.experiment]: { round: lineage.round, head, plan: task.plan.id } } });
}

async function planOf(task) {
  const manifest = JSON.parse(Buffer.from(await blob(task.plan.id)).toString());
  const stages = manifest.stages.filter(({ tasks }) => tasks.includes("train"));
  const probed = stages.some(({ over }) => over === "pass");
  const beyond = probed || manifest.frozen || manifest.training.private || manifest.shape !== "horizontal";
  if (beyond) throw new Refused("policy_refused", "This device does without what the plan needs.");
  if (canonical(manifest.schema) !== store.schema) throw new Refused("schema_mismatch", "The plan is for other data.");
  for (const stage of stages) {
    stage.session = await ort.InferenceSession.create(await blob(stage.sha256), { intraOpNumThreads: 1 });
  }
  return { manifest, stages };
}

/** The weight, the steps, the sections, and the client state: the stages driven by the sources of their inputs and the destinations of their outputs. */
async function train(task, { manifest, stages }, model, state) {
  const { training } = manifest;
  const count = Object.values(rows)[0].length;
  const kept = heldOut(count, training.holdout);
  const chosen = Array.from({ length: count }, (_, row) => row).filter((row) => !kept[row]);
  const weight = Math.min(chosen.length, task.secure?.weight_cap ?? task.weight_cap);
  const one = (value) => Float32Array.of(value);
  const [carried, sections, left] = [{}, {}, {}];
  let [batch, drawn, steps] = [[], {}, 0];
  const zeros = ({ shape, dtype }) => new ARRAYS[dtype](shape.reduce((a, b) => a * b, 1));
  const fill = {
    model: ({ key: name }) => model[name].data,
    client_state: (input) => state[input.key] ?? zeros(input),
    hyper: ({ key: name }) => one(task.hyper[name] ?? manifest.hyper[name]),
    active: () => one(1),
    counter: ({ key: name }) => one({ steps, weight }[name]),
    state: ({ name }) => carried[name],
    zeros: (input) => (carried[input.name] ??= zeros(input)),
    batch: ({ key: name, dtype }) =>
      name === "sample_weight"
        ? Float32Array.from(batch, ({ weight: own }) => own)
        : ARRAYS[dtype].from(batch.flatMap(({ row }) => rows[name][chosen[row]]).flat(Infinity)),
    random: ({ name }) => drawn[name],
  };
  const put = { carry: carried, state: carried, upload: sections, client_state: left };
  const run = async ({ session, inputs, outputs }) => {
    const feeds = inputs.map((input) => [input.name, new ort.Tensor(input.dtype, fill[input.source](input), input.shape)]);
    const made = await session.run(Object.fromEntries(feeds));
    for (const { name, destination, key: place } of outputs) put[destination][place] = made[name].data;
  };
  const seed = task.secure ? randomBytes(6).readUIntBE(0, 6) : task.seed;
  for (const stage of stages) {
    if (stage.over === "once") {
      await run(stage);
      continue;
    }
    const random = stage.inputs.filter(({ source }) => source === "random");
    for (batch of batches(chosen.length, seed, training)) {
      drawn = randomInputs(seed, steps, random);
      await run(stage);
      steps += 1;
    }
  }
  return { weight, steps, sections, state: left };
}

function encoded(task, manifest, { weight, steps, sections }) {
  const bytes = (data) => new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  const listed = manifest.sections.map(({ name, length }) => ({ name, codec: "float32", length }));
  const names = { task: task.id, plan: task.plan.id, base: task.model.sha256 };
  const header = { format: "coterie-update-1", kind: "update", ...names, weight, steps, clients: 1, sections: listed };
  return encodeTensors(Object.fromEntries(listed.map(({ name }) => [name, bytes(sections[name])])), header);
}

async function perform(task) {
  await checkTask(task);
  await checkLineage(task);
  const plan = await planOf(task);
  await post(`/v1/device/tasks/${task.id}/progress`, { phase: "training" });
  const before = Object.entries(store.state[task.experiment]?.tensors ?? {}).map(([name, list]) => [name, Float32Array.from(list)]);
  const done = await train(task, plan, readTensors(await blob(task.model.sha256)), Object.fromEntries(before));
  const tensors = Object.fromEntries(Object.entries(done.state).map(([name, data]) => [name, Array.from(data)]));
  // Kept until a check-in says what became of it: only a counted update leaves state behind.
  remember({ pending: { ...store.pending, [task.id]: { experiment: task.experiment, round: task.round, tensors } } });
  if (task.secure) {
    const identity = { seed: raw(store.key.d), public: publicHex, device: store.device };
    await aggregate(task, plan.manifest, done, identity, { request, post, upload, say });
  } else {
    say("uploaded", { task: task.id, ...(await upload(task, encoded(task, plan.manifest, done))) });
  }
}

function settle(settled) {
  for (const [id, outcome] of Object.entries(settled)) {
    const { [id]: done, ...pending } = store.pending;
    const state = done && outcome === "counted" ? { ...store.state, [done.experiment]: done } : store.state;
    remember({ pending, state, counted: (store.counted ?? 0) + (outcome === "counted" ? 1 : 0) });
    say("settled", { task: id, outcome });
  }
}

async function cycle() {
  const answer = await (
    await post("/v1/device/check-in", { pending: Object.keys(store.pending).slice(0, 64), capabilities: CAPABILITIES, protocol: [1] })
  ).json();
  settle(answer.settled ?? {});
  if (!answer.task) return answer.retry_if_rejected;
  try {
    await perform(answer.task);
    return answer.retry_if_accepted;
  } catch (error) {
    if (error instanceof Problem) throw error;
    say("refused", { task: answer.task.id, code: error.code ?? "trainer_failed", why: error.message });
    await post(`/v1/device/tasks/${answer.task.id}/abort`, { phase: "training", code: error.code ?? "trainer_failed", detail: "" });
    return answer.retry_if_rejected;
  }
}

await join();
for (let failures = 0; (store.counted ?? 0) < Number(wanted); ) {
  try {
    const { min_ms, max_ms } = await cycle();
    failures = 0;
    await sleep(min_ms + Math.random() * (max_ms - min_ms));
  } catch (error) {
    if (DROPPED.includes(error.code)) throw error;
    say("error", { code: error.code ?? "unreachable", why: error.message });
    await sleep(Math.random() * Math.min(900_000, 1000 * 2 ** failures++));
  }
}
say("done", { counted: store.counted, public: toHex(raw(store.key.x)) });
