/**
 * Runs the client over the vector files: `node driver.mjs FOLDER` prints JSON, for each group of cases how many were
 * tried and which failed; with `--transcript` of the transcript alone. `--measure` prints how long masking takes
 * instead, `--models` what clients must have been asked alike.
 */

import { readFileSync } from "node:fs";
import { join } from "node:path";

import * as client from "./client.mjs";
import { refuses, same, written } from "./expect.mjs";
import { neighbours, order, parameters } from "./graph.mjs";
import * as grid from "./grid.mjs";
import { addMasks, pack, specDigest, unpack } from "./masks.mjs";
import {
  agree,
  canonical,
  derive,
  exchangeKey,
  expand,
  fromHex,
  identityKey,
  isSigned,
  publicOf,
  seal,
  sha256,
  sign,
  toHex,
  unseal,
  utf8,
} from "./primitives.mjs";
import { largestSquare, ofNoisedSum, padded, purpose, seedOf, spread, stream, stride } from "./rotation.mjs";
import { rebuild, share } from "./shamir.mjs";
import * as transcript from "./transcript.mjs";

const folder = process.argv[2];
const read = (name) => JSON.parse(readFileSync(join(folder, `${name}.json`), "utf-8"));

const words = (hex) => new Uint32Array(fromHex(hex).buffer);
const segments = (case_) => case_.segments.map(([name, length, bits]) => ({ name, length, bits }));

const floats = (hex) => new Float32Array(fromHex(hex).buffer);
const hexOf = (numbers) => toHex(new Uint8Array(numbers.buffer));
const energy = (vector) => Array.from(vector).reduce((sum, value) => sum + value ** 2, 0);

function near(found, expected) {
  same(found.length, expected.length);
  const apart = Math.max(...Array.from(found, (value, at) => Math.abs(value - expected[at])));
  if (!(apart <= 1e-9)) throw new Error(`it is ${apart} away`);
}

async function seedsOf({ task, plan, base, section }) {
  return { own: await seedOf("own", task, section), shared: await seedOf("shared", plan, base, section) };
}

const GROUPS = {
  secagg_graphs: {
    parameters: ({ neighbours: k, threshold, ...asked }) => {
      const settled = parameters(asked.clients, asked.corrupt, asked.dropout, asked.mode);
      same(settled, { ...asked, neighbours: k, threshold });
    },
    refused_parameters: ({ code, clients, corrupt, dropout, mode }) =>
      refuses(code, () => parameters(clients, corrupt, dropout, mode)),
    neighbours: ({ position, clients, degree, ...expected }) =>
      same(neighbours(position, clients, degree), expected.neighbours),
    order: async ({ attempt, keys, ...expected }) => same(await order(keys.map(fromHex), attempt), expected.order),
  },
  secagg_keys: {
    context: async ({ json, digest, bound }) => {
      same(canonical(JSON.parse(json)), json);
      same(toHex(await sha256(utf8(json))), digest);
      same(toHex(client.bound(fromHex(digest), "example", utf8("abc"), 5, new Uint8Array(0))), bound);
    },
    agreements: async ({ positions, privates, publics, purpose, info, secret }) => {
      const context = fromHex(read("secagg_keys").context[0].digest);
      const [one, other] = positions.map((place, index) => [place, fromHex(publics[index])]);
      same(toHex(client.pairInfo(context, purpose, one, other)), info);
      for (const index of [0, 1]) {
        const key = await exchangeKey(fromHex(privates[index]));
        same(toHex(await publicOf(key)), publics[index]);
        same(toHex(await agree(key, fromHex(publics[1 - index]), fromHex(info))), secret);
      }
    },
    derived: async ({ secret, info, key }) => same(toHex(await derive(fromHex(secret), fromHex(info))), key),
    boxes: async ({ sender, recipient, key, nonce, data, plaintext, box }) => {
      const context = fromHex(read("secagg_keys").context[0].digest);
      same(toHex(client.boxData(context, sender, recipient)), data);
      const sealed = await seal(fromHex(key), fromHex(plaintext), fromHex(data), written(fromHex(nonce)));
      same(toHex(sealed), box);
      same(toHex(await unseal(fromHex(key), sealed, fromHex(data))), plaintext);
    },
    refused_keys: ({ code, ...keys }) =>
      refuses(code, async () => agree(await exchangeKey(fromHex(keys.private)), fromHex(keys.public), utf8("x"))),
    refused_boxes: ({ code, key, data, box }) => refuses(code, () => unseal(fromHex(key), fromHex(box), fromHex(data))),
  },
  secagg_shares: {
    shares: ({ secret, threshold, entropy, shares, points }) => {
      const drawn = written(fromHex(entropy));
      const dealt = share(fromHex(secret), threshold, shares.length, drawn);
      same(dealt.map(toHex), shares);
      same(drawn.left(), 0);
      same(
        toHex(
          rebuild(
            points,
            points.map((point) => dealt[point - 1]),
            threshold,
          ),
        ),
        secret,
      );
    },
    refused_shares: ({ code, threshold, points, shares }) =>
      refuses(code, () => rebuild(points, shares.map(fromHex), threshold)),
  },
  secagg_masks: {
    streams: async ({ seed, info, expanded, start, stop, ...expected }) => {
      same(toHex(await expand(fromHex(seed), fromHex(info), 44)), expanded);
      const found = new Uint32Array(stop - start);
      await addMasks(found, [{ seed: fromHex(seed), sign: 1 }], start);
      same(toHex(new Uint8Array(found.buffer)), expected.words);
    },
    masked: async (case_) => {
      const total = words(case_.vector);
      await addMasks(
        total,
        case_.masks.map(({ seed, sign }) => ({ seed: fromHex(seed), sign })),
      );
      const packed = pack(total, segments(case_));
      same(await specDigest(segments(case_)), case_.digest);
      same(Array.from(unpack(packed, segments(case_))), Array.from(words(case_.masked)));
      same(toHex(packed), case_.packed);
    },
    refused_packed: ({ code, packed }) =>
      refuses(code, () => unpack(fromHex(packed), segments(read("secagg_masks").masked[0]))),
  },
  codecs: {
    streams: async ({ label, seed, start, bytes }) => {
      same(toHex(await purpose((await seedsOf(read("codecs").header)).own, label)), seed);
      same(toHex((await stream(fromHex(seed), start + bytes.length / 2)).slice(start)), bytes);
    },
    cases: async (case_) => {
      const [codec, seeds, vector] = [
        grid.parse(case_.codec),
        await seedsOf(read("codecs").header),
        floats(case_.vector),
      ];
      const decoded = await grid.decode(fromHex(case_.payload), codec, seeds, vector.length);
      same(hexOf(decoded), case_.decoded);
      const part = await grid.decode(fromHex(case_.payload), codec, seeds, vector.length, 1, vector.length - 1);
      same(hexOf(part), case_.decoded_from_1_to_minus_1);
      const again = await grid.decode(await grid.encode(vector, codec, seeds), codec, seeds, vector.length);
      const most = 1.05 * case_.squared_error + 1e-9 * energy(vector);
      same(energy(vector.map((value, at) => value - again[at])) <= most, true);
    },
    long: async ({ codec, segments: runs, payload, decoded_sha256 }) => {
      const length = runs.reduce((sum, run) => sum + run, 0);
      const seeds = await seedsOf(read("codecs").header);
      const decoded = await grid.decode(fromHex(payload), grid.parse(codec), seeds, length);
      same(toHex(await sha256(new Uint8Array(decoded.buffer))), decoded_sha256);
    },
    refused_payloads: async ({ codec, segments: runs, payload, code }) => {
      const seeds = await seedsOf(read("codecs").header);
      const length = runs.reduce((sum, run) => sum + run, 0);
      await refuses(code, () => grid.decode(fromHex(payload), grid.parse(codec), seeds, length));
    },
  },
  distributed_noise: {
    bounds: ({ norm, length, square }) => same(largestSquare(norm, length), square),
    spreads: async (case_) => {
      same([stride(case_.length), padded(case_.length)], [case_.stride, case_.padded]);
      near(await spread(case_.vector, fromHex(case_.shared)), case_.spread);
    },
    encodings: async ({ terms, shared, square, sum, decoded }) => {
      same(largestSquare(terms.clip * terms.scale, padded(terms.length)), square);
      near(await ofNoisedSum(sum, terms, fromHex(shared)), decoded);
    },
  },
  signatures: {
    keys: async ({ seed, ...key }) => {
      const message = utf8("a message");
      same(await isSigned(key.public, "", message, await sign(await identityKey(fromHex(seed)), "", message)), true);
    },
    tasks: async ({ task: { signature, ...task }, message, public: signer }) => {
      same(toHex(utf8(`coterie task v1\n${canonical(task)}`)), message);
      same(await isSigned(signer, "coterie task v1\n", utf8(canonical(task)), signature), true);
    },
    refused: async (case_) => {
      const found = await isSigned(case_.public, "", fromHex(case_.message), case_.signature).catch(() => false);
      same(found, false);
    },
  },
  canonical: {
    cases: async ({ input, output, sha256: digest }) => {
      same(canonical(JSON.parse(input)), output);
      same(toHex(await sha256(utf8(output))), digest);
    },
  },
};

/** Of the codecs, those that secure aggregation adds are tried, and what they stand on. */
const isTried = (file, { codec }) => file !== "codecs" || codec === undefined || codec.startsWith("rotate+grid");

/** The cases of one group of a file, by their names. */
const casesOf = (file, group) =>
  read(file)
    [group].filter((case_) => isTried(file, case_))
    .map((case_, index) => [case_.name ?? String(index), () => GROUPS[file][group](case_)]);

async function tried(cases) {
  const failed = [];
  for (const [name, attempt] of cases) {
    try {
      await attempt();
    } catch (error) {
      failed.push(`${name}: ${error.message}`);
    }
  }
  return { tried: cases.length, failed };
}

async function report() {
  const played = read("secagg_transcript");
  const found = {
    secagg_transcript: await tried(transcript.casesOf(played)),
    checks: await tried(transcript.checksOf(played)),
  };
  for (const [file, groups] of Object.entries(GROUPS)) {
    for (const group of Object.keys(groups)) found[`${file}.${group}`] = await tried(casesOf(file, group));
  }
  return found;
}

/** What clients must have been asked alike, of each task among the signatures. */
const models = () => Promise.all(read("signatures").tasks.map(({ task }) => client.modelDigest(task)));

/** Milliseconds for one's own and `near` other masks over `length` coordinates of 26 bits: the best of five. */
async function measured(near, length) {
  const context = new Uint8Array(32);
  const privateKey = Uint8Array.from({ length: 32 }, (_, index) => index + 1);
  const publicKey = await publicOf(await exchangeKey(privateKey));
  const others = {};
  for (let peer = 1; peer <= near; peer++)
    others[peer] = toHex(await publicOf(await exchangeKey(new Uint8Array(32).fill(peer))));
  const best = { keys: Infinity, masks: Infinity, pack: Infinity };
  for (let turn = 0; turn < 5; turn++) {
    const marks = [performance.now()];
    const seeds = [
      await client.ownMask(context, 0, privateKey),
      ...(await client.pairMasks(context, 0, privateKey, publicKey, others)),
    ];
    marks.push(performance.now());
    const total = new Uint32Array(length);
    await addMasks(total, seeds);
    marks.push(performance.now());
    pack(total, [{ name: "delta", length, bits: 26 }]);
    marks.push(performance.now());
    Object.keys(best).forEach((what, index) => (best[what] = Math.min(best[what], marks[index + 1] - marks[index])));
  }
  return { near, length, node: process.version, ...best };
}

const ASKED = {
  "--measure": () => measured(48, 100_000),
  "--models": models,
  "--transcript": () => tried(transcript.casesOf(read("secagg_transcript"))),
};
const result = await (ASKED[process.argv[3]] ?? report)();
console.log(JSON.stringify(result, null, 1));
