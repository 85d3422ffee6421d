/** Signed requests: HTTP Message Signatures (RFC 9421, Ed25519) with Content-Digest (RFC 9530). */

import { createHash, sign } from "node:crypto";

const COVERED = ["upload-offset", "upload-length", "repr-digest"];

/** The value of a digest field. @param {Uint8Array} data */
export const digestOf = (data) => `sha-256=:${createHash("sha256").update(data).digest("base64")}:`;

/**
 * The fields of a request, signed.
 * @param {import("node:crypto").KeyObject} key @param {{ device: string, nonce: string }} who
 * @param {{ method: string, authority: string, path: string, query: string, body: Uint8Array, headers: Record<string, string> }} what
 */
export function signedFields(key, { device, nonce }, { method, authority, path, query, body, headers }) {
  const fields = { ...headers, "content-digest": digestOf(body) };
  const derived = { "@method": method, "@authority": authority, "@path": path, "@query": `?${query}` };
  const components = [...Object.keys(derived), "content-digest", ...COVERED.filter((name) => name in fields)];
  const list = components.map((name) => `"${name}"`).join(" ");
  const parameters = `(${list});keyid="${device}";nonce="${nonce}";alg="ed25519";tag="coterie-device"`;
  const lines = components.map((name) => `"${name}": ${derived[name] ?? fields[name]}`);
  const base = [...lines, `"@signature-params": ${parameters}`].join("\n");
  const signature = sign(null, Buffer.from(base), key).toString("base64");
  return { ...fields, "signature-input": `device=${parameters}`, signature: `device=:${signature}:` };
}
