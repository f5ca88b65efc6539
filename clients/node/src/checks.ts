/**
 * Checks of single values before they are put into a message.
 *
 * The protobuf library turns what does not fit into something else without a word: -1 into
 * 4294967295, "many" into 0. So each value is checked for the type and range of its field here;
 * what a value means is the server's business.
 *
 * Invariant: a check returns what the field holds exactly, or throws TypeError or RangeError with
 * the name of the option.
 */

/** Returns a value as its field takes it. `name`: of the option, for the message of the error. */
export type Check<T> = (name: string, value: unknown) => T;

const IN_JSON = new Set(["object", "string", "boolean"]);
// By the definition of google.protobuf.Duration.
const LONGEST_MS = 315_576_000_000_000;

export const bool: Check<boolean> = (name, value) => {
  if (typeof value !== "boolean") throw wrong(name, "a boolean", value);
  return value;
};

/** NaN and infinity pass: the server names them in its refusal. */
export const float: Check<number> = (name, value) => {
  if (typeof value !== "number") throw wrong(name, "a number", value);
  return value;
};

export const text: Check<string> = (name, value) => {
  if (typeof value !== "string") throw wrong(name, "a string", value);
  if (!value.isWellFormed()) throw new TypeError(`${name}: has half of a surrogate pair`);
  return value;
};

export const int32 = integer(-(2 ** 31), 2 ** 31 - 1);
export const uint32 = integer(0, 2 ** 32 - 1);

/** Takes a bigint, or a number up to 2^53; returns the decimal text that the loader takes. */
export const uint64: Check<string> = (name, value) => {
  if (typeof value !== "bigint" && !Number.isSafeInteger(value)) {
    throw wrong(name, "a bigint or an integer up to 2^53", value);
  }
  const seed = BigInt(value as bigint | number);
  if (seed < 0n || seed >= 1n << 64n) throw outside(name, "0", "2^64 - 1", seed);
  return seed.toString();
};

/** Takes any iterable but a string. */
export function listOf<T>(check: Check<T>): Check<T[]> {
  return (name, value) => {
    if (typeof value !== "object" || value === null || !(Symbol.iterator in value)) {
      throw wrong(name, "a list", value);
    }
    return Array.from(value as Iterable<unknown>, (item, at) => check(`${name}[${at}]`, item));
  };
}

/** Takes an object or a Map whose keys are token ids. */
export const bias: Check<Record<string, number>> = (name, value) => {
  const entries = value instanceof Map ? [...value] : Object.entries(object(name, value));
  const checked = entries.map(([id, logit]) => {
    return [uint32(`${name} key`, Number(id)), float(`${name}[${id}]`, logit)];
  });
  return Object.fromEntries(checked) as Record<string, number>;
};

/** Takes JSON text, or an object, which becomes such text; throws TypeError for what JSON lacks. */
export const json: Check<string> = (name, value) => {
  if (typeof value === "string") return text(name, value);
  const seen = (key: string, item: unknown): unknown => {
    const lacking = typeof item === "number" ? !Number.isFinite(item) : !IN_JSON.has(typeof item);
    if (lacking) throw new TypeError(`JSON has no ${typeof item} as ${key} is`);
    return item;
  };
  try {
    return JSON.stringify(object(name, value), seen);
  } catch (error) {
    throw new TypeError(`${name}: ${(error as Error).message}`);
  }
};

/** Takes an object with no other keys than the known ones. Without `known` any keys. */
export function object(
  name: string,
  value: unknown,
  known?: readonly string[],
): Record<string, unknown> {
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw wrong(name, "an object", value);
  }
  const unknown = Object.keys(value).find((key) => known !== undefined && !known.includes(key));
  if (unknown !== undefined) throw new TypeError(`${name}: unknown option ${unknown}`);
  return value as Record<string, unknown>;
}

/** Takes milliseconds that a duration of the wire holds: 0 to 10,000 years. */
export const milliseconds: Check<number> = (name, value) => {
  const given = float(name, value);
  if (!(given >= 0 && given <= LONGEST_MS)) throw outside(name, 0, LONGEST_MS, given);
  return given;
};

/** Takes the milliseconds of a time limit. More than `longest`, infinity too, is no limit. */
export function limit(name: string, value: unknown, longest: number): number | undefined {
  const given = float(name, value);
  if (!(given >= 0)) throw outside(name, 0, "infinity", given);
  return given > longest ? undefined : given;
}

function integer(lowest: number, highest: number): Check<number> {
  return (name, value) => {
    if (!Number.isInteger(value)) throw wrong(name, "an integer", value);
    const given = value as number;
    if (given < lowest || given > highest) throw outside(name, lowest, highest, given);
    return given;
  };
}

function wrong(name: string, wanted: string, value: unknown): TypeError {
  const given = typeof value === "number" ? `${value}` : value === null ? "null" : typeof value;
  return new TypeError(`${name}: takes ${wanted}, not ${given}`);
}

function outside(name: string, lowest: unknown, highest: unknown, value: unknown): RangeError {
  return new RangeError(`${name}: is between ${lowest} and ${highest}, not ${value}`);
}
