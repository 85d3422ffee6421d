/** What a device draws while it trains: key streams of SHA-256 seeds. docs/device-protocol.md, "How randomness is drawn". */

import { createCipheriv, createHash } from "node:crypto";

/** SHA-256 of texts, each with its length (4 bytes, little-endian) before it. @param {...string} parts */
export function seedOf(...parts) {
  const digest = createHash("sha256");
  for (const part of parts) {
    const [text, size] = [Buffer.from(part), Buffer.alloc(4)];
    size.writeUInt32LE(text.length);
    digest.update(size).update(text);
  }
  return digest.digest();
}

/** Bytes [start, stop) of a seed's stream: AES-256-CTR over zeros. */
export function stream(seed, start, stop) {
  const [counter, skipped] = [Buffer.alloc(16), start % 16];
  counter.writeBigUInt64BE(BigInt((start - skipped) / 16), 8);
  return createCipheriv("aes-256-ctr", seed, counter).update(Buffer.alloc(stop - start + skipped)).subarray(skipped);
}

const longs = (seed, count) => {
  const data = stream(seed, 0, 8 * count);
  return Array.from({ length: count }, (_, at) => data.readBigUInt64LE(8 * at));
};

/** The order in which a pass takes the rows: the stable order of their words. */
export function batchOrder(rows, seed, epoch) {
  const words = longs(seedOf("coterie-train-1", "order", String(seed), String(epoch)), rows);
  const less = (one, other) => (words[one] < words[other] ? -1 : words[one] > words[other] ? 1 : one - other);
  return words.map((_, row) => row).sort(less);
}

/** A step's numbers in [0, 1), float32. */
export function uniforms(seed, step, count) {
  const data = stream(seedOf("coterie-train-1", "random", String(seed)), 4 * step * count, 4 * (step + 1) * count);
  return Float32Array.from({ length: count }, (_, at) => (data.readUInt32LE(4 * at) >>> 8) * 2 ** -24);
}

/** The numbers of one step by input, dealt in the order of the inputs. */
export function randomInputs(seed, step, inputs) {
  const sizes = inputs.map(({ shape }) => shape.reduce((a, b) => a * b, 1));
  const all = uniforms(seed, step, sizes.reduce((a, b) => a + b, 0));
  let at = 0;
  return Object.fromEntries(inputs.map(({ name }, index) => [name, all.slice(at, (at += sizes[index]))]));
}

/** For each row whether it is held out. */
export function heldOut(count, share) {
  const most = BigInt(Math.floor(share * 2 ** 64));
  const chosen = longs(seedOf("coterie-holdout-1"), count).map((word) => word < most);
  if (count && chosen.every(Boolean)) chosen[0] = false;
  return chosen;
}

/** Batches of one size: the last of a pass is filled with its first row, of weight 0. */
export function* batches(rows, seed, { batch_size: size, epochs, max_steps: most }) {
  let steps = 0;
  for (let epoch = 0; epoch < epochs; epoch++) {
    const order = batchOrder(rows, seed, epoch);
    for (let first = 0; first < rows; first += size) {
      if (most !== null && steps++ >= most) return;
      const real = order.slice(first, first + size).map((row) => ({ row, weight: 1 }));
      yield [...real, ...Array.from({ length: size - real.length }, () => ({ row: real[0].row, weight: 0 }))];
    }
  }
}
