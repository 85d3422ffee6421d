/**
 * Who shares with whom: neighbours and threshold for a number of clients, places, and what a sum needs of survivors.
 * docs/security.md, "The bytes", says every formula. BigInt stands here alone, for once in an attempt.
 */

import { compareBytes, joined, Refused, sha256, utf8 } from "./primitives.mjs";

/** @typedef {"semi_honest" | "consistent"} Mode */
/**
 * @typedef {object} Parameters
 * @property {number} clients @property {number} neighbours @property {number} threshold
 * @property {number} corrupt @property {number} dropout @property {Mode} mode
 */

const SECURITY = 40n;
const CORRECTNESS = 20n;
const FEWEST = 3;
const MOST = 1 << 20;
const MOST_NEIGHBOURS = 1024;
const COMPLETE_BELOW = 60;

/** How many clients a fraction stands for. @param {number} fraction @param {number} clients */
export const shareOf = (fraction, clients) => Math.floor((fraction + 1e-14) * clients);

/**
 * The fewest neighbours, and for them the lowest threshold, that keep the promise.
 * @param {number} clients @param {number} corrupt @param {number} dropout @param {Mode} mode @returns {Parameters}
 */
export function parameters(clients, corrupt, dropout, mode) {
  const fractions = [corrupt, dropout].every((fraction) => fraction >= 0 && fraction < 1);
  if (!(clients >= FEWEST && clients <= MOST && fractions)) throw impossible(clients);
  const bad = shareOf(corrupt, clients);
  const dropped = shareOf(dropout, clients);
  const settled = (neighbours, threshold) => ({ clients, neighbours, threshold, corrupt, dropout, mode });
  if (clients >= COMPLETE_BELOW) {
    for (let degree = 2; degree < clients - 1 && degree <= MOST_NEIGHBOURS; degree += 2) {
      const threshold = onRing(clients, bad, dropped, degree, mode);
      if (threshold !== null) return settled(degree, threshold);
    }
  }
  const threshold = clients - 1 <= MOST_NEIGHBOURS ? complete(clients, bad, dropped, mode) : null;
  if (threshold === null) throw impossible(clients);
  return settled(clients - 1, threshold);
}

/** @returns {number | null} the threshold on a ring of this degree */
function onRing(clients, bad, dropped, degree, mode) {
  const choose = { all: choices(clients, degree), lost: choices(bad + dropped, degree) };
  const total = choose.all[degree];
  const cuts = BigInt(clients) * BigInt(clients - degree - 1) * choose.lost[degree];
  if (cuts > 0n && cuts << (SECURITY + 1n) >= 2n * total) return null;
  const corrupt = most(ways(clients, bad, degree), BigInt(clients) << (SECURITY + 1n), total);
  const alive = degree - most(ways(clients, dropped, degree), BigInt(clients) << CORRECTNESS, total);
  const lied = mode === "consistent" ? Math.floor((degree + corrupt) / 2) + 1 : 0;
  const threshold = Math.max(2, corrupt + 1, lied);
  return threshold <= alive ? threshold : null;
}

/** @returns {number | null} the threshold where everyone is everyone's neighbour */
function complete(clients, bad, dropped, mode) {
  const degree = clients - 1;
  const alive = degree - dropped;
  const lied = mode === "consistent" ? Math.floor((degree + bad) / 2) + 1 : 0;
  const threshold = Math.max(2, bad + 1, Math.min(alive, Math.floor(degree / 2) + 1), lied);
  return threshold <= alive ? threshold : null;
}

/** C(total, 0) to C(total, count). @param {number} total @param {number} count @returns {bigint[]} */
function choices(total, count) {
  const found = [1n];
  for (let x = 0; x < count; x++) found.push((found[x] * BigInt(Math.max(0, total - x))) / BigInt(x + 1));
  return found;
}

/** In how many ways `degree` clients hold x of the marked ones. @returns {bigint[]} for x from 0 to degree */
function ways(clients, marked, degree) {
  const chosen = choices(marked, degree);
  const others = choices(clients - marked, degree);
  return chosen.map((count, x) => count * others[degree - x]);
}

/** The least x that is exceeded with a chance below 1 / odds. @param {bigint[]} counts @param {bigint} odds */
function most(counts, odds, total) {
  let above = 0n;
  for (let x = counts.length - 1; x > 0; x--) {
    above += counts[x];
    if (above * odds >= total) return x;
  }
  return 0;
}

/** The places next to one, ascending. @param {number} place @param {number} clients @param {number} degree */
export function neighbours(place, clients, degree) {
  const found = [];
  const reach = degree === clients - 1 ? clients : degree / 2;
  for (let other = 0; other < clients; other++) {
    const apart = Math.abs(other - place);
    if (other !== place && Math.min(apart, clients - apart) <= reach) found.push(other);
  }
  return found;
}

/** Which of the clients' joined public keys stands at each place. @param {Uint8Array[]} keys @param {string} attempt */
export async function order(keys, attempt) {
  const sorted = [...keys].sort(compareBytes);
  const common = await sha256(utf8("coterie/secagg/v1/order\n"), await sha256(utf8(attempt)), joined(...sorted));
  const ranks = await Promise.all(keys.map((key) => sha256(common, key)));
  return keys.map((_, index) => index).sort((one, other) => compareBytes(ranks[one], ranks[other]));
}

/** The fewest clients whose sum may be opened. @param {Parameters} settled @param {number} floor */
export function fewestSurvivors(settled, floor) {
  if (settled.neighbours === settled.clients - 1) return floor;
  return Math.max(floor, settled.clients - shareOf(settled.dropout, settled.clients));
}

/** How many must sign one list of survivors. @param {Parameters} settled */
export const quorum = (settled) => Math.floor((settled.clients + shareOf(settled.corrupt, settled.clients)) / 2) + 1;

/** Whether the survivors are groups that would each be summed for itself. @param {number[]} alive ascending */
export function fallenApart(alive, settled) {
  if (settled.neighbours === settled.clients - 1 || alive.length === 0) return false;
  const following = [...alive.slice(1), alive[0] + settled.clients];
  return following.filter((after, index) => after - alive[index] > settled.neighbours / 2).length > 1;
}

const impossible = (clients) =>
  new Refused("secagg_parameters", `No neighbours and threshold keep the promise among ${clients} clients.`);
