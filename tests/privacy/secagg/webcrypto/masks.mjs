/**
 * Masks as key streams of AES-256-CTR, added to a vector of 32-bit words; and vectors as packed bits.
 * Words are read as the machine has them: every machine with WebCrypto has the lowest byte first.
 */

import { canonical, expand, Refused, sha256, toHex, utf8 } from "./primitives.mjs";

/** @typedef {{ seed: Uint8Array, sign: 1 | -1 }} Mask */
/** @typedef {{ name: string, length: number, bits: number }} Segment */

const { subtle } = globalThis.crypto;
const STREAM = utf8("coterie/secagg/v1/stream");
const TILE = 1 << 17; // 512 KiB of words: each call of WebCrypto has its price
const AT_ONCE = 4; // key streams that are made beside one another
const FIELDS = [16, 8, 4, 2, 1];
const ZEROS = new Uint8Array(4 * (TILE + 4));

/**
 * Add the masks' words from coordinate `start` on, in place, modulo 2^32.
 * @param {Uint32Array} total @param {Mask[]} masks @param {number} [start]
 */
export async function addMasks(total, masks, start = 0) {
  const streams = await Promise.all(masks.map(async ({ seed, sign }) => ({ ...(await stream(seed)), sign })));
  for (let low = 0; low < total.length; low += TILE) {
    const tile = total.subarray(low, low + TILE);
    for (let first = 0; first < streams.length; first += AT_ONCE) {
      const few = streams.slice(first, first + AT_ONCE);
      const drawn = await Promise.all(few.map((each) => words(each, start + low, tile.length)));
      drawn.forEach((mask, index) => (few[index].sign === 1 ? add(tile, mask) : subtract(tile, mask)));
    }
  }
}

/** @param {Uint32Array} tile @param {Uint32Array} mask */
function add(tile, mask) {
  for (let at = 0; at < tile.length; at++) tile[at] += mask[at];
}

/** @param {Uint32Array} tile @param {Uint32Array} mask */
function subtract(tile, mask) {
  for (let at = 0; at < tile.length; at++) tile[at] -= mask[at];
}

/** @param {Uint8Array} seed @returns {Promise<{ key: CryptoKey, nonce: Uint8Array }>} */
async function stream(seed) {
  const both = await expand(seed, STREAM, 44);
  const key = await subtle.importKey("raw", both.slice(0, 32), "AES-CTR", false, ["encrypt"]);
  return { key, nonce: both.slice(32) };
}

/** The words [start, start + count) of a stream. @returns {Promise<Uint32Array>} */
async function words({ key, nonce }, start, count) {
  const counter = new Uint8Array(16);
  counter.set(nonce);
  new DataView(counter.buffer).setUint32(12, Math.floor(start / 4));
  const lead = start % 4;
  const how = { name: "AES-CTR", counter, length: 32 };
  return new Uint32Array(await subtle.encrypt(how, key, ZEROS.subarray(0, 4 * (lead + count)))).subarray(lead);
}

/** @param {Segment[]} segments @returns {number} coordinates */
export const lengthOf = (segments) => segments.reduce((sum, { length }) => sum + length, 0);

/** @param {Segment[]} segments @returns {Promise<string>} hex */
export const specDigest = async (segments) =>
  toHex(await sha256(utf8(canonical(segments.map(({ name, length, bits }) => [name, length, bits])))));

/** Refuse a vector with a number outside its ring. @param {Uint32Array} vector @param {Segment[]} segments */
export function checkRing(vector, segments) {
  const inside =
    vector.length === lengthOf(segments) && reduced(vector, segments).every((word, at) => word === vector[at]);
  if (!inside) throw new Refused("secagg_vector", "A vector has one number for each coordinate, inside its ring.");
}

/** Each coordinate modulo 2^bits of its segment. @param {Uint32Array} vector @param {Segment[]} segments */
export function reduced(vector, segments) {
  const out = vector.slice();
  let at = 0;
  for (const { length, bits } of segments) {
    const lowest = 0xffffffff >>> (32 - bits);
    for (const end = at + length; at < end; at++) out[at] &= lowest;
  }
  return out;
}

/**
 * The lowest bits of every coordinate.
 * @param {Uint32Array} vector @param {Segment[]} segments @returns {Uint8Array}
 */
export function pack(vector, segments) {
  const out = new Uint8Array(packedBytes(segments));
  for (const { words: place, bytes, field, shift } of fieldsOf(vector, out, segments)) {
    const lowest = 2 ** field - 1;
    for (let at = 0; at < place.length; at++)
      putField(bytes, field, at, field === 32 ? place[at] : (place[at] >>> shift) & lowest);
  }
  return out;
}

/** @param {Uint8Array} packed @param {Segment[]} segments @returns {Uint32Array} */
export function unpack(packed, segments) {
  const size = packedBytes(segments);
  if (packed.length !== size)
    throw new Refused(packed.length < size ? "truncated" : "too_large", `It has ${size} bytes.`);
  const out = new Uint32Array(lengthOf(segments));
  for (const { words: place, bytes, field, shift } of fieldsOf(out, packed, segments)) {
    const used = (place.length * field) % 8;
    if (used && bytes[bytes.length - 1] >> used) throw new Refused("malformed", "The last byte is filled with zeros.");
    for (let at = 0; at < place.length; at++) place[at] |= getField(bytes, field, at) << shift;
  }
  return out;
}

/** @param {Segment[]} segments @returns {number} */
const packedBytes = (segments) =>
  segments.reduce(
    (sum, { length, bits }) => sum + widths(bits).reduce((size, field) => size + fieldBytes(length, field), 0),
    0,
  );

/** The fields of a number of so many bits, from its lowest bit on. @param {number} bits */
const widths = (bits) => (bits === 32 ? [32] : FIELDS.filter((field) => bits & field));

const fieldBytes = (count, field) => Math.ceil((count * field) / 8);

/** Every field of every segment: its coordinates, its bytes, its width and its lowest bit. */
function* fieldsOf(vector, packed, segments) {
  let [start, at] = [0, 0];
  for (const { length, bits } of segments) {
    let shift = 0;
    for (const field of widths(bits)) {
      const size = fieldBytes(length, field);
      yield { words: vector.subarray(start, start + length), bytes: packed.subarray(at, at + size), field, shift };
      shift += field;
      at += size;
    }
    start += length;
  }
}

/** @param {Uint8Array} bytes @param {number} field @param {number} at @param {number} value */
function putField(bytes, field, at, value) {
  if (field < 8) bytes[(at * field) >> 3] |= value << ((at * field) & 7);
  else for (let byte = 0; byte < field / 8; byte++) bytes[(at * field) / 8 + byte] = value >>> (8 * byte);
}

/** @param {Uint8Array} bytes @param {number} field @param {number} at @returns {number} */
function getField(bytes, field, at) {
  if (field < 8) return (bytes[(at * field) >> 3] >> ((at * field) & 7)) & (2 ** field - 1);
  let value = 0;
  for (let byte = 0; byte < field / 8; byte++) value |= bytes[(at * field) / 8 + byte] << (8 * byte);
  return value;
}
