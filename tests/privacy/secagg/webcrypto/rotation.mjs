/**
 * Public rotations: blocks of a vector, signs from a seed, and Walsh-Hadamard transforms; and what stands on them in
 * differential privacy, where a vector is dealt and rotated before it is rounded. docs/codecs.md, "The grid, exactly".
 */

import { joined, sha256, utf8 } from "./primitives.mjs";

const { subtle } = globalThis.crypto;
const BLOCK = 4096;
const LEAST = 64;

/** A seed of labelled texts. @param {...string} parts @returns {Promise<Uint8Array>} */
export const seedOf = (...parts) => sha256(...["coterie-codec-1", ...parts].map(counted));

/** A seed for one purpose. @param {Uint8Array} seed @param {string} label @returns {Promise<Uint8Array>} */
export const purpose = (seed, label) => sha256(seed, utf8(label));

/**
 * The first bytes of a seed's key stream.
 * @param {Uint8Array} seed @param {number} count @returns {Promise<Uint8Array>}
 */
export async function stream(seed, count) {
  const key = await subtle.importKey("raw", seed, "AES-CTR", false, ["encrypt"]);
  const how = { name: "AES-CTR", counter: new Uint8Array(16), length: 128 };
  return new Uint8Array(await subtle.encrypt(how, key, new Uint8Array(count)));
}

/** The signs of a block: bit i is 1 for -1. @param {Uint8Array} shared @returns {Promise<Float64Array>} */
export async function signs(shared) {
  const bits = await stream(await purpose(shared, "rotate"), BLOCK / 8);
  return Float64Array.from({ length: BLOCK }, (_, at) => 1 - 2 * ((bits[at >> 3] >> (at & 7)) & 1));
}

/** The blocks of a vector. @param {number} length @returns {{ start: number, size: number }[]} */
export function blocks(length) {
  const found = [];
  let start = 0;
  for (; length - start >= BLOCK; start += BLOCK) found.push({ start, size: BLOCK });
  let rest = Math.ceil((length - start) / LEAST) * LEAST;
  for (let size = BLOCK / 2; rest > 0; size /= 2) {
    if (rest < size) continue;
    found.push({ start, size });
    start += size;
    rest -= size;
  }
  return found;
}

/** The coordinates of all blocks, with the zeros that fill the last. @param {number} length @returns {number} */
export const padded = (length) => blocks(length).reduce((sum, { size }) => sum + size, 0);

/** H x in place, H in Sylvester's order, not divided by anything. @param {Float64Array} x of a power of two */
export function transform(x) {
  for (let half = 1; half < x.length; half *= 2) {
    for (let low = 0; low < x.length; low += 2 * half) {
      for (let at = low; at < low + half; at++) {
        const [one, other] = [x[at], x[at + half]];
        x[at] = one + other;
        x[at + half] = one - other;
      }
    }
  }
}

/** A vector dealt and rotated, of the same norm. @param {number[]} vector @param {Uint8Array} shared the public seed */
export async function spread(vector, shared) {
  const flips = await signs(shared);
  const out = new Float64Array(padded(vector.length));
  dealing(vector.length).forEach((from, at) => (out[at] = vector[from]));
  for (const { start, size } of blocks(vector.length)) {
    const block = out.subarray(start, start + size);
    for (let at = 0; at < size; at++) block[at] *= flips[at];
    transform(block);
    for (let at = 0; at < size; at++) block[at] /= Math.sqrt(size);
  }
  return out;
}

/** The vector again. @param {ArrayLike<number>} turned @param {number} length @param {Uint8Array} shared */
export async function gather(turned, length, shared) {
  const flips = await signs(shared);
  const out = Float64Array.from(turned);
  for (const { start, size } of blocks(length)) {
    const block = out.subarray(start, start + size);
    transform(block);
    for (let at = 0; at < size; at++) block[at] *= flips[at] / Math.sqrt(size);
  }
  const vector = new Float64Array(length);
  dealing(length).forEach((from, at) => (vector[from] = out[at]));
  return vector;
}

/**
 * The noised sum of a ring's numbers.
 * @param {number[]} total @param {{ bits: number, length: number, scale: number }} terms @param {Uint8Array} shared
 */
export async function ofNoisedSum(total, { bits, length, scale }, shared) {
  const ring = 2 ** bits;
  const lifted = total.map((number) => (number % ring >= ring / 2 ? (number % ring) - ring : number % ring));
  return (await gather(lifted, length, shared)).map((value) => value / scale);
}

/** The bound of the squares after conditional rounding. @param {number} norm in steps @param {number} length padded */
export function largestSquare(norm, length) {
  const root = Math.sqrt(length);
  return Math.floor(Math.min((norm + root) ** 2, norm ** 2 + length / 4 + norm + root / 2));
}

/** The step of the dealing: next to length / golden ratio, without a common divisor. @param {number} length */
export function stride(length) {
  const near = Math.max(1, Math.round(length / ((1 + Math.sqrt(5)) / 2)));
  for (let away = 0; away < length; away++) {
    for (const step of [near - away, near + away]) {
      if (step >= 1 && step <= length && divisor(step, length) === 1) return step;
    }
  }
  return 1;
}

const divisor = (one, other) => (other === 0 ? one : divisor(other, one % other));

/** From where each coordinate is dealt. @param {number} length @returns {number[]} */
function dealing(length) {
  const step = stride(length);
  return Array.from({ length }, (_, at) => (at * step) % length);
}

/** Four little-endian bytes of length, then the text. @param {string} text */
function counted(text) {
  const bytes = utf8(text);
  const size = new Uint8Array(4);
  new DataView(size.buffer).setUint32(0, bytes.length, true);
  return joined(size, bytes);
}
