/**
 * Reads `grpc-status-details-bin`: the google.rpc messages that come with an error.
 *
 * Invariant: bytes that cannot be read give empty details, never an exception; the status code and
 * message of the call stand without them.
 */
import type { Packed__Output as Packed } from "./generated/specd_client/details/Packed.js";
import { milliseconds } from "./numbers.js";
import { details as messages } from "./protocol.js";

/** One field of a request that was refused, by its path in the wire message. */
export interface FieldViolation {
  readonly field: string;
  readonly description: string;
}

/** What is missing or taken. */
export interface Resource {
  readonly kind: string;
  readonly name: string;
}

/** What an error says besides code and message. */
export interface Details {
  readonly reason: string;
  readonly metadata: Readonly<Record<string, string>>;
  readonly fieldViolations: readonly FieldViolation[];
  readonly retryAfterMs: number | undefined;
  readonly resource: Resource | undefined;
}

export const NO_DETAILS: Details = {
  reason: "",
  metadata: {},
  fieldViolations: [],
  retryAfterMs: undefined,
  resource: undefined,
};

/** Returns what the value of `grpc-status-details-bin` says. */
export function detailsFrom(serialized: Buffer): Details {
  try {
    const status = messages.Status.deserialize(serialized);
    return Object.assign({}, NO_DETAILS, ...status.details.map(read)) as Details;
  } catch {
    return NO_DETAILS;
  }
}

function read({ typeUrl, value }: Packed): Partial<Details> {
  switch (typeUrl.split("/").at(-1)) {
    case "google.rpc.ErrorInfo": {
      const { reason, metadata } = messages.ErrorInfo.deserialize(value);
      return { reason, metadata };
    }
    case "google.rpc.BadRequest":
      return { fieldViolations: messages.BadRequest.deserialize(value).fieldViolations };
    case "google.rpc.RetryInfo":
      return { retryAfterMs: milliseconds(messages.RetryInfo.deserialize(value).retryDelay) };
    case "google.rpc.ResourceInfo": {
      const resource = messages.ResourceInfo.deserialize(value);
      return { resource: { kind: resource.resourceType, name: resource.resourceName } };
    }
    default:
      return {};
  }
}

