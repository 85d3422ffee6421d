/** What cases of vectors are held to. */

import { canonical, Refused } from "./primitives.mjs";

/** Entropy that is written down; asking for more than there is is a failure. @param {Uint8Array} bytes */
export function written(bytes) {
  let at = 0;
  const draw = (count) => {
    if (at + count > bytes.length) throw new Error("more entropy is asked for than was drawn");
    at += count;
    return bytes.slice(at - count, at);
  };
  return Object.assign(draw, { left: () => bytes.length - at });
}

export function same(found, expected) {
  const [one, other] = [canonical(found), canonical(expected)];
  if (one !== other) throw new Error(`${one.slice(0, 200)} is not ${other.slice(0, 200)}`);
}

/** That something is refused, and with which code. */
export async function refuses(code, attempt) {
  try {
    await attempt();
  } catch (error) {
    if (error instanceof Refused && error.code === code) return;
    throw error;
  }
  throw new Error(`it is not refused with ${code}`);
}
