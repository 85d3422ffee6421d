// What a task is held to before anything is fetched, trained or sent; and the rows, before the device joins.
import { ARRAYS, sizeOf } from "./training.mjs";
import { canonical, isSigned, sha256Hex } from "./signing.mjs";
import { must } from "./wire.mjs";

export const FLOOR = { clients: 5, corrupt: 0.05 };
// Some are for people; the page says that a manifest has no others than it names.
const FIELDS = `algorithm broadcast client_state codecs compression format frozen hyper layout metrics name optimizer
  schema sections shape stages training`.split(/\s+/);
const SOURCES = ["model", "hyper", "active", "batch", "random", "state", "zeros", "counter"];
const DESTINATIONS = ["carry", "state", "upload"];

export function checkTask(task, { device, coordinator, signers }) {
  const { signature, ...rest } = task;
  must(isSigned(coordinator, "coterie task v1", canonical(rest), signature), "signature_invalid", "the task's");
  must(task.device === device, "task_of_another", task.device);
  const { id, signer } = task.plan;
  must(signers.includes(signer), "signer_refused", signer);
  must(isSigned(signer, "coterie plan v1", id, task.plan.signature), "signature_invalid", "the plan's");
  must(task.kind === "train" && !task.frozen && !task.edge, "policy_refused", "more than training whole models");
  // Nothing here keeps a record of releases or makes noise, so no promise of privacy is taken.
  must(!task.privacy && !task.local && !task.secure?.noise, "privacy_unkept", "a promise that this client cannot keep");
  if (!task.secure) return;
  must(task.secure.min_clients >= FLOOR.clients, "cohort_too_small", `${task.secure.min_clients}`);
  must(task.secure.corrupt >= FLOOR.corrupt, "corrupt_too_low", `${task.secure.corrupt}`);
  must(["semi_honest", "consistent"].includes(task.secure.mode), "mode_refused", task.secure.mode);
}

export function checkPlan(plan, task, schema) {
  must(plan.format === "coterie-plan-1" && plan.shape === "horizontal", "plan_manifest", plan.format);
  must(Object.keys(plan).every((name) => FIELDS.includes(name)), "plan_manifest", "a field that is not known");
  must(canonical(plan.schema) === canonical(schema), "schema_mismatch", "the plan reads other rows");
  must(!plan.frozen && !plan.client_state.length && !plan.training.private, "plan_refused", "more than the core");
  must(Object.keys(task.hyper).every((name) => Object.hasOwn(plan.hyper, name)), "unknown_hyper", "not the plan's");
  const stages = plan.stages.filter(({ tasks }) => tasks.includes("train"));
  const isRun = ({ over, inputs, outputs }) => {
    const areRead = inputs.every(({ source }) => SOURCES.includes(source));
    const areKept = outputs.every(({ destination }) => DESTINATIONS.includes(destination));
    return ["once", "steps"].includes(over) && areRead && areKept;
  };
  must(stages.every(isRun), "plan_refused", "a stage of more than the core");
  return stages;
}

export const headOf = (link) => sha256Hex("coterie/lineage/v1\n", canonical(link));

// What the device remembers after a task; `linksAfter` asks for those after a round, 256 at most.
export async function checkLineage(seen, task, linksAfter) {
  const { lineage, experiment } = task;
  if (!lineage) {
    must(!seen && !task.secure, "lineage_broken", "the task says nothing of its history");
    return null;
  }
  const plan = task.plan.id;
  const { round, before } = lineage;
  must(round > 0 || before === "0".repeat(64), "lineage_broken", "something stands before the first version");
  const head = headOf({ before, experiment, plan, round, version: task.model.sha256 });
  if (!seen) return { plan, round, head };
  must(seen.plan === plan, "lineage_broken", "another plan");
  const isLater = round > seen.round;
  const [from, wanted] = isLater ? [seen, before] : [{ round, head }, seen.head];
  const last = isLater ? round - 1 : seen.round;
  const reached = await walk(from, last, { experiment, plan }, linksAfter);
  must(reached === wanted, "lineage_broken", "the task's version is of another history");
  return isLater ? { plan, round, head } : seen;
}

async function walk({ round, head }, last, names, linksAfter) {
  let links = [];
  while (round < last && (links = await linksAfter(round)).length) {
    for (const link of links) {
      must(link.round > round, "lineage_broken", "links that do not rise");
      if (link.round > last) return head;
      head = headOf({ ...names, before: head, round: link.round, version: link.version });
      round = link.round;
    }
  }
  return head;
}

// The columns of a schema, flat and typed; what does not fit is refused by its column.
export function readColumns(schema, table) {
  const columns = [...schema.features, { shape: [], ...schema.label }].map((column) => {
    const { name, dtype, shape, low, high } = column;
    must(Array.isArray(table[name]) && ARRAYS[dtype], "data_invalid", `no column ${name} of ${dtype}`);
    const flat = table[name].flat(Infinity);
    const rows = table[name].length;
    must(flat.length === rows * sizeOf(shape), "data_invalid", `${name}: rows are not of shape [${shape}]`);
    const fits = (cell) => {
      const isWhole = dtype.startsWith("float") || Number.isInteger(cell);
      return Number.isFinite(cell) && isWhole && cell >= (low ?? -Infinity) && cell <= (high ?? Infinity);
    };
    must(flat.every(fits), "data_invalid", `${name}: a cell does not fit`);
    return [name, { dtype, shape, rows, values: ARRAYS[dtype].from(dtype === "int64" ? flat.map(BigInt) : flat) }];
  });
  must(new Set(columns.map(([, { rows }]) => rows)).size === 1, "data_invalid", "columns of different lengths");
  return Object.fromEntries(columns);
}
