/** JSON values -> google.protobuf.Struct, which the loader takes only in its wire form. */
import * as check from "./checks.js";
import type { Struct } from "./generated/google/protobuf/Struct.js";
import type { Value } from "./generated/google/protobuf/Value.js";

/** Returns an object as a Struct. Throws TypeError for what JSON cannot hold. */
export function structFrom(name: string, value: unknown): Struct {
  const fields = Object.entries(check.object(name, value)).map(([key, item]) => {
    return [key, valueFrom(`${name}.${key}`, item)];
  });
  return { fields: Object.fromEntries(fields) };
}

function valueFrom(name: string, value: unknown): Value {
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
        return { listValue: { values: check.listOf(valueFrom)(name, value) } };
      }
      return { structValue: structFrom(name, value) };
    default:
      throw new TypeError(`${name}: JSON has no ${typeof value}`);
  }
}
