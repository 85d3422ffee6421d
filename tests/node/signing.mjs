// Canonical JSON, digests, Ed25519, and the signatures of requests.
import { createHash, createPublicKey, sign, verify } from "node:crypto";

export const joined = (...parts) => Buffer.concat(parts.map((part) => Buffer.from(part)));
export const sha256 = (...parts) => createHash("sha256").update(joined(...parts)).digest();
export const sha256Hex = (...parts) => sha256(...parts).toString("hex");
export const digestField = (body) => `sha-256=:${sha256(body).toString("base64")}:`;

// RFC 8785: JavaScript's own numbers and texts, names in the order of their UTF-16 code units.
export function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join()}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const members = Object.keys(value).sort().map((name) => `${JSON.stringify(name)}:${canonical(value[name])}`);
  return `{${members.join()}}`;
}

export function publicKey(curve, hex) {
  const x = Buffer.from(hex, "hex").toString("base64url");
  return createPublicKey({ key: { kty: "OKP", crv: curve, x }, format: "jwk" });
}

export function publicHex(privateKey) {
  return Buffer.from(createPublicKey(privateKey).export({ format: "jwk" }).x, "base64url").toString("hex");
}

export const signed = (key, domain, message) => sign(null, joined(`${domain}\n`, message), key).toString("base64");

export function isSigned(hex, domain, message, signature) {
  return verify(null, joined(`${domain}\n`, message), publicKey("Ed25519", hex), Buffer.from(signature, "base64"));
}

export function signedFields(key, { device, nonce }, { method, authority, path, query, body, headers }) {
  const message = { "content-digest": digestField(body), ...headers };
  const covered = { "@method": method, "@authority": authority, "@path": path, "@query": `?${query}`, ...message };
  const names = Object.keys(covered).map((name) => `"${name}"`).join(" ");
  const parameters = `(${names});keyid="${device}";nonce="${nonce}";alg="ed25519";tag="coterie-device"`;
  const lines = Object.entries({ ...covered, "@signature-params": parameters });
  const base = lines.map(([name, value]) => `"${name}": ${value}`).join("\n");
  const signature = sign(null, Buffer.from(base), key).toString("base64");
  return { ...message, "signature-input": `device=${parameters}`, signature: `device=:${signature}:` };
}
