/**
 * The primitives of secure aggregation by WebCrypto alone: X25519, HKDF-SHA256, AES-256-GCM, Ed25519, SHA-256.
 * What is fed to them is in docs/security.md, "The bytes". Everything here runs in a browser as it stands.
 */

/** @typedef {(count: number) => Uint8Array} Entropy */

const { subtle } = globalThis.crypto;
const TEXT = new TextEncoder();
// A raw private key in PKCS #8 (RFC 8410): WebCrypto reads no private key of 32 bare bytes.
const PKCS8 = { X25519: "302e020100300506032b656e04220420", Ed25519: "302e020100300506032b657004220420" };
const BASE_POINT = Uint8Array.of(9, ...new Uint8Array(31));
const NONCE = 12;

/** A message, key or box that an honest client or coordinator would not have sent. */
export class Refused extends Error {
  /** @param {string} code the stable name of the cause  @param {string} message */
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

/** @type {Entropy} */
export const systemEntropy = (count) => globalThis.crypto.getRandomValues(new Uint8Array(count));

/** @param {string} text @returns {Uint8Array} */
export const utf8 = (text) => TEXT.encode(text);

/** @param {Uint8Array} bytes @returns {string} */
export const toHex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");

/** @param {string} text @returns {Uint8Array} */
export function fromHex(text) {
  if (!/^([0-9a-f]{2})*$/.test(text)) throw new Refused("malformed", "Hex has two lower-case digits for each byte.");
  return Uint8Array.from(text.match(/../g) ?? [], (digits) => Number.parseInt(digits, 16));
}

/** @param {Uint8Array} bytes @returns {string} */
export const toBase64 = (bytes) => btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));

/** Only what `toBase64` writes; nothing at all of any other text, which no check then takes. @param {string} text */
export function fromBase64(text) {
  try {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    return toBase64(bytes) === text ? bytes : new Uint8Array(0);
  } catch {
    return new Uint8Array(0);
  }
}

/** @param {...Uint8Array} parts @returns {Uint8Array} */
export function joined(...parts) {
  const out = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
  let at = 0;
  for (const part of parts) {
    out.set(part, at);
    at += part.length;
  }
  return out;
}

/** Four big-endian bytes. @param {number} value */
export function u32(value) {
  const out = new Uint8Array(4);
  new DataView(out.buffer).setUint32(0, value);
  return out;
}

/** Canonical JSON (RFC 8785): names sorted by UTF-16, numbers as JavaScript writes them. @param {any} value */
export function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const names = Object.keys(value).sort();
  return `{${names.map((name) => `${JSON.stringify(name)}:${canonical(value[name])}`).join(",")}}`;
}

/** @param {...Uint8Array} parts @returns {Promise<Uint8Array>} */
export const sha256 = async (...parts) => new Uint8Array(await subtle.digest("SHA-256", joined(...parts)));

/** @param {Uint8Array} one @param {Uint8Array} other @returns {number} */
export function compareBytes(one, other) {
  for (let at = 0; at < Math.min(one.length, other.length); at++) if (one[at] !== other[at]) return one[at] - other[at];
  return one.length - other.length;
}

/** HKDF without salt. @param {Uint8Array} secret @param {Uint8Array} info @returns {Promise<Uint8Array>} 32 bytes */
export async function derive(secret, info) {
  const key = await subtle.importKey("raw", secret, "HKDF", false, ["deriveBits"]);
  const how = { name: "HKDF", hash: "SHA-256", salt: new Uint8Array(0), info };
  return new Uint8Array(await subtle.deriveBits(how, key, 256));
}

/** HKDF-Expand alone, which WebCrypto only has as its HMACs. @param {Uint8Array} secret 32 uniform bytes */
export async function expand(secret, info, length) {
  const key = await subtle.importKey("raw", secret, { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
  let block = new Uint8Array(0);
  let out = block;
  for (let counter = 1; out.length < length; counter++) {
    block = new Uint8Array(await subtle.sign("HMAC", key, joined(block, info, Uint8Array.of(counter))));
    out = joined(out, block);
  }
  return out.slice(0, length);
}

/** An X25519 private key. @param {Uint8Array} raw 32 bytes @returns {Promise<CryptoKey>} */
export const exchangeKey = (raw) => privateKey("X25519", raw, ["deriveBits"]);

/** @param {CryptoKey} key @returns {Promise<Uint8Array>} the public half: the product with the base point */
export const publicOf = (key) => exchange(key, BASE_POINT);

// The coordinates of small order, as hex of their little-endian bytes.
const SMALL_ORDER = new Set([
  "00".repeat(32),
  "01" + "00".repeat(31),
  "ec" + "ff".repeat(30) + "7f",
  "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
  "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
]);

/** Refuse a public key that is no canonical one: 32 bytes of a coordinate below 2^255 - 19, of no small order. */
export function checkPublic(key) {
  if (key.length !== 32) throw new Refused("secagg_key_invalid", "An X25519 public key has 32 bytes.");
  const large = key[31] === 0x7f && key[0] >= 0xed && key.subarray(1, 31).every((byte) => byte === 0xff);
  if (key[31] > 0x7f || large) throw new Refused("secagg_key_invalid", "Another spelling of a public key.");
  if (SMALL_ORDER.has(toHex(key))) throw new Refused("secagg_key_invalid", "A public key has small order.");
}

/** The X25519 secret of two keys. @param {CryptoKey} own @param {Uint8Array} other */
export async function exchange(own, other) {
  checkPublic(other);
  const key = await subtle.importKey("raw", other, { name: "X25519" }, false, []);
  return new Uint8Array(await subtle.deriveBits({ name: "X25519", public: key }, own, 256));
}

/**
 * What two clients share, for one purpose.
 * @param {CryptoKey} own @param {Uint8Array} other @param {Uint8Array} info @returns {Promise<Uint8Array>}
 */
export const agree = async (own, other, info) => derive(await exchange(own, other), info);

/** @param {Uint8Array} key @param {Uint8Array} plaintext @param {Uint8Array} data @param {Entropy} entropy */
export async function seal(key, plaintext, data, entropy) {
  const nonce = entropy(NONCE);
  const cipher = await subtle.importKey("raw", key, "AES-GCM", false, ["encrypt"]);
  const how = { name: "AES-GCM", iv: nonce, additionalData: data };
  return joined(nonce, new Uint8Array(await subtle.encrypt(how, cipher, plaintext)));
}

/** @param {Uint8Array} key @param {Uint8Array} box @param {Uint8Array} data @returns {Promise<Uint8Array>} */
export async function unseal(key, box, data) {
  const cipher = await subtle.importKey("raw", key, "AES-GCM", false, ["decrypt"]);
  const how = { name: "AES-GCM", iv: box.slice(0, NONCE), additionalData: data };
  try {
    return new Uint8Array(await subtle.decrypt(how, cipher, box.slice(NONCE)));
  } catch {
    throw new Refused("secagg_box", `A sealed box of ${box.length} bytes does not open.`);
  }
}

/** A device's Ed25519 key. @param {Uint8Array} seed 32 bytes @returns {Promise<CryptoKey>} */
export const identityKey = (seed) => privateKey("Ed25519", seed, ["sign"]);

/** @param {CryptoKey} key @param {string} domain @param {Uint8Array} message @returns {Promise<string>} base64 */
export const sign = async (key, domain, message) =>
  toBase64(new Uint8Array(await subtle.sign("Ed25519", key, joined(utf8(domain), message))));

/** @param {string} identity hex @param {string} domain @param {Uint8Array} message @param {string} signature base64 */
export async function isSigned(identity, domain, message, signature) {
  const key = await subtle.importKey("raw", fromHex(identity), { name: "Ed25519" }, false, ["verify"]);
  return subtle.verify("Ed25519", key, fromBase64(signature), joined(utf8(domain), message));
}

/** @param {"X25519" | "Ed25519"} name @param {Uint8Array} raw @param {KeyUsage[]} uses @returns {Promise<CryptoKey>} */
const privateKey = (name, raw, uses) =>
  subtle.importKey("pkcs8", joined(fromHex(PKCS8[name]), raw), { name }, false, uses);
