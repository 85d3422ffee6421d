// One request at a time: signed, repeated after failures, refused with a stable code.
import { setTimeout as sleep } from "node:timers/promises";
import { signedFields } from "./signing.mjs";

const PROBLEM = 64 * 1024;
const ANSWER = 64 * 2 ** 20;

// `isTold`: the coordinator refused, not this client.
export class Refusal extends Error {
  constructor(code, detail = "", isTold = false) {
    super(`${code}: ${detail}`);
    Object.assign(this, { code, isTold });
  }
}

export function must(holds, code, detail) {
  if (!holds) throw new Refusal(code, detail);
}

async function read(answer, most) {
  const parts = [];
  let size = 0;
  for await (const part of answer.body ?? []) {
    size += part.length;
    must(size <= most, "answer_too_large", `more than ${most} bytes`);
    parts.push(part);
  }
  return Buffer.concat(parts);
}

const parsed = (bytes) => (bytes.length ? JSON.parse(bytes.toString()) : {});

export class Wire {
  windowStart = 0;

  constructor(url, key, device) {
    Object.assign(this, { url: url.replace(/\/+$/, ""), key, device });
  }

  // Without a nonce any text is signed, and the refusal brings a good one. A nonce is good for one request.
  fields(method, url, { body, headers, token, isOpen }) {
    if (isOpen) return token ? { authorization: `Bearer ${token}` } : {};
    const request = { method, authority: url.host, path: url.pathname, query: url.search.slice(1), body, headers };
    const fields = signedFields(this.key, { device: this.device, nonce: this.nonce ?? "none" }, request);
    this.nonce = null;
    return fields;
  }

  async call(method, path, { body = "", type = "application/json", most = ANSWER, ...how } = {}) {
    const url = new URL(this.url + path);
    let wasStale = false;
    for (let failures = 0; ;) {
      const isUrgent = how.isInAttempt || path.includes("/secure/");
      let wait = isUrgent ? 0 : this.windowStart;
      const headers = this.fields(method, url, { body, ...how });
      const sent = body.length ? { body, headers: { ...headers, "content-type": type } } : { headers };
      try {
        const signal = AbortSignal.timeout(120_000);
        const answer = await fetch(url, { method, ...sent, redirect: "manual", signal });
        this.nonce = answer.headers.get("coterie-nonce") ?? this.nonce;
        const retryAfter = 1000 * Number(answer.headers.get("retry-after") ?? 0);
        if (answer.ok) return { bytes: await read(answer, most), retryAfter };
        wait = Math.max(wait, retryAfter);
        const isPassing = [408, 425, 429].includes(answer.status) || answer.status >= 500;
        const problem = isPassing ? {} : parsed(await read(answer, PROBLEM));
        const { code = `status_${answer.status}`, detail, cause } = problem;
        const isStale = ["nonce_stale", "nonce_used"].includes(code) && !wasStale;
        if (!isPassing && !isStale) throw new Refusal(code, cause ?? detail, true);
        wasStale = isStale;
        if (isStale) continue;
      } catch (error) {
        // What fetch says of a connection: "fetch failed" and "terminated", each with its cause, or the time is over.
        if (error.name !== "TimeoutError" && !(error instanceof TypeError && error.cause)) throw error;
        wasStale = false;
      }
      // A phase of an attempt would end meanwhile.
      const [first, longest] = isUrgent ? [100, 5000] : [1000, 900_000];
      await sleep(wait + Math.random() * Math.min(longest, first * 2 ** failures));
      failures += 1;
    }
  }

  async json(method, path, message, how = {}) {
    const { bytes } = await this.call(method, path, { body: message ? JSON.stringify(message) : "", ...how });
    return parsed(bytes);
  }

  // A long poll: the message, or the refusal that ends the attempt.
  async awaited(path, most) {
    for (const end = Date.now() + most; Date.now() < end;) {
      const { bytes, retryAfter } = await this.call("GET", `${path}?wait_ms=30000`);
      const message = parsed(bytes);
      if (bytes.length && message.state !== "open") return message;
      await sleep(retryAfter);
    }
    throw new Refusal("attempt_silent", path);
  }
}
