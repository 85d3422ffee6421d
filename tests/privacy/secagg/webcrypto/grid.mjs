/**
 * The codec rotate+grid: a rotated vector as whole numbers of a grid that everybody knows. With a public norm it is
 * what secure aggregation adds. docs/codecs.md, "The grid, exactly".
 */

import { pack, unpack } from "./masks.mjs";
import { Refused } from "./primitives.mjs";
import { blocks, purpose, signs, stream, transform } from "./rotation.mjs";

/** @typedef {{ bits: number, norm: number | null }} Grid */
/** @typedef {{ own: Uint8Array, shared: Uint8Array }} Seeds */

const EXTENT = [NaN, 3, 3, 3, 3, 3.07, 3.23, 3.6, 4, 4.07, 4.36, 4.63, 4.89, 5.14, 5.38, 5.61, 5.83];
const NARROW = 12; // so many bits are exact in float32

/** @param {string} name `rotate+grid:b` or `rotate+grid:b:c` @returns {Grid} */
export function parse(name) {
  const [, bits, norm] = name.split(":");
  return { bits: Number(bits), norm: norm === undefined ? null : Number(norm) };
}

const topOf = ({ bits }) => 2 ** bits - 1;

/** The last factor of a block, float32. @param {Grid} grid @param {number} deviation @param {number} size */
const factor = (grid, deviation, size) => Math.fround((deviation * EXTENT[grid.bits]) / topOf(grid) / size);

/** What a vector of the public norm has in a block, on average. */
const publicFactor = (grid, size, length) => factor(grid, grid.norm * Math.sqrt(size / length), size);

/** Each block's last factor and numbers. @param {Float32Array} vector @param {Grid} grid @param {Seeds} seeds */
export async function rounded(vector, grid, { own, shared }) {
  const [flips, top] = [await signs(shared), topOf(grid)];
  const all = blocks(vector.length);
  const { start: last, size: tail } = all[all.length - 1];
  const draws = new Uint32Array((await stream(await purpose(own, "round"), 4 * (last + tail))).buffer);
  const short = grid.norm === null ? 1 : Math.min(1, grid.norm / Math.hypot(...lengths(vector)));
  return all.map(({ start, size }) => {
    const block = new Float64Array(size);
    vector.subarray(start, start + size).forEach((value, at) => (block[at] = value * short));
    const scale =
      grid.norm === null ? factor(grid, Math.hypot(...block), size) : publicFactor(grid, size, vector.length);
    for (let at = 0; at < size; at++) block[at] *= flips[at];
    transform(block);
    const steps = scale > 0 ? 1 / (2 * size * scale) : 0;
    const number = (value, at) => Math.floor(value * steps + top / 2 + (draws[start + at] >>> 8) * 2 ** -24);
    return { scale, numbers: Uint32Array.from(block, (value, at) => Math.min(top, Math.max(0, number(value, at)))) };
  });
}

/** Pieces of a long vector, whose norms have the vector's norm: arguments are not without end. */
const lengths = (vector) =>
  Array.from({ length: Math.ceil(vector.length / 4096) }, (_, at) =>
    Math.hypot(...vector.subarray(4096 * at, 4096 * at + 4096)),
  );

/** @param {Float32Array} vector @param {Grid} grid @param {Seeds} seeds @returns {Promise<Uint8Array>} */
export async function encode(vector, grid, seeds) {
  const parts = (await rounded(vector, grid, seeds)).flatMap(({ scale, numbers }) => [
    ...(grid.norm === null ? [new Uint8Array(Float32Array.of(scale).buffer)] : []),
    pack(numbers, [{ name: "", length: numbers.length, bits: grid.bits }]),
  ]);
  return Uint8Array.from(parts.flatMap((part) => Array.from(part)));
}

/**
 * The elements [start, stop).
 * @param {Uint8Array} payload @param {Grid} grid @param {Seeds} seeds @param {number} length
 */
export async function decode(payload, grid, { shared }, length, start = 0, stop = length) {
  const [flips, top] = [await signs(shared), topOf(grid)];
  const out = new Float32Array(stop - start);
  const head = grid.norm === null ? 4 : 0;
  let at = 0;
  for (const { start: first, size } of blocks(length)) {
    const packed = payload.slice(at, (at += head + (size * grid.bits) / 8));
    if (first + size <= start || first >= stop) continue;
    const scale = head ? ownFactor(packed) : publicFactor(grid, size, length);
    const block = Float64Array.from(
      unpack(packed.slice(head), [{ name: "", length: size, bits: grid.bits }]),
      (c) => 2 * c - top,
    );
    transform(block);
    for (let i = Math.max(first, start); i < Math.min(first + size, stop); i++) {
      const whole = flips[i - first] * block[i - first];
      out[i - start] = (grid.bits > NARROW ? whole : Math.fround(whole)) * scale;
    }
  }
  return out;
}

function ownFactor(packed) {
  const scale = new DataView(packed.buffer, packed.byteOffset).getFloat32(0, true);
  if (!Number.isFinite(scale)) throw new Refused("not_finite", "A scale is not finite.");
  if (scale < 0 || Object.is(scale, -0)) throw new Refused("malformed", "A scale is negative.");
  return scale;
}
