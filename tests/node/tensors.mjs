/** Tensor files (safetensors): eight bytes of length, a JSON header, the data. */

import { canonical } from "../privacy/secagg/webcrypto/primitives.mjs";

/** Tensors of float32 by name. @param {Uint8Array} file */
export function readTensors(file) {
  const end = 8 + Number(Buffer.from(file).readBigUInt64LE(0));
  const { __metadata__, ...header } = JSON.parse(Buffer.from(file.subarray(8, end)).toString());
  return Object.fromEntries(
    Object.entries(header).map(([name, { dtype, shape, data_offsets: [first, last] }]) => {
      if (dtype !== "F32") throw new Error(`The tensor ${name} is of ${dtype}.`);
      return [name, { shape, data: new Float32Array(file.slice(end + first, end + last).buffer) }];
    }),
  );
}

/** A file of flat U8 tensors with coterie's header in its metadata. @param {Record<string, Uint8Array>} tensors */
export function encodeTensors(tensors, header) {
  let at = 0;
  const entries = Object.entries(tensors).map(([name, data]) => {
    const offsets = [at, (at += data.length)];
    return [name, { dtype: "U8", shape: [data.length], data_offsets: offsets }];
  });
  const text = Buffer.from(JSON.stringify({ __metadata__: { coterie: canonical(header) }, ...Object.fromEntries(entries) }));
  const padded = Buffer.concat([text, Buffer.alloc((8 - (text.length % 8)) % 8, " ")]);
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(padded.length));
  return Buffer.concat([length, padded, ...Object.values(tensors)]);
}
