/** The golden transcript, played: every client, the coordinator's sum, and what must be refused on the way. */

import * as client from "./client.mjs";
import { refuses, same, written } from "./expect.mjs";
import { neighbours } from "./graph.mjs";
import { addMasks, lengthOf, reduced, unpack } from "./masks.mjs";
import { exchangeKey, fromBase64, fromHex, identityKey, publicOf, toHex } from "./primitives.mjs";
import { rebuild } from "./shamir.mjs";

/** One client of the transcript, told the first `count` of its steps. Each answer is held to what stands there. */
async function played(session, index, count) {
  const { device, identity_seed, entropy, steps } = session.clients[index];
  const identity = await identityKey(fromHex(identity_seed));
  const drawn = written(fromHex(entropy));
  const about = { device, plan: session.plan, model: session.model, floor: session.floor };
  const own = { ...about, identity, public: await identityOf(session, device) };
  let { state, answer } = await client.begin(session.terms, own, drawn);
  same(answer, steps[0].says);
  const signs = await client.keysMessage({ ...session, ...about }, { device, ...answer.message });
  same(new TextDecoder().decode(signs), session.clients[index].signs);
  for (const { hears, says, masks, masked } of steps.slice(1, count)) {
    if (masks) {
      const left = await client.mask(state, Uint32Array.from(masks));
      same(toHex(left.packed), masked);
      state = left.state;
      continue;
    }
    ({ state, answer } = await client.step(state, hears, identity, drawn));
    same(answer, says);
    same((await client.step(state, hears, identity, drawn)).answer, says);
  }
  if (count === steps.length) same(drawn.left(), 0);
  return { state, identity };
}

/** A device's identity key, as the rosters of the others show it. WebCrypto tells no public key of a private one. */
async function identityOf(session, device) {
  const entries = session.clients.flatMap(({ steps }) => steps[1].hears.message.entries);
  return entries.find((entry) => entry.device === device).identity;
}

/** The coordinator's part, from what the clients said: the secrets that they opened, the masks, the sum. */
async function summed(session) {
  const context = fromHex(session.context);
  const rosters = Object.fromEntries(session.clients.map(({ place, steps }) => [place, steps[1].hears.message]));
  const reveals = session.clients.filter(({ steps }) => steps.at(-1).says?.kind === "Reveal");
  const opened = (what, owner) => {
    const near = neighbours(owner, session.parameters.clients, session.parameters.neighbours);
    const found = reveals.filter(({ steps }) => steps.at(-1).says.message[what][owner] !== undefined);
    const shares = found.map(({ steps }) => fromBase64(steps.at(-1).says.message[what][owner]));
    return rebuild(
      found.map(({ place }) => near.indexOf(place) + 1),
      shares,
      session.parameters.threshold,
    );
  };
  const masks = [];
  for (const place of session.survivors) {
    const seed = opened("self_shares", place);
    same(toHex(seed), session.seeds[place]);
    const { commitment } = session.clients.find((each) => each.place === place).steps[1].says.message;
    same(await client.commitment(context, place, seed), commitment);
    masks.push(await client.ownMask(context, place, seed));
  }
  for (const place of Object.keys(session.mask_keys).map(Number)) {
    const key = opened("mask_shares", place);
    same(toHex(key), session.mask_keys[place]);
    const near = neighbours(place, session.parameters.clients, session.parameters.neighbours);
    const shown = rosters[place].entries.filter(({ position }) => near.includes(position));
    const others = Object.fromEntries(shown.map(({ position, mask_key }) => [position, mask_key]));
    const publicKey = await publicOf(await exchangeKey(key));
    const pairs = await client.pairMasks(context, place, key, publicKey, others);
    masks.push(...pairs.map(({ seed, sign: added }) => ({ seed, sign: -added })));
  }
  same(
    masks.map(({ seed, sign: added }) => [toHex(seed), added]),
    session.masks,
  );
  const rings = client.segmentsOf(session.terms);
  const total = new Uint32Array(lengthOf(rings));
  for (const { steps } of session.clients) {
    const left = steps.find(({ masked }) => masked);
    if (left) unpack(fromHex(left.masked), rings).forEach((word, at) => (total[at] += word));
  }
  await addMasks(
    total,
    masks.map(({ seed, sign: added }) => ({ seed, sign: -added })),
  );
  same(Array.from(reduced(total, rings)), session.sum);
}

/** What clients and coordinator owe each other beyond the transcript: changes of its messages, and the codes. */
function checks(session) {
  const { clients, parameters, context, terms } = session;
  const index = clients.findIndex(({ steps }) => steps.at(-1).says?.kind === "Reveal");
  const { steps, place } = clients[index];
  const [roster, shares, survivors] = [steps[1].hears, steps[2].hears, steps[4].hears];
  const other = roster.message.entries.findIndex(({ position }) => position !== place);
  const consistent = terms.mode === "consistent";
  const tell = (message) => (state, identity) => client.step(state, message, identity);
  const changed = (heard, change) => {
    const copy = structuredClone(heard);
    change(copy.message);
    return tell(copy);
  };
  const entries = (change) => changed(roster, (message) => change(message.entries));
  const bring = (vector) => (state) => client.mask(state, Uint32Array.from(vector));
  const cut = async (state, identity) => {
    const { alive } = survivors.message;
    const digest = toHex(await client.survivorsDigest(fromHex(context), { alive, dealt: alive }));
    return client.step(state, { kind: "Survivors", message: { alive, dealt: alive, digest } }, identity);
  };
  const found = [
    [1, "secagg_phase", "boxes before a roster", tell(shares)],
    [1, "secagg_phase", "a kind that every object has", tell({ kind: "constructor", message: {} })],
    [1, "secagg_phase", "a vector before its time", bring(steps[3].masks)],
    [1, "secagg_phase", "anything after a refusal", (state, identity) => tell(roster)(client.aborted(state), identity)],
    [1, "secagg_roster", "entries in another order", entries((all) => all.reverse())],
    [1, "secagg_roster", "one key twice", entries((all) => (all[other].mask_key = all[other].channel_key))],
    [
      1,
      "secagg_cohort",
      "more clients than the rings hold",
      changed(roster, (told) => (told.clients = terms.max_clients + 1)),
    ],
    [
      2,
      "secagg_box",
      "a box of a stranger",
      changed(shares, ({ boxes }) => (boxes[parameters.clients] = Object.values(boxes)[0])),
    ],
    [
      2,
      "secagg_box",
      "a box of another length",
      changed(shares, ({ boxes }) => (boxes[Object.keys(boxes)[0]] = "AAAA")),
    ],
    [2, "secagg_neighbours", "too few boxes", changed(shares, (told) => (told.boxes = {}))],
    [3, "secagg_phase", "survivors before a vector", tell(survivors)],
    [3, "secagg_vector", "a number outside its ring", bring(steps[3].masks.map((word, at) => (at ? word : 2 ** 13)))],
    [3, "secagg_vector", "a vector too short", bring(steps[3].masks.slice(1))],
    [4, "secagg_second_vector", "a second vector", bring(steps[3].masks.map((word, at) => (at ? word : word ^ 1)))],
    [4, "secagg_survivors", "a graph with a client cut out", cut],
  ];
  if (consistent) {
    const own = roster.message.entries.findIndex(({ position }) => position === place);
    const swap = (all) => (all[other].signature = all[own].signature);
    found.push(
      [1, "secagg_signature", "keys that another signed", entries(swap)],
      [1, "secagg_roster", "own keys that were not sent", entries((all) => (all[own].mask_key = "11".repeat(32)))],
      [1, "secagg_roster", "a digest of another roster", changed(roster, (told) => (told.digest = "00".repeat(32)))],
    );
  } else {
    const zero = (all) => (all[other].channel_key = "00".repeat(32));
    const flip = (all) => {
      const last = Number.parseInt(all[other].mask_key.slice(62), 16) ^ 0x80;
      all[other].mask_key = all[other].mask_key.slice(0, 62) + last.toString(16).padStart(2, "0");
    };
    found.push(
      [1, "secagg_key_invalid", "a key of small order", entries(zero)],
      [1, "secagg_key_invalid", "another spelling of a key", entries(flip)],
    );
  }
  return found.map(([after, code, why, attempt]) => [
    `${terms.mode} refused: ${why}`,
    async () => {
      const { state, identity } = await played(session, index, after);
      await refuses(code, () => attempt(state, identity));
    },
  ]);
}

/** Every client of every session, its sum, and every message that must be refused, as [name, attempt]. */
export function casesOf({ sessions, refused }) {
  const cases = [];
  for (const [mode, session] of Object.entries(sessions)) {
    session.clients.forEach(({ steps }, index) =>
      cases.push([`${mode} client ${index}`, () => played(session, index, steps.length)]),
    );
    cases.push([`${mode} sum`, () => summed(session)]);
  }
  for (const { mode, client: index, after, why, hears, code } of refused) {
    cases.push([
      `${mode} refused: ${why}`,
      async () => {
        const { state, identity } = await played(sessions[mode], index, after);
        await refuses(code, () => client.step(state, hears, identity));
      },
    ]);
  }
  return cases;
}

/** What clients must refuse beside, in every session. */
export const checksOf = ({ sessions }) => Object.values(sessions).flatMap(checks);
