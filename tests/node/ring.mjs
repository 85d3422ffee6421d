// Numbers of secure aggregation: neighbours and thresholds, shares, masks, packing, and the vector itself.
import { createCipheriv, createHmac, randomBytes } from "node:crypto";
import { joined, sha256 } from "./signing.mjs";
import { seedOf, stream } from "./training.mjs";
import { must } from "./wire.mjs";

const PRIME = 2n ** 31n + 11n;
const LIMBS = 9;
const MOST = 1024;

const choose = (n, k) => {
  let result = k > n ? 0n : 1n;
  for (let i = 0; i < k && result; i += 1) result = (result * BigInt(n - i)) / BigInt(i + 1);
  return result;
};

export const part = (share, clients) => Math.floor((share + 1e-14) * clients);

// The least c for which more than c marked ones among k have a chance below 2^-bits / scale.
function tail(clients, marked, k, bits, scale) {
  const all = choose(clients, k);
  let c = Math.max(0, k - (clients - marked));
  let term = choose(marked, c) * choose(clients - marked, k - c);
  let rest = all - term;
  while ((rest * BigInt(scale)) << BigInt(bits) >= all) {
    term = (term * BigInt((marked - c) * (k - c))) / BigInt((c + 1) * (clients - marked - k + c + 1));
    c += 1;
    rest -= term;
  }
  return c;
}

export function parameters(clients, { corrupt, dropout, mode }) {
  const inRange = [corrupt, dropout].every((share) => share >= 0 && share < 1);
  must(clients >= 3 && clients <= 2 ** 20 && inRange, "secagg_parameters", `${clients} clients`);
  const [bad, dropped] = [part(corrupt, clients), part(dropout, clients)];
  const forList = (k, c) => (mode === "consistent" ? Math.floor((k + c) / 2) + 1 : 0);
  for (let k = 2; clients >= 60 && k < clients - 1 && k <= MOST; k += 2) {
    const cut = BigInt(clients) * BigInt(clients - k - 1) * choose(bad + dropped, k);
    if (cut << 41n >= 2n * choose(clients, k)) continue;
    const c = tail(clients, bad, k, 41, clients);
    const threshold = Math.max(2, c + 1, forList(k, c));
    if (threshold <= k - tail(clients, dropped, k, 20, clients)) return { clients, neighbours: k, threshold };
  }
  const k = Math.min(clients - 1, MOST);
  const left = k - dropped;
  const threshold = Math.max(2, bad + 1, Math.min(left, Math.floor(k / 2) + 1), forList(k, bad));
  must(threshold <= left, "secagg_parameters", `${clients} clients`);
  return { clients, neighbours: k, threshold };
}

export function neighboursOf(place, { clients, neighbours }) {
  const all = [...Array(clients).keys()].filter((other) => other !== place);
  if (neighbours === clients - 1) return all;
  const near = (other) => Math.min((other - place + clients) % clients, (place - other + clients) % clients);
  return all.filter((other) => near(other) <= neighbours / 2);
}

// Shares 1 to `count` of 32 bytes, of which `threshold` give them back.
export function sharesOf(secret, count, threshold, draw) {
  const needed = LIMBS * (threshold - 1);
  let drawn = [];
  while (drawn.length < needed) {
    const words = new Uint32Array(Uint8Array.from(draw(8 * needed + 256)).buffer);
    drawn = drawn.concat([...words].filter((word) => word < PRIME)).slice(0, needed);
  }
  const whole = BigInt(`0x${Buffer.from(secret).reverse().toString("hex")}`);
  const limbs = Array.from({ length: LIMBS }, (_, i) => (whole >> BigInt(31 * i)) & (2n ** 31n - 1n));
  return Array.from({ length: count }, (_, i) => {
    const words = limbs.map((limb, place) => {
      let value = 0n;
      for (let power = 0; power < threshold - 1; power += 1) {
        value = (value * BigInt(i + 1) + BigInt(drawn[power * LIMBS + place])) % PRIME;
      }
      return Number((value * BigInt(i + 1) + limb) % PRIME);
    });
    return Buffer.from(Uint32Array.from(words).buffer);
  });
}

// HKDF-Expand alone makes key and nonce of a mask, whose words are added to the vector or taken off it.
export function addMask(vector, seed, sign) {
  const hmac = (...parts) => createHmac("sha256", seed).update(joined(...parts)).digest();
  const key = hmac("coterie/secagg/v1/stream", [1]);
  const nonce = hmac(key, "coterie/secagg/v1/stream", [2]).subarray(0, 12);
  const cipher = createCipheriv("aes-256-ctr", key, joined(nonce, Buffer.alloc(4)));
  const words = new Uint32Array(Uint8Array.from(cipher.update(Buffer.alloc(4 * vector.length))).buffer);
  words.forEach((word, place) => {
    vector[place] += sign * word;
  });
}

// The binary digits of `bits` cut each number into fields, each an array of its own.
function packedSection(numbers, bits) {
  const widths = bits === 32 ? [32] : [16, 8, 4, 2, 1].filter((width) => bits & width);
  let shift = 0;
  const fields = widths.map((width) => {
    const bytes = Buffer.alloc(Math.ceil((numbers.length * width) / 8));
    numbers.forEach((number, place) => {
      const field = width === 32 ? number : (number >>> shift) & (2 ** width - 1);
      const at = (place * width) >> 3;
      if (width >= 8) bytes.writeUIntLE(field, at, width / 8);
      else bytes[at] |= field << ((place * width) & 7);
    });
    shift += width;
    return bytes;
  });
  return joined(...fields);
}

export function packed(vector, sections) {
  let start = 0;
  return Buffer.concat(sections.map(({ values, bits }) => {
    start += values;
    return packedSection(vector.subarray(start - values, start), bits);
  }));
}

const HALF_WIDTHS = [3, 3, 3, 3, 3.07, 3.23, 3.6, 4, 4.07, 4.36, 4.63, 4.89, 5.14, 5.38, 5.61, 5.83];

function* blocksOf(length) {
  let left = Math.ceil(length / 64) * 64;
  for (let size = 4096; left; left -= size) {
    while (size > left) size /= 2;
    yield size;
  }
}

// Filled with zeros to its size, and rotated.
function hadamard(values, size) {
  let block = Float64Array.from({ length: size }, (_, i) => values[i] ?? 0);
  for (let half = 1; half < size; half *= 2) {
    block = block.map((value, i) => (i & half ? block[i - half] - value : value + block[i + half]));
  }
  return block;
}

// A secret draw from [0, 1).
const secretDraw = () => randomBytes(4).readUInt32LE() / 2 ** 32;

// The numbers of rotate+grid, and whether the vector had to be shortened or a number held.
export function gridNumbers(vector, norm, top, shared, draw = secretDraw) {
  const length = Math.sqrt(vector.reduce((sum, value) => sum + value * value, 0));
  const factor = Math.min(1, norm / length);
  const signs = stream(sha256(shared, "rotate"), 0, 512);
  const width = HALF_WIDTHS[Math.log2(top + 1) - 1];
  let start = 0;
  let atTheEnds = 0;
  const numbers = [];
  for (const size of blocksOf(vector.length)) {
    const block = Float64Array.from(vector.subarray(start, start + size), (value, i) => {
      return value * factor * ((signs[i >> 3] >> (i & 7)) & 1 ? -1 : 1);
    });
    const unit = Math.fround((norm * Math.sqrt(size / vector.length) * width) / top / size);
    for (const value of hadamard(block, size)) {
      const number = Math.floor(value / (2 * size * unit) + top / 2 + draw());
      numbers.push(Math.min(Math.max(number, 0), top));
      atTheEnds += Number(number <= 0 || number >= top);
    }
    start += size;
  }
  return { numbers, isCut: factor < 1 || (top >= 255 && atTheEnds > numbers.length / 1000) };
}

function fixedNumbers(vector, low, step, top) {
  const inside = Array.from(vector, (value) => Math.min(Math.max(value, low), low + step * top));
  const numbers = inside.map((value) => Math.min(Math.floor((value - low) / step + secretDraw()), top));
  return { numbers, isHeld: inside.some((value, place) => value !== vector[place]) };
}

export const sharedSeed = (plan, base, section) => seedOf("coterie-codec-1", "shared", plan, base, section);

// All numbers of an update in the rings of the terms. Work that came to nothing weighs nothing.
export function vectorOf(task, plan, { isUsable, weight = 0, sections }) {
  const { sections: [counts, ...wanted], weight_cap: cap } = task.secure;
  const isFirst = counts.name === "counts" && counts.encoding === "exact" && counts.values === 5;
  must(isFirst && cap < 2 ** counts.bits, "wrong_sections", "counts");
  // Sums over more examples than the cap are made smaller, which keeps their means.
  const examples = isUsable ? sections.metrics.data[0] : 0;
  const share = Math.min(1, cap / examples);
  const made = wanted.map(({ name, encoding, values, bits, top, norm, low, step }) => {
    const { reduction } = plan.sections.find((section) => section.name === name) ?? {};
    const byWeight = reduction === "weighted_mean";
    const isKnown = reduction && ["grid", "fixed"].includes(encoding);
    must(isKnown && top * (byWeight ? cap : 1) < 2 ** bits, "wrong_sections", name);
    if (!isUsable) return { numbers: Array(values).fill(0) };
    const shared = sharedSeed(task.plan.id, task.model.sha256, name);
    const data = Float64Array.from(sections[name].data, (value) => (name === "metrics" ? value * share : value));
    const one = encoding === "grid" ? gridNumbers(data, norm, top, shared) : fixedNumbers(data, low, step, top);
    must(one.numbers.length === values, "wrong_sections", name);
    return { ...one, numbers: one.numbers.map((number) => (byWeight ? number * weight : number)) };
  });
  const flags = [made.some(({ isCut }) => isCut), made.some(({ isHeld }) => isHeld)].map(Number);
  const counted = [1, isUsable ? weight : 0, Math.round(examples * share), ...flags];
  return Uint32Array.from([...counted, ...made.flatMap(({ numbers }) => numbers)]);
}
