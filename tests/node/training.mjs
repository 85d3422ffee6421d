// What is drawn, and how the stages of a plan are driven.
import { createCipheriv } from "node:crypto";
import { InferenceSession, Tensor } from "onnxruntime-node";
import { sha256 } from "./signing.mjs";
import { must } from "./wire.mjs";

export function seedOf(...parts) {
  const texts = parts.map((part) => Buffer.from(String(part)));
  return sha256(...texts.flatMap((text) => [new Uint8Array(Uint32Array.of(text.length).buffer), text]));
}

export function stream(seed, start, count) {
  const block = Buffer.alloc(16);
  block.writeBigUInt64BE(BigInt(start) / 16n, 8);
  const skipped = start % 16;
  const bytes = createCipheriv("aes-256-ctr", seed, block).update(Buffer.alloc(skipped + count));
  return Uint8Array.from(bytes.subarray(skipped));
}

const words = (seed, count) => new BigUint64Array(stream(seed, 0, 8 * count).buffer);

// The sort is stable, so of equal words the earlier row comes first.
export function batchOrder(rows, seed, epoch) {
  const drawn = words(seedOf("coterie-train-1", "order", seed, epoch), rows);
  return [...drawn.keys()].sort((one, other) => (drawn[one] < drawn[other] ? -1 : Number(drawn[one] > drawn[other])));
}

export function uniforms(seed, step, count) {
  const bytes = stream(seedOf("coterie-train-1", "random", seed), 4 * step * count, 4 * count);
  return Float32Array.from(new Uint32Array(bytes.buffer), (word) => (word >>> 8) / 2 ** 24);
}

// floor(share * 2**64) is exact: a double times a power of two.
export function heldOut(rows, share) {
  const bound = BigInt(Math.floor(share * 2 ** 64));
  const chosen = [...words(seedOf("coterie-holdout-1"), rows)].map((word) => word < bound);
  if (chosen.every(Boolean)) chosen[0] = false;
  return chosen;
}

export const ARRAYS = {
  float32: Float32Array,
  float64: Float64Array,
  int64: BigInt64Array,
  int32: Int32Array,
  int16: Int16Array,
  int8: Int8Array,
  uint8: Uint8Array,
};
export const sizeOf = (shape) => shape.reduce((product, length) => product * length, 1);

// Some rows of a column, which is flat.
function rowsOf({ dtype, shape, values }, chosen) {
  const size = sizeOf(shape);
  const data = new ARRAYS[dtype](chosen.length * size);
  chosen.forEach((row, place) => data.set(values.subarray(row * size, (row + 1) * size), place * size));
  return new Tensor(dtype, data, [chosen.length, ...shape]);
}

// The batches of a training; the last one of a pass is filled with copies of its first row.
function* batchesOf(rows, seed, { batch_size: size, epochs, max_steps: most }) {
  let step = 0;
  for (let epoch = 0; epoch < epochs; epoch += 1) {
    const order = batchOrder(rows.length, seed, epoch).map((place) => rows[place]);
    for (let start = 0; start < order.length; start += size) {
      if (step === (most ?? Infinity)) return;
      const own = order.slice(start, start + size);
      const weights = Float32Array.from({ length: size }, (_, place) => Number(place < own.length));
      yield { step, weights, chosen: [...own, ...Array(size - own.length).fill(own[0])] };
      step += 1;
    }
  }
}

export function loaded(graph) {
  return InferenceSession.create(graph, { intraOpNumThreads: 1, interOpNumThreads: 1 });
}

// Run the stages of a training; `told` is called after each step. Gives the weight, the steps and the sections.
export async function train({ plan, stages, version, hyper, columns, seed, cap, told }) {
  const held = heldOut(columns[plan.schema.label.name].rows, plan.training.holdout);
  const kept = [...held.keys()].filter((row) => !held[row]);
  must(kept.length, "data_empty", "no row is there to train on");
  const states = {};
  const sections = {};
  // All rows count that may be trained on, whether they stood in a batch or not.
  const counters = { steps: 0, weight: Math.min(kept.length, cap) };
  const scalar = (number) => new Tensor(Float32Array.of(number), [1]);
  for (const stage of stages) {
    const draws = stage.inputs.reduce((sum, { source, shape }) => sum + (source === "random" ? sizeOf(shape) : 0), 0);
    const carried = {};
    const batches = stage.over === "steps" ? batchesOf(kept, seed, plan.training) : [{ step: 0, chosen: [] }];
    for (const { step, chosen, weights } of batches) {
      const numbers = uniforms(seed, step, draws);
      let used = 0;
      const valueOf = {
        model: (key) => new Tensor(version[key].values, version[key].shape),
        hyper: (key) => scalar(hyper[key]),
        active: () => scalar(1),
        counter: (key) => scalar(counters[key]),
        state: (key, { name }) => states[name],
        zeros: (key, { dtype, shape }) => new Tensor(dtype, new ARRAYS[dtype](sizeOf(shape)), shape),
        batch: (key) => (key === "sample_weight" ? new Tensor(weights) : rowsOf(columns[key], chosen)),
        random: (key, { shape }) => {
          used += sizeOf(shape);
          return new Tensor(numbers.slice(used - sizeOf(shape), used), shape);
        },
      };
      const feeds = {};
      for (const input of stage.inputs) {
        feeds[input.name] = carried[input.name] ?? valueOf[input.source](input.key, input);
      }
      const outputs = await stage.session.run(feeds);
      for (const { name, destination, key } of stage.outputs) {
        const places = { carry: carried, state: states, upload: sections };
        places[destination][key] = outputs[name];
      }
      if (stage.over !== "steps") continue;
      counters.steps += 1;
      await told();
    }
    Object.assign(states, carried);
  }
  const isUsable = plan.sections.every(({ name, value_range: range }) => {
    const [low, high] = range ?? [-Infinity, Infinity];
    return sections[name].data.every((value) => Number.isFinite(value) && value >= low && value <= high);
  });
  return { ...counters, isUsable, sections };
}
