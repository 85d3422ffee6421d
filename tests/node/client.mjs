// A device: node client.mjs URL TOKEN ROWS.json STORE.json COUNT. It ends when COUNT of its updates were counted.
import { createPrivateKey, generateKeyPairSync, randomBytes } from "node:crypto";
import { existsSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { fileOf, namesOf, readTensors, updateFile } from "./files.mjs";
import { vectorOf } from "./ring.mjs";
import { checkLineage, checkPlan, checkTask, FLOOR, readColumns } from "./rules.mjs";
import { Attempt, modelDigest } from "./secagg.mjs";
import { canonical, digestField, publicHex, sha256Hex } from "./signing.mjs";
import { loaded, train } from "./training.mjs";
import { must, Refusal, Wire } from "./wire.mjs";

const [url, token, rowsFile, storeFile, count] = process.argv.slice(2);
const SOFTWARE = { opset: 17, sdk: "coterie-node/1", runtime: "onnxruntime-node/1.30.0" };
const CAPABILITIES = { codecs: ["float32"], trainers: ["plan"], secure: ["secagg/1"], ...SOFTWARE };
const ABLE = { capabilities: CAPABILITIES, protocol: [1] };
const MIB = 2 ** 20;
const DAY = 86_400_000;

// What is kept: the key, what was pinned, the newest heads, and updates whose outcome is not known.
const keys = () => generateKeyPairSync("ed25519").privateKey.export({ format: "jwk" });
const isNew = !existsSync(storeFile);
const store = isNew ? { key: keys(), heads: {}, pending: {}, counted: 0 } : JSON.parse(readFileSync(storeFile, "utf8"));
const key = createPrivateKey({ key: store.key, format: "jwk" });
const wire = new Wire(url, key, store.device);
const table = JSON.parse(readFileSync(rowsFile, "utf8"));

const tell = (event, more) => console.log(JSON.stringify({ event, ...more }));
const pathOf = (id, rest) => `/v1/device/tasks/${id}/${rest}`;

function save() {
  writeFileSync(`${storeFile}.new`, JSON.stringify(store), { mode: 0o600, flush: true });
  renameSync(`${storeFile}.new`, storeFile);
}

function pend(task, what) {
  store.pending[task.id] = what;
  save();
}

async function join() {
  save();
  const how = { token, isOpen: true };
  const told = await wire.json("GET", "/v1/device/population", null, how);
  must(told.protocol.includes(1), "protocol_unsupported", `${told.protocol}`);
  const { data_schema: schema, schema_digest: digest, coordinator_key: coordinator, signers } = told;
  must(sha256Hex(canonical(schema)) === digest, "schema_mismatch", "the digest is of another schema");
  readColumns(schema, table);
  const message = { public_key: publicHex(key), schema_digest: digest, ...ABLE };
  const { device_id: device, nonce } = await wire.json("POST", "/v1/device/enrol", message, how);
  Object.assign(store, { device, schema, coordinator, signers });
  Object.assign(wire, { device, nonce });
  save();
  tell("joined", { device });
}

async function blob(sha256, most) {
  const { bytes } = await wire.call("GET", `/v1/blobs/${sha256}`, { isOpen: true, most });
  must(sha256Hex(bytes) === sha256, "blob_damaged", sha256);
  return bytes;
}

async function upload(task, file) {
  must(file.length <= task.upload_limit, "upload_too_large", `${file.length} bytes`);
  const headers = { "upload-offset": "0", "upload-length": `${file.length}`, "repr-digest": digestField(file) };
  const how = { body: file, type: "application/octet-stream", headers, isInAttempt: Boolean(task.secure) };
  const { bytes } = await wire.call("PATCH", pathOf(task.id, "update"), how);
  pend(task, { isSent: true });
  tell("uploaded", { task: task.id, state: JSON.parse(bytes.toString()).state });
}

// What can fail whatever the rows are fails here, before one is looked at.
async function prepared(task) {
  const path = `/v1/device/experiments/${task.experiment}/lineage`;
  const linksAfter = async (round) => (await wire.json("GET", `${path}?after=${round}`)).links;
  const head = await checkLineage(store.heads[task.experiment], task, linksAfter);
  const plan = JSON.parse((await blob(task.plan.id, 4 * MIB)).toString());
  const stages = checkPlan(plan, task, store.schema);
  for (const stage of stages) stage.session = await loaded(await blob(stage.sha256, 1024 * MIB));
  const version = readTensors(await blob(task.model.sha256, 1024 * MIB), plan.layout);
  if (head) store.heads[task.experiment] = head;
  save();
  return { plan, stages, version };
}

async function trained(task, ready) {
  let last = Date.now();
  const told = async () => {
    if (Date.now() - last < task.lease_ms / 3) return;
    last = Date.now();
    await wire.json("POST", pathOf(task.id, "progress"), { phase: "training" });
  };
  const hyper = { ...ready.plan.hyper, ...task.hyper };
  // A coordinator that chose everybody's draws could choose what each puts into a sum.
  const seed = task.secure ? randomBytes(8).readBigUInt64LE() >> 11n : task.seed;
  const cap = (task.secure ?? task).weight_cap;
  const result = await train({ ...ready, hyper, seed, cap, told, columns: readColumns(store.schema, table) });
  must(result.isUsable, "training_diverged", "numbers that are not finite, or outside their range");
  return result;
}

async function inTheOpen(task, ready) {
  const file = updateFile(task, ready.plan, await trained(task, ready));
  pend(task, { file: file.toString("base64") });
  await upload(task, file);
}

// Work that came to nothing goes into the sum as zeros: whoever fell silent would tell something of its rows.
async function trainedOrNothing(task, ready) {
  try {
    return await trained(task, ready);
  } catch (error) {
    if (error.isTold) throw error;
    tell("unusable", { task: task.id, detail: error.message });
    return { isUsable: false };
  }
}

async function inSecret(task, ready) {
  const { attempt: id, mode, sections, phase_ms: phase } = task.secure;
  const vector = vectorOf(task, ready.plan, await trainedOrNothing(task, ready));
  const names = { plan: task.plan.id, model: modelDigest(task), device: store.device };
  const attempt = new Attempt(task.secure, { ...names, key, floor: FLOOR.clients, draw: randomBytes });
  const patience = (name) => (name === "roster" ? DAY : 60_000 + 20 * phase);
  const hear = (name) => wire.awaited(pathOf(task.id, `secure/${name}`), patience(name));
  const say = async (name, message) => {
    try {
      await wire.json("POST", pathOf(task.id, `secure/${name}`), message);
    } catch (error) {
      // The next wait tells how the attempt went on.
      if (error.code !== "phase_over") throw error;
    }
  };
  pend(task, {});
  await say("keys", attempt.keys);
  await say("shares", attempt.takeRoster(await hear("roster")));
  attempt.takeShares(await hear("shares"));
  const spec = sha256Hex(canonical(sections.map(({ name, values, bits }) => [name, values, bits])));
  const told = { format: "coterie-masked/1", attempt: id, ...namesOf(task), spec };
  await upload(task, fileOf(told, [["masked", attempt.masked(vector)]]));
  const agreement = attempt.takeSurvivors(await hear("survivors"));
  if (attempt.isConsistent) {
    await say("agreement", agreement);
    attempt.takeAgreements(await hear("agreements"));
  }
  await say("reveal", attempt.reveal());
  const { state, cause } = await hear("outcome");
  tell("attempt", { task: task.id, state, mode });
  if (state !== "summed") throw new Refusal("attempt_over", cause, true);
}

// Whether the update was accepted. What this device refuses it tells, and gives back.
async function work(task) {
  try {
    checkTask(task, store);
    const { file } = store.pending[task.id] ?? {};
    if (file) await upload(task, Buffer.from(file, "base64"));
    else await (task.secure ? inSecret : inTheOpen)(task, await prepared(task));
    return true;
  } catch (error) {
    const { code = "trainer_failed", message, isTold } = error;
    tell("refused", { task: task.id, code, detail: message });
    if (!store.pending[task.id]?.isSent) delete store.pending[task.id];
    save();
    if (!isTold) await giveBack(task.id, code);
    return false;
  }
}

async function giveBack(id, code) {
  try {
    await wire.json("POST", pathOf(id, "abort"), { phase: "training", code });
  } catch (error) {
    if (!error.isTold) throw error;
  }
}

function settle(settled) {
  for (const [task, outcome] of Object.entries(settled)) {
    if (!store.pending[task]) continue;
    delete store.pending[task];
    store.counted += Number(outcome === "counted");
    tell("settled", { task, outcome });
  }
  save();
}

if (!store.device) await join();
// One that was ended inside an attempt cannot know what it has said there, and says nothing more.
for (const [id, { file, isSent }] of Object.entries(store.pending)) {
  if (!file && !isSent) await giveBack(id, "attempt_lost");
}
for (;;) {
  const pending = Object.keys(store.pending).slice(-64);
  const answer = await wire.json("POST", "/v1/device/check-in", { pending, ...ABLE });
  wire.windowStart = answer.retry_if_rejected.min_ms;
  settle(answer.settled);
  if (store.counted >= Number(count)) break;
  const isAccepted = answer.task ? await work(answer.task) : false;
  const window = isAccepted ? answer.retry_if_accepted : answer.retry_if_rejected;
  await sleep(window.min_ms + Math.random() * (window.max_ms - window.min_ms));
}
tell("done", { counted: store.counted, public: publicHex(key) });
