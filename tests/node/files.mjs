// Files of safetensors, and the update files made of them.
import { canonical, joined } from "./signing.mjs";
import { must } from "./wire.mjs";

export function readTensors(bytes, layout) {
  const start = 8 + Number(bytes.readBigUInt64LE());
  const header = JSON.parse(bytes.toString("utf8", 8, start));
  const tensors = layout.tensors.map(({ name, shape }) => {
    const { dtype, shape: told, data_offsets: [from, to] } = header[name] ?? { data_offsets: [] };
    // A copy, since an array of numbers begins at a multiple of four bytes.
    const values = new Float32Array(Uint8Array.from(bytes.subarray(start + from, start + to)).buffer);
    const isWhole = values.length === shape.reduce((product, size) => product * size, 1);
    must(dtype === "F32" && String(told) === String(shape) && isWhole, "layout_mismatch", `tensor ${name}`);
    return [name, { shape, values }];
  });
  return Object.fromEntries(tensors);
}

// The header is filled with spaces, so that data begin at a multiple of eight bytes.
export function fileOf(told, payloads) {
  const header = { __metadata__: { coterie: canonical(told) } };
  let end = 0;
  for (const [name, { length }] of payloads) {
    header[name] = { dtype: "U8", shape: [length], data_offsets: [end, end + length] };
    end += length;
  }
  const text = JSON.stringify(header);
  const filled = text + " ".repeat(-text.length & 7);
  const size = Buffer.alloc(8);
  size.writeUInt32LE(filled.length);
  return joined(size, filled, ...payloads.map(([, payload]) => payload));
}

export const namesOf = (task) => ({ task: task.id, plan: task.plan.id, base: task.model.sha256 });

export function updateFile(task, plan, { weight, steps, sections }) {
  const told = plan.sections.map(({ name, length }) => ({ name, length, codec: "float32" }));
  const payloads = told.map(({ name }) => [name, new Uint8Array(Float32Array.from(sections[name].data).buffer)]);
  const kind = { format: "coterie-update-1", kind: "update", clients: 1 };
  return fileOf({ ...kind, ...namesOf(task), weight, steps, sections: told }, payloads);
}
