/**
 * Shamir's shares of 32 bytes over the field of 2^31 + 11, as nine limbs of 31 bits. Products are made of halves of 16
 * bits, which doubles hold exactly, so that no BigInt is needed.
 */

import { Refused } from "./primitives.mjs";

const PRIME = 2 ** 31 + 11;
const LIMBS = 9;
const LIMB = 2 ** 31;
const SECRET = 32;
export const SHARE_BYTES = 4 * LIMBS;

/**
 * Share x, from 1, is element x - 1; any `threshold` of them open the secret.
 * @param {Uint8Array} secret 32 bytes @param {number} threshold @param {number} count
 * @param {import("./primitives.mjs").Entropy} entropy @returns {Uint8Array[]} 36 bytes each
 */
export function share(secret, threshold, count, entropy) {
  const limbs = Array.from({ length: LIMBS }, (_, index) => limbOf(secret, index));
  const coefficients = elements(LIMBS * (threshold - 1), entropy);
  return Array.from({ length: count }, (_, index) => encode(limbs.map((limb, at) => value(limb, at, index + 1))));

  /** One limb's polynomial at x, from the highest power down. */
  function value(limb, at, x) {
    let sum = 0;
    for (let power = 0; power < threshold - 1; power++) {
      sum = times((sum + coefficients[LIMBS * power + at]) % PRIME, x);
    }
    return (sum + limb) % PRIME;
  }
}

/** The secret of the first `threshold` shares. @param {number[]} points @param {Uint8Array[]} shares */
export function rebuild(points, shares, threshold) {
  const used = points.slice(0, threshold);
  const rows = shares.slice(0, threshold).map(decode);
  if (used.length < threshold || rows.length < threshold) throw refused("Too few shares.");
  if (new Set(used).size < threshold || used.some((point) => !(point > 0 && point < PRIME))) {
    throw refused("Each share must have its own number, starting at 1.");
  }
  const weights = used.map((point) => weightAtZero(point, used));
  const limbs = Array.from({ length: LIMBS }, (_, at) =>
    rows.reduce((sum, row, index) => (sum + times(weights[index], row[at])) % PRIME, 0),
  );
  return join(limbs);
}

/** The nine field elements of a share. @param {Uint8Array} bytes @returns {number[]} */
export function decode(bytes) {
  if (bytes.length !== SHARE_BYTES) throw refused(`A share has ${SHARE_BYTES} bytes.`);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const found = Array.from({ length: LIMBS }, (_, index) => view.getUint32(4 * index, true));
  if (found.some((element) => element >= PRIME)) throw refused("A share lies outside the field.");
  return found;
}

/** Uniform field elements: words beyond the field are rejected. */
function elements(count, entropy) {
  const found = [];
  while (found.length < count) {
    const drawn = entropy(8 * (count - found.length) + 256);
    const view = new DataView(drawn.buffer, drawn.byteOffset, drawn.byteLength);
    for (let at = 0; at < drawn.length; at += 4) {
      const word = view.getUint32(at, true);
      if (word < PRIME) found.push(word);
    }
  }
  return found.slice(0, count);
}

/** a · b modulo the prime; b is cut in two. @param {number} a @param {number} b */
function times(a, b) {
  const high = Math.floor(b / 65536);
  return (((a * high) % PRIME) * 65536 + a * (b % 65536)) % PRIME;
}

/** The Lagrange coefficient at 0: the product of other / (other - point). */
function weightAtZero(point, points) {
  let above = 1;
  let below = 1;
  for (const other of points) {
    if (other === point) continue;
    above = times(above, other);
    below = times(below, (other - point + PRIME) % PRIME);
  }
  return times(above, inverse(below));
}

/** By Fermat's little theorem: value^(p - 2). */
function inverse(value) {
  let result = 1;
  let power = value;
  for (let rest = PRIME - 2; rest > 0; rest = Math.floor(rest / 2)) {
    if (rest % 2 === 1) result = times(result, power);
    power = times(power, power);
  }
  return result;
}

/** Bits 31 · index and on of a little-endian number. @param {Uint8Array} secret @param {number} index */
function limbOf(secret, index) {
  const first = (31 * index) >> 3;
  let bits = 0;
  for (let byte = 4; byte >= 0; byte--) bits = 256 * bits + (secret[first + byte] ?? 0);
  return Math.floor(bits / 2 ** ((31 * index) & 7)) % LIMB;
}

/** @param {number[]} limbs @returns {Uint8Array} */
function join(limbs) {
  if (limbs.some((limb) => limb >= LIMB) || limbs[LIMBS - 1] >= 256)
    throw refused("The shares are not shares of 32 bytes.");
  const out = new Uint8Array(SECRET);
  let [bits, held, at] = [0, 0, 0];
  for (const limb of limbs) {
    bits += limb * 2 ** held;
    for (held += 31; held >= 8 && at < SECRET; held -= 8) {
      out[at++] = bits % 256;
      bits = Math.floor(bits / 256);
    }
  }
  return out;
}

function encode(values) {
  const out = new Uint8Array(SHARE_BYTES);
  const view = new DataView(out.buffer);
  values.forEach((element, index) => view.setUint32(4 * index, element, true));
  return out;
}

const refused = (message) => new Refused("secagg_shares", message);
