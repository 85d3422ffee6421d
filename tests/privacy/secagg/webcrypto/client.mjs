/**
 * One client of secure aggregation: a state, what it hears, and what it says. Nothing here does input or output, and
 * the only platform is WebCrypto. It does what docs/security.md says, and protocol/vectors/ hold it.
 *
 *     let { state, answer } = await begin(terms, { device, plan, model, identity, public });
 *     ({ state, answer } = await step(state, { kind: "Roster", message }, identity));
 *     ({ state, packed } = await mask(state, vector));
 *
 * A state is stored before its answer is sent. After a refusal the client says nothing more in the attempt.
 */

import { fallenApart, fewestSurvivors, neighbours, order, parameters, quorum } from "./graph.mjs";
import { addMasks, checkRing, pack } from "./masks.mjs";
import {
  agree,
  canonical,
  checkPublic,
  derive,
  exchangeKey,
  fromBase64,
  fromHex,
  isSigned,
  joined,
  publicOf,
  Refused,
  seal,
  sha256,
  sign,
  systemEntropy,
  toBase64,
  toHex,
  u32,
  unseal,
  utf8,
} from "./primitives.mjs";
import { decode, share, SHARE_BYTES } from "./shamir.mjs";

/** @typedef {import("./primitives.mjs").Entropy} Entropy */
/**
 * @typedef {object} Entry of a roster: keys in hex, the signature in base64
 * @property {number} position @property {string} device @property {string} identity
 * @property {string} mask_key @property {string} channel_key @property {string} signature
 */
/** @typedef {{ kind: string, message: any }} Message */
/** @typedef {{ state: State, answer: Message | null }} Step */
/**
 * @typedef {object} State
 * @property {"roster" | "shares" | "vector" | "survivors" | "agreements" | "outcome" | "nothing"} awaits
 * @property {any} terms @property {string} plan @property {string} model @property {number} floor
 * @property {Entry} own @property {{ maskKey: Uint8Array, channelKey: Uint8Array, seed: Uint8Array } | null} secrets
 * @property {Record<string, { told: string, answer: Message | null }>} answered by the kind of message
 * @property {import("./graph.mjs").Parameters} [parameters] @property {Uint8Array} [context]
 * @property {Record<number, Entry>} [near] the neighbours @property {string[]} [identities] of everybody, by place
 * @property {Record<number, Uint8Array>} [channels] the keys of the neighbours' boxes
 * @property {Record<number, { seed: Uint8Array, maskKey: Uint8Array }>} [held] the neighbours' shares
 * @property {string} [left] the digest of the masked vector @property {number[]} [alive] @property {string} [listed]
 */

const KEYS_DOMAIN = "coterie secure keys v1\n";
const SURVIVORS_DOMAIN = "coterie secure survivors v1\n";
const LEAST_CLIENTS = 5;

/** What a client awaits, what it then takes, and by which rule. The page's diagram is this table. */
const TABLE = {
  roster: { Roster: takeRoster, Outcome: takeOutcome },
  shares: { SharesFor: takeShares, Outcome: takeOutcome },
  vector: { Outcome: takeOutcome },
  survivors: { Survivors: takeSurvivors, Outcome: takeOutcome },
  agreements: { Agreements: takeAgreements, Outcome: takeOutcome },
  outcome: { Outcome: takeOutcome },
  nothing: {},
};

/**
 * Enter an attempt: fresh keys, a fresh seed, and the public keys to send, signed.
 * @param {any} terms as the signed task has them
 * @param {{ device: string, plan: string, model: string, public: string, identity: CryptoKey, floor?: number }} own
 * @param {Entropy} [entropy] @returns {Promise<Step>}
 */
export async function begin(terms, own, entropy = systemEntropy) {
  const floor = own.floor ?? LEAST_CLIENTS;
  if (terms.max_clients < floor) throw new Refused("secagg_cohort", "The task allows fewer clients than the device.");
  const [maskKey, channelKey, seed] = [entropy(32), entropy(32), entropy(32)];
  const keys = { mask_key: await publicHex(maskKey), channel_key: await publicHex(channelKey) };
  const { device, plan, model } = own;
  const message = await keysMessage({ terms, plan, model }, { device, ...keys });
  const advertised = { ...keys, signature: await sign(own.identity, KEYS_DOMAIN, message) };
  const entry = { position: 0, device, identity: own.public, ...advertised };
  const secrets = { maskKey, channelKey, seed };
  const state = Object.freeze({ awaits: "roster", terms, plan, model, floor, own: entry, secrets, answered: {} });
  return { state, answer: { kind: "AdvertiseKeys", message: advertised } };
}

/**
 * What the coordinator said, and the answer to it. The same message again has the same answer, from the state.
 * @param {State} state @param {Message} heard @param {CryptoKey} identity @param {Entropy} [entropy]
 * @returns {Promise<Step>}
 */
export async function step(state, heard, identity, entropy = systemEntropy) {
  const told = canonical(heard.message);
  if (Object.hasOwn(state.answered, heard.kind)) {
    const before = state.answered[heard.kind];
    if (before.told !== told) throw new Refused("secagg_repeated", `Two different messages ${heard.kind} came.`);
    return { state, answer: before.answer };
  }
  const row = TABLE[state.awaits];
  if (!Object.hasOwn(row, heard.kind)) throw new Refused("secagg_phase", `The client awaits ${state.awaits}.`);
  const { state: after, answer } = await row[heard.kind](state, heard.message, { identity, entropy });
  if (heard.kind === "Outcome") return { state: after, answer };
  return { state: next(after, { answered: { ...state.answered, [heard.kind]: { told, answer } } }), answer };
}

/**
 * The vector under its masks, packed; a second, different one does not leave.
 * @param {State} state @param {Uint32Array} vector @returns {Promise<{ state: State, packed: Uint8Array }>}
 */
export async function mask(state, vector) {
  if (state.awaits !== "vector" && state.awaits !== "survivors") throw new Refused("secagg_phase", "No vector is due.");
  const segments = segmentsOf(state.terms);
  checkRing(vector, segments);
  const total = vector.slice();
  await addMasks(total, [
    await ownMask(state.context, state.own.position, state.secrets.seed),
    ...(await masksOfPairs(state)),
  ]);
  const packed = pack(total, segments);
  const left = toHex(await sha256(packed));
  if (state.awaits === "survivors" && state.left !== left) {
    throw new Refused("secagg_second_vector", "A second vector would leave under the masks of the first.");
  }
  return { state: next(state, { awaits: "survivors", left }), packed };
}

/** The state after a refusal, or when the device gives up: it knows no secret and answers nothing. @param {State} state */
export const aborted = (state) =>
  next(state, { awaits: "nothing", answered: {}, secrets: null, held: {}, channels: {} });

/** The rings of the terms. @param {any} terms @returns {import("./masks.mjs").Segment[]} */
export const segmentsOf = (terms) => terms.sections.map(({ name, values, bits }) => ({ name, length: values, bits }));

// Rules: each takes the state and a message, and gives the next state and the answer, or refuses.

async function takeRoster(state, roster, { entropy }) {
  const settled = checkSize(state, roster);
  checkEntries(state, roster, settled);
  const own = { ...state.own, position: roster.position };
  if (state.terms.mode === "consistent") await checkEverybody(state, roster, own);
  const near = Object.fromEntries(roster.entries.filter(nearTo(own, settled)).map((entry) => [entry.position, entry]));
  const context = await contextOf(state, settled, roster.digest);
  const identities = state.terms.mode === "consistent" ? roster.entries.map(({ identity }) => identity) : [];
  const channels = await channelKeys(context, own, state.secrets.channelKey, near);
  const known = next(state, { awaits: "shares", own, near, context, identities, channels, parameters: settled });
  return { state: known, answer: { kind: "Shares", message: await deal(known, entropy) } };
}

function checkSize({ terms, floor }, roster) {
  const whole = Number.isInteger(roster.clients) && Number.isInteger(roster.position) && roster.position >= 0;
  if (!whole) throw new Refused("secagg_roster", "Clients and places are whole numbers.");
  const cohort = roster.clients >= Math.max(terms.min_clients, floor) && roster.clients <= terms.max_clients;
  if (!cohort) throw new Refused("secagg_cohort", `${roster.clients} clients are too few or too many.`);
  const settled = parameters(roster.clients, terms.corrupt, terms.dropout, terms.mode);
  if (roster.neighbours !== settled.neighbours || roster.threshold !== settled.threshold) {
    throw new Refused("secagg_weakened", "The coordinator names other parameters than the client computes.");
  }
  return settled;
}

function checkEntries(state, roster, settled) {
  if (roster.position >= roster.clients) throw new Refused("secagg_roster", "The roster has no such place.");
  const everybody = Array.from({ length: roster.clients }, (_, place) => place);
  const near = neighbours(roster.position, roster.clients, settled.neighbours);
  const shown = state.terms.mode === "consistent" ? everybody : near;
  const given = roster.entries.map(({ position }) => position);
  if (canonical(given) !== canonical(shown)) throw new Refused("secagg_roster", "The roster shows other places.");
  const all = [...roster.entries.filter(({ position }) => position !== roster.position), state.own];
  for (const values of [
    all.map(({ device }) => device),
    all.map(({ identity }) => identity),
    all.flatMap(({ mask_key, channel_key }) => [mask_key, channel_key]),
  ]) {
    if (new Set(values).size < values.length) throw new Refused("secagg_roster", "Somebody stands there twice.");
  }
  for (const entry of roster.entries.filter(({ position }) => position !== roster.position)) {
    for (const key of [entry.mask_key, entry.channel_key]) checkPublic(fromHex(key));
  }
}

async function checkEverybody(state, roster, own) {
  if (canonical(roster.entries[own.position]) !== canonical(own)) {
    throw new Refused("secagg_roster", "The roster shows other keys of this client than it sent.");
  }
  for (const entry of roster.entries) {
    const message = await keysMessage(state, entry);
    if (!(await isSigned(entry.identity, KEYS_DOMAIN, message, entry.signature))) {
      throw new Refused("secagg_signature", `The client at place ${entry.position} did not sign these keys.`);
    }
  }
  const keys = roster.entries.map(({ mask_key, channel_key }) => fromHex(mask_key + channel_key));
  const placed = (await order(keys, state.terms.attempt)).every((index, place) => index === place);
  if (!placed) throw new Refused("secagg_roster", "The places are not those that the keys give.");
  const digest = await sha256(domain("roster"), ...roster.entries.map(entryBytes));
  if (toHex(digest) !== roster.digest) throw new Refused("secagg_roster", "The digest is not that of the entries.");
}

async function deal({ secrets, parameters: { threshold }, near, context, own, channels }, entropy) {
  const places = placesOf(near);
  const seeds = share(secrets.seed, threshold, places.length, entropy);
  const keys = share(secrets.maskKey, threshold, places.length, entropy);
  const boxes = {};
  for (const [index, place] of places.entries()) {
    const data = boxData(context, own.position, place);
    boxes[place] = toBase64(await seal(channels[place], joined(seeds[index], keys[index]), data, entropy));
  }
  return { commitment: await commitment(context, own.position, secrets.seed), boxes };
}

async function takeShares(state, { boxes }) {
  const places = placesOf(boxes);
  if (places.some((place) => !(place in state.near))) throw new Refused("secagg_box", "A stranger has a box for us.");
  if (places.length < state.parameters.threshold)
    throw new Refused("secagg_neighbours", "Too few neighbours are left.");
  const held = {};
  for (const place of places) {
    const data = boxData(state.context, place, state.own.position);
    const both = await unseal(state.channels[place], fromBase64(boxes[place]), data);
    if (both.length !== 2 * SHARE_BYTES) throw new Refused("secagg_box", "A box holds two shares.");
    held[place] = { seed: both.slice(0, SHARE_BYTES), maskKey: both.slice(SHARE_BYTES) };
    Object.values(held[place]).forEach(decode);
  }
  return { state: next(state, { awaits: "vector", held, channels: {} }), answer: null };
}

async function takeSurvivors(state, message, { identity }) {
  if (toHex(await survivorsDigest(state.context, message)) !== message.digest) {
    throw new Refused("secagg_survivors", "The digest is not that of the list.");
  }
  const alive = checkSurvivors(state, message);
  const accepted = next(state, { alive, listed: message.digest });
  if (state.terms.mode === "semi_honest") return reveal(accepted);
  const signature = await sign(identity, SURVIVORS_DOMAIN, agreementMessage(accepted));
  return { state: next(accepted, { awaits: "agreements" }), answer: { kind: "Agreement", message: { signature } } };
}

function checkSurvivors({ own, near, held, terms, floor, parameters: settled }, message) {
  const [alive, dealt] = [placesIn(message.alive, settled.clients), placesIn(message.dealt, settled.clients)];
  const brought = dealt.filter((place) => place in near);
  const cut = alive.some((place) => !dealt.includes(place)) || canonical(brought) !== canonical(placesOf(held));
  if (!alive.includes(own.position) || cut) throw new Refused("secagg_survivors", "The list cannot be.");
  if (alive.length < fewestSurvivors(settled, Math.max(terms.min_clients, floor))) {
    throw new Refused("secagg_cohort", `Only ${alive.length} clients survived.`);
  }
  const close = alive.filter((place) => place in held).length;
  if (close < settled.threshold) throw new Refused("secagg_neighbours", "Too few neighbours survived.");
  if (fallenApart(alive, settled)) throw new Refused("secagg_survivors", "The survivors are groups.");
  return alive;
}

async function takeAgreements(state, { signatures }) {
  const message = agreementMessage(state);
  for (const place of placesOf(signatures)) {
    const known = state.alive.includes(place);
    if (!known || !(await isSigned(state.identities[place], SURVIVORS_DOMAIN, message, signatures[place]))) {
      throw new Refused("secagg_agreement", `The client at place ${place} did not sign this list.`);
    }
  }
  if (placesOf(signatures).length < quorum(state.parameters)) {
    throw new Refused("secagg_agreement", "Fewer clients than the quorum agree.");
  }
  return reveal(state);
}

/** One share of each neighbour, never both; the own secrets end before the answer leaves. */
function reveal(state) {
  const given = (places, what) => Object.fromEntries(places.map((place) => [place, toBase64(state.held[place][what])]));
  const places = placesOf(state.held);
  const [here, gone] = [true, false].map((there) => places.filter((place) => state.alive.includes(place) === there));
  const message = { self_shares: given(here, "seed"), mask_shares: given(gone, "maskKey") };
  return { state: next(state, { awaits: "outcome", secrets: null, held: {} }), answer: { kind: "Reveal", message } };
}

function takeOutcome(state, message) {
  const over = { awaits: "nothing", secrets: null, held: {}, channels: {} };
  return { state: message.state === "open" ? state : next(state, over), answer: null };
}

// Bytes: what is hashed, signed and derived.

/** Domain, purpose and context; a number is four bytes, bytes come after their length. */
export const bound = (context, purpose, ...parts) =>
  joined(domain(purpose), context, ...parts.map((part) => (typeof part === "number" ? u32(part) : counted(part))));

const domain = (purpose) => utf8(`coterie/secagg/v1/${purpose}\n`);

const counted = (bytes) => joined(u32(bytes.length), bytes);

/** What all clients of an attempt must have been asked alike: the task but for what is one device's own. */
export async function modelDigest(task) {
  const { id, device, seed, lease_ms, upload_limit, secure, signature, ...alike } = task;
  return toHex(await sha256(utf8(canonical(alike))));
}

async function termsDigest({ phase_ms, ...terms }) {
  const sections = terms.sections.map((section) => ({ norm: null, low: null, step: null, ...section }));
  return toHex(await sha256(utf8(canonical({ ...terms, sections }))));
}

export async function keysMessage({ terms, plan, model }, { device, mask_key, channel_key }) {
  const { attempt } = terms;
  return utf8(canonical({ attempt, terms: await termsDigest(terms), plan, model, device, mask_key, channel_key }));
}

const entryBytes = ({ device, identity, mask_key, channel_key, signature }) =>
  joined(utf8(device), fromHex(identity + mask_key + channel_key), fromBase64(signature));

async function contextOf({ terms, plan, model }, settled, roster) {
  const spec = await termsDigest(terms);
  return sha256(utf8(canonical({ attempt: terms.attempt, plan, model, spec, parameters: settled, roster })));
}

export const commitment = async (context, place, seed) =>
  toHex(await sha256(bound(context, "commitment", place, seed)));

/** @returns {Promise<import("./masks.mjs").Mask>} the mask that a client adds for itself alone */
export const ownMask = async (context, place, seed) => ({
  seed: await derive(seed, bound(context, "own mask", place)),
  sign: 1,
});

/** The masks of a place with others, by their public mask keys. @returns {Promise<import("./masks.mjs").Mask[]>} */
export async function pairMasks(context, place, privateKey, publicKey, others) {
  const key = await exchangeKey(privateKey);
  return Promise.all(
    placesOf(others).map(async (peer) => {
      const other = fromHex(others[peer]);
      const seed = await agree(key, other, pairInfo(context, "pair mask", [place, publicKey], [peer, other]));
      return { seed, sign: place < peer ? 1 : -1 };
    }),
  );
}

/** What a common secret is for: both places and both keys, the lower place first. */
export function pairInfo(context, purpose, one, other) {
  const [low, high] = one[0] < other[0] ? [one, other] : [other, one];
  return bound(context, purpose, low[0], high[0], low[1], high[1]);
}

/** @param {any} state one that holds the neighbours' shares */
function masksOfPairs({ context, own, secrets, near, held }) {
  const others = Object.fromEntries(placesOf(held).map((place) => [place, near[place].mask_key]));
  return pairMasks(context, own.position, secrets.maskKey, fromHex(own.mask_key), others);
}

async function channelKeys(context, own, privateKey, near) {
  const key = await exchangeKey(privateKey);
  const keys = placesOf(near).map(async (place) => {
    const [low, high] = place < own.position ? [near[place], own] : [own, near[place]];
    const info = bound(context, "channel", low.position, entryBytes(low), high.position, entryBytes(high));
    return [place, await agree(key, fromHex(near[place].channel_key), info)];
  });
  return Object.fromEntries(await Promise.all(keys));
}

export const boxData = (context, sender, recipient) => bound(context, "box", utf8("shares"), sender, recipient);

export const survivorsDigest = (context, { alive, dealt }) =>
  sha256(bound(context, "survivors", utf8(alive), utf8(dealt)));

const agreementMessage = ({ context, listed }) => bound(context, "agreement", fromHex(listed));

/** The places of a list, one bit each. @param {string} text @param {number} clients @returns {number[]} ascending */
function placesIn(text, clients) {
  const bits = fromBase64(text);
  const beyond = clients % 8 !== 0 && bits[bits.length - 1] >> (clients % 8) !== 0;
  if (bits.length !== Math.ceil(clients / 8) || beyond) throw new Refused("secagg_survivors", "A list has n bits.");
  return Array.from({ length: clients }, (_, place) => place).filter((place) => (bits[place >> 3] >> (place & 7)) & 1);
}

// Small things.

const next = (state, changes) => Object.freeze({ ...state, ...changes });

const placesOf = (byPlace) => Object.keys(byPlace).map(Number);

const nearTo = (own, settled) => {
  const near = new Set(neighbours(own.position, settled.clients, settled.neighbours));
  return ({ position }) => near.has(position);
};

const publicHex = async (raw) => toHex(await publicOf(await exchangeKey(raw)));
