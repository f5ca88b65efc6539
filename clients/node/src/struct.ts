/** JSON values -> google.protobuf.Struct, which the loader takes only in its wire form. */
import * as check from "./checks.js";
import type { Struct } from "./generated/google/protobuf/Struct.js";
import type { Value } from "./generated/google/protobuf/Value.js";

// How deep messages may be nested for the parsers of protobuf. A Struct is on the third level below
// its request; in it an object is three levels (Value, Struct and the entry of a map), a list is two.
const MOST_LEVELS = 100;
const FIRST_LEVEL = 3;

/**
 * Returns an object as a Struct. Throws TypeError for what JSON cannot hold, and RangeError for what
 * is nested deeper than parsers go.
 */
export function structFrom(name: string, value: unknown): Struct {
  return structAt(FIRST_LEVEL, name, value);
}

function structAt(level: number, name: string, value: unknown): Struct {
  const fields = Object.entries(check.object(name, value)).map(([key, item]) => {
    return [key, valueAt(level + 2, `${name}.${key}`, item)];
  });
  return { fields: Object.fromEntries(fields) };
}

function valueAt(level: number, name: string, value: unknown): Value {
  const deepest = typeof value === "object" && value !== null ? level + 1 : level;
  if (deepest > MOST_LEVELS) {
    const top = name.split(".", 1)[0];
    throw new RangeError(`${top}: is nested deeper than protobuf takes, about 30 objects`);
  }
  switch (typeof value) {
    case "boolean":
      return { boolValue: value };
    case "number":
      return { numberValue: value };
    case "string":
      return { stringValue: check.text(name, value) };
    case "object":
      if (value === null) return { nullValue: "NULL_VALUE" };
      if (Array.isArray(value)) {
        const item: check.Check<Value> = (...given) => valueAt(level + 2, ...given);
        return { listValue: { values: check.listOf(item)(name, value) } };
      }
      return { structValue: structAt(level + 1, name, value) };
    default:
      throw new TypeError(`${name}: JSON has no ${typeof value}`);
  }
}
