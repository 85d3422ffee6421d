/** An attempt of secure aggregation over HTTP: the vector, its rounds, its masked file. docs/security.md, "The bytes". */

import { randomBytes } from "node:crypto";
import { begin, mask, modelDigest, segmentsOf, step } from "../privacy/secagg/webcrypto/client.mjs";
import { rounded } from "../privacy/secagg/webcrypto/grid.mjs";
import { specDigest } from "../privacy/secagg/webcrypto/masks.mjs";
import { identityKey } from "../privacy/secagg/webcrypto/primitives.mjs";
import { seedOf } from "../privacy/secagg/webcrypto/rotation.mjs";
import { encodeTensors } from "./tensors.mjs";

const HEARD = { roster: "Roster", shares: "SharesFor", survivors: "Survivors", agreements: "Agreements", outcome: "Outcome" };
const PATHS = { AdvertiseKeys: "keys", Shares: "shares", Agreement: "agreement", Reveal: "reveal" };
const UNUSABLE = 1e-3; // of the numbers of a fine grid; more of them at its ends were cut there

/** A secret number in [0, 1) of 48 bits. */
const uniform = () => randomBytes(6).readUIntBE(0, 6) * 2 ** -48;

/** The numbers of one section before the weight, and whether they were cut. */
async function numbersOf(section, vector, task) {
  if (section.encoding === "fixed") {
    const [low, width] = [section.low ?? 0, section.step ?? 1];
    const places = Array.from(vector, (value) => (value - low) / width);
    const within = places.map((place) => Math.min(section.top, Math.max(0, place)));
    const numbers = within.map((place) => Math.min(section.top, Math.floor(place + (Number.isInteger(place) ? 0 : uniform()))));
    return { numbers, cut: places.some((place, at) => place !== within[at]) };
  }
  if (section.encoding !== "grid") throw new Error(`This device knows no encoding ${section.encoding}.`);
  const grid = { bits: Math.floor(Math.log2(section.top)) + 1, norm: section.norm };
  const seeds = { own: new Uint8Array(randomBytes(32)), shared: await seedOf("shared", task.plan.id, task.model.sha256, section.name) };
  const numbers = (await rounded(vector, grid, seeds)).flatMap((block) => Array.from(block.numbers));
  const ends = numbers.filter((number) => number === 0 || number === section.top).length;
  const long = Math.sqrt(vector.reduce((sum, value) => sum + value * value, 0)) > section.norm;
  return { numbers, cut: long || (grid.bits >= 8 && ends > UNUSABLE * numbers.length) };
}

/** The update in the ring: counts first, then section after section, times the weight where the plan says so. */
async function vectorOf(task, manifest, { weight, sections }) {
  const own = { ...sections };
  const cap = task.secure.weight_cap;
  own.metrics = Float64Array.from(sections.metrics);
  if (own.metrics[0] > cap) own.metrics = own.metrics.map((sum) => (sum * cap) / sections.metrics[0]);
  const [parts, flags] = [[], { grid: false, fixed: false }];
  for (const section of task.secure.sections.slice(1)) {
    const weighted = manifest.sections.find(({ name }) => name === section.name).reduction === "weighted_mean";
    const { numbers, cut } = await numbersOf(section, own[section.name], task);
    flags[section.encoding] ||= cut;
    parts.push(...numbers.map((number) => number * (weighted ? weight : 1)));
  }
  const counts = [1, weight, Math.round(own.metrics[0]), Number(flags.grid), Number(flags.fixed)];
  return Uint32Array.from([...counts, ...parts]);
}

/**
 * Bring the task's attempt to its end. Whatever is sent follows from a state that lives in memory: a device that is killed
 * on the way is out of the attempt, and says nothing more in it.
 */
export async function aggregate(task, manifest, done, identity, { request, post, upload, say }) {
  const terms = task.secure;
  const vector = await vectorOf(task, manifest, done);
  const model = await modelDigest(task);
  const key = await identityKey(new Uint8Array(identity.seed));
  const own = { device: identity.device, plan: task.plan.id, model, identity: key, public: identity.public, floor: terms.min_clients };
  let { state, answer } = await begin(terms, own);
  const path = (name) => `/v1/device/tasks/${task.id}/secure/${name}`;
  for (;;) {
    if (answer) await post(path(PATHS[answer.kind]), answer.message);
    const awaited = state.awaits;
    const heard = await ask(request, `${path(awaited)}?wait_ms=20000`);
    say("heard", { task: task.id, message: HEARD[awaited], mode: terms.mode });
    ({ state, answer } = await step(state, { kind: HEARD[awaited], message: heard }, key));
    if (awaited === "outcome" && heard.state !== "open") return say("attempt", { task: task.id, state: heard.state, mode: terms.mode });
    if (state.awaits !== "vector") continue;
    const masked = await mask(state, vector);
    state = masked.state;
    const names = { attempt: terms.attempt, task: task.id, plan: task.plan.id, base: task.model.sha256 };
    const header = { format: "coterie-masked/1", ...names, spec: await specDigest(segmentsOf(terms)) };
    await upload(task, encodeTensors({ masked: masked.packed }, header));
  }
}

/** The long poll: asked again until the coordinator has something to say. */
async function ask(request, target) {
  for (;;) {
    const answer = await request("GET", target);
    if (answer.status !== 204) return answer.json();
    await new Promise((resolve) => setTimeout(resolve, 1000 * Number(answer.headers.get("retry-after") ?? 0)));
  }
}

