// A client of one attempt at secure aggregation: what it says, and what it refuses to hear.
import { createCipheriv, createDecipheriv, createPrivateKey, diffieHellman, hkdfSync } from "node:crypto";
import { addMask, neighboursOf, packed, parameters, part, sharesOf } from "./ring.mjs";
import { canonical, isSigned, joined, publicHex, publicKey, sha256, sha256Hex, signed } from "./signing.mjs";
import { must } from "./wire.mjs";

const KEYS = "coterie secure keys v1";
const SURVIVORS = "coterie secure survivors v1";

const hex = (text) => Buffer.from(text, "hex");
const base64 = (text) => Buffer.from(text, "base64");
const u32 = (number) => Buffer.from([number >>> 24, number >>> 16, number >>> 8, number]);
const domain = (purpose) => `coterie/secagg/v1/${purpose}\n`;
const range = (count) => [...Array(count).keys()];
const placesIn = (list) => range(8 * list.length).filter((place) => (list[place >> 3] >> (place & 7)) & 1);

const FIELD = 2n ** 255n - 19n;
const OF_SMALL_ORDER = [
  0n,
  1n,
  FIELD - 1n,
  0x00b8495f16056286fdb1329ceb8d09da6ac49ff1fae35616aeb8413b7c7aebe0n,
  0x57119fd0dd4e22d8868e1c58c45c44045bef839c55b1d0b1248c50a3bc959c5fn,
];

export function checkPublic(key) {
  must(/^[0-9a-f]{64}$/.test(key), "secagg_key_invalid", "not 32 bytes");
  const number = BigInt(`0x${hex(key).reverse().toString("hex")}`);
  must(number < FIELD && !OF_SMALL_ORDER.includes(number), "secagg_key_invalid", key);
}

// A private key of X25519 of 32 bytes, as PKCS #8.
function privateOf(bytes) {
  const key = joined(hex("302e020100300506032b656e04220420"), bytes);
  return createPrivateKey({ key, format: "der", type: "pkcs8" });
}

function agreed(privateKey, other, info) {
  const secret = diffieHellman({ privateKey, publicKey: publicKey("X25519", other) });
  return Buffer.from(hkdfSync("sha256", secret, "", info, 32));
}

export function termsDigest({ phase_ms: _, ...terms }) {
  const sections = terms.sections.map((section) => ({ norm: null, low: null, step: null, ...section }));
  return sha256Hex(canonical({ ...terms, sections }));
}

export function modelDigest(task) {
  const own = ["id", "device", "seed", "lease_ms", "upload_limit", "secure", "signature"];
  return sha256Hex(canonical(Object.fromEntries(Object.entries(task).filter(([name]) => !own.includes(name)))));
}

const ownKeys = (entry) => hex(entry.mask_key + entry.channel_key);
const entryBytes = (entry) => joined(entry.device, hex(entry.identity), ownKeys(entry), base64(entry.signature));

export class Attempt {
  constructor(secure, { plan, model, device, key, floor, draw }) {
    Object.assign(this, { secure, plan, model, key, floor, draw, terms: termsDigest(secure) });
    this.isConsistent = secure.mode === "consistent";
    this.maskSecret = draw(32);
    this.channel = privateOf(draw(32));
    this.seed = draw(32);
    this.keys = { mask_key: publicHex(privateOf(this.maskSecret)), channel_key: publicHex(this.channel) };
    this.keys.signature = signed(key, KEYS, this.keysMessage({ ...this.keys, device }));
    this.own = { ...this.keys, device, identity: publicHex(key) };
  }

  keysMessage({ device, mask_key, channel_key }) {
    const { terms, plan, model } = this;
    return canonical({ attempt: this.secure.attempt, terms, plan, model, device, mask_key, channel_key });
  }

  bound(purpose, ...parts) {
    const sized = parts.map((one) => (typeof one === "number" ? u32(one) : joined(u32(one.length), one)));
    return joined(domain(purpose), this.context, ...sized);
  }

  takeRoster(roster) {
    const { clients, neighbours, threshold, position: place, digest, entries } = roster;
    const { attempt, min_clients: least, max_clients: most, corrupt, dropout, mode } = this.secure;
    must(clients >= Math.max(least, this.floor) && clients <= most, "secagg_cohort", `${clients} clients`);
    const computed = parameters(clients, this.secure);
    const isComputed = computed.neighbours === neighbours && computed.threshold === threshold;
    must(isComputed, "secagg_weakened", `${neighbours} neighbours, ${threshold} of them`);
    must(range(clients).includes(place), "secagg_roster", "no place");
    Object.assign(this, { ...computed, place, near: neighboursOf(place, computed) });
    this.checkEntries(roster);
    this.entries = Object.fromEntries(entries.map((entry) => [entry.position, entry]));
    this.entries[place] = this.own;
    const context = { attempt, plan: this.plan, model: this.model, spec: this.terms, roster: digest };
    this.context = sha256(canonical({ ...context, parameters: { ...computed, corrupt, dropout, mode } }));
    return this.deal();
  }

  checkEntries({ clients, position, digest, entries }) {
    const places = this.isConsistent ? range(clients) : this.near;
    must(String(entries.map((entry) => entry.position)) === String(places), "secagg_roster", "other places");
    const everybody = this.isConsistent ? entries : [...entries, this.own];
    const keys = everybody.flatMap((entry) => [entry.mask_key, entry.channel_key]);
    keys.forEach(checkPublic);
    const names = [keys, everybody.map(({ device }) => device), everybody.map(({ identity }) => identity)];
    must(names.every((list) => new Set(list).size === list.length), "secagg_roster", "somebody stands there twice");
    if (!this.isConsistent) return;
    must(entryBytes(entries[position]).equals(entryBytes(this.own)), "secagg_roster", "the own entry is another");
    for (const entry of entries) {
      const isTheirs = isSigned(entry.identity, KEYS, this.keysMessage(entry), entry.signature);
      must(isTheirs, "secagg_signature", `place ${entry.position}`);
    }
    const sorted = entries.map(ownKeys).sort(Buffer.compare);
    const common = sha256(domain("order"), sha256(this.secure.attempt), ...sorted);
    const order = entries.map((entry) => sha256Hex(common, ownKeys(entry)));
    must(String([...order].sort()) === String(order), "secagg_roster", "places do not follow from the keys");
    const isTheirs = sha256Hex(domain("roster"), ...entries.map(entryBytes)) === digest;
    must(isTheirs, "secagg_roster", "the digest is of another roster");
  }

  // The secret shared with a neighbour, bound to both places and to what `bytesOf` gives of both entries.
  pairKey(secret, other, name, purpose, bytesOf) {
    const pair = [this.place, other].sort((one, two) => one - two);
    const bytes = pair.map((place) => bytesOf(this.entries[place]));
    const parts = purpose === "channel" ? [pair[0], bytes[0], pair[1], bytes[1]] : [...pair, ...bytes];
    return agreed(secret, this.entries[other][name], this.bound(purpose, ...parts));
  }

  boxKey(other) {
    return this.pairKey(this.channel, other, "channel_key", "channel", entryBytes);
  }

  deal() {
    const secrets = [this.seed, this.maskSecret];
    const [ofSeed, ofKey] = secrets.map((secret) => sharesOf(secret, this.near.length, this.threshold, this.draw));
    const boxes = {};
    this.near.forEach((other, i) => {
      const nonce = this.draw(12);
      const cipher = createCipheriv("aes-256-gcm", this.boxKey(other), nonce);
      cipher.setAAD(this.bound("box", "shares", this.place, other));
      const sealed = joined(cipher.update(joined(ofSeed[i], ofKey[i])), cipher.final());
      boxes[other] = joined(nonce, sealed, cipher.getAuthTag()).toString("base64");
    });
    return { commitment: sha256Hex(this.bound("commitment", this.place, this.seed)), boxes };
  }

  takeShares({ boxes }) {
    this.senders = Object.keys(boxes).map(Number);
    const areNear = this.senders.every((sender) => this.near.includes(sender));
    must(areNear && this.senders.length >= this.threshold, "secagg_neighbours", `${this.senders.length} boxes`);
    this.shares = Object.fromEntries(this.senders.map((sender) => [sender, this.open(sender, base64(boxes[sender]))]));
  }

  open(sender, box) {
    try {
      const cipher = createDecipheriv("aes-256-gcm", this.boxKey(sender), box.subarray(0, 12), { authTagLength: 16 });
      cipher.setAAD(this.bound("box", "shares", sender, this.place));
      cipher.setAuthTag(box.subarray(-16));
      const bytes = joined(cipher.update(box.subarray(12, -16)), cipher.final());
      must(bytes.length === 72, "secagg_box", "another length");
      return { ofSeed: bytes.subarray(0, 36), ofKey: bytes.subarray(36) };
    } catch {
      return must(false, "secagg_box", `the box of place ${sender} does not open`);
    }
  }

  masked(vector) {
    must(!this.hasMasked, "secagg_second_vector", "a vector was masked already");
    this.hasMasked = true;
    const { sections } = this.secure;
    const rings = sections.flatMap(({ values, bits }) => Array(values).fill(2 ** bits));
    const fits = vector.length === rings.length && vector.every((number, place) => number < rings[place]);
    must(fits, "secagg_vector", "a number outside its ring");
    const sum = Uint32Array.from(vector);
    addMask(sum, Buffer.from(hkdfSync("sha256", this.seed, "", this.bound("own mask", this.place), 32)), 1);
    const secret = privateOf(this.maskSecret);
    for (const other of this.senders) {
      const seed = this.pairKey(secret, other, "mask_key", "pair mask", ({ mask_key }) => hex(mask_key));
      addMask(sum, seed, this.place < other ? 1 : -1);
    }
    return packed(sum, sections);
  }

  takeSurvivors({ alive, dealt, digest }) {
    must(!this.alive, "secagg_repeated", "a second list of survivors");
    must(sha256Hex(this.bound("survivors", alive, dealt)) === digest, "secagg_survivors", "another digest");
    const { clients, near, secure } = this;
    const lists = [alive, dealt].map(base64);
    const [survivors, dealers] = lists.map(placesIn);
    const [living, dealing] = [new Set(survivors), new Set(dealers)];
    const fit = lists.every((list) => list.length === Math.ceil(clients / 8)) && (dealers.at(-1) ?? 0) < clients;
    const areDealers = survivors.every((place) => dealing.has(place));
    must(fit && areDealers && living.has(this.place), "secagg_survivors", "not a list of this client's");
    const boxes = near.filter((place) => dealing.has(place));
    must(String(boxes) === String(this.senders), "secagg_survivors", "other boxes than came");
    const isRing = near.length < clients - 1;
    const counted = isRing ? clients - part(secure.dropout, clients) : 0;
    const isEnough = survivors.length >= Math.max(secure.min_clients, this.floor, counted);
    must(isEnough, "secagg_cohort", `${survivors.length} survivors`);
    const left = near.filter((place) => living.has(place)).length;
    must(left >= this.threshold, "secagg_neighbours", `${left} neighbours`);
    const next = [...survivors.slice(1), survivors[0] + clients];
    const gaps = survivors.filter((place, i) => next[i] - place > near.length / 2).length;
    must(!isRing || gaps < 2, "secagg_survivors", "they fall apart");
    Object.assign(this, { alive: living, agreement: this.bound("agreement", hex(digest)) });
    return { signature: signed(this.key, SURVIVORS, this.agreement) };
  }

  takeAgreements({ signatures }) {
    const quorum = Math.floor((this.clients + part(this.secure.corrupt, this.clients)) / 2) + 1;
    const said = Object.entries(signatures);
    const areSigned = said.every(([place, signature]) => {
      const { identity } = this.entries[place] ?? {};
      return identity && this.alive.has(Number(place)) && isSigned(identity, SURVIVORS, this.agreement, signature);
    });
    must(areSigned && said.length >= quorum, "secagg_agreement", `${said.length} of ${quorum}`);
  }

  // Of each neighbour one share, never both; the own secrets go before it leaves.
  reveal() {
    Object.assign(this, { seed: null, maskSecret: null, channel: null });
    const chosen = (places, name) => {
      return Object.fromEntries(places.map((place) => [place, this.shares[place][name].toString("base64")]));
    };
    const isAlive = (place) => this.alive.has(place);
    const dropped = this.senders.filter((place) => !isAlive(place));
    return { self_shares: chosen(this.senders.filter(isAlive), "ofSeed"), mask_shares: chosen(dropped, "ofKey") };
  }
}
