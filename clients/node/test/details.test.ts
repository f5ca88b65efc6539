/** Error details: read from the bytes of google.rpc, and empty for other bytes. */
import assert from "node:assert/strict";
import { test } from "node:test";

import * as grpc from "@grpc/grpc-js";

import { NO_DETAILS, detailsFrom } from "../src/details.js";
import { errorFrom } from "../src/errors.js";
import * as client from "../src/index.js";
import { QUEUE_FULL, packed } from "./server.js";

test("each kind of detail is read", () => {
  const serialized = packed({
    ErrorInfo: { reason: "INVALID_FIELD", domain: "specd", metadata: { limit: "7" } },
    BadRequest: { fieldViolations: [{ field: "sampling.top_p", description: "is 2" }] },
    RetryInfo: { retryDelay: { seconds: 2, nanos: 500_000_000 } },
    ResourceInfo: { resourceType: "drafter", resourceName: "eagle" },
  });
  assert.deepEqual(JSON.parse(JSON.stringify(detailsFrom(serialized))), {
    reason: "INVALID_FIELD",
    metadata: { limit: "7" },
    fieldViolations: [{ field: "sampling.top_p", description: "is 2" }],
    retryAfterMs: 2500,
    resource: { kind: "drafter", name: "eagle" },
  });
});

test("the bytes are those of google.rpc", () => {
  // Status{code: 5, details: Any{type_url: ".../google.rpc.ResourceInfo", value: {"m", "x"}}}
  const url = Buffer.from("type.googleapis.com/google.rpc.ResourceInfo");
  const value = Buffer.from("\x0a\x01m\x12\x01x");
  const any = Buffer.concat([Buffer.from([0x0a, url.length]), url, Buffer.from([0x12, 6]), value]);
  const serialized = Buffer.concat([Buffer.from([0x08, 5, 0x1a, any.length]), any]);
  assert.deepEqual(detailsFrom(serialized).resource, { kind: "m", name: "x" });
});

test("an unknown detail is passed over", () => {
  const url = Buffer.from("type.googleapis.com/google.rpc.ErrorInfo");
  const serialized = Buffer.from(QUEUE_FULL);
  serialized.write("Other", QUEUE_FULL.indexOf(url) + url.length - 9);
  assert.equal(detailsFrom(serialized).reason, "");
  assert.equal(detailsFrom(serialized).retryAfterMs, 1250);
});

for (const bytes of ["", "\xff\xff\xff", "\x1a\x7f", "\x1a\x03\x12\x09a"]) {
  test(`bytes that are no details are empty: ${JSON.stringify(bytes)}`, () => {
    const serialized = Buffer.from(bytes, "latin1");
    assert.deepEqual({ ...detailsFrom(serialized) }, NO_DETAILS);
  });
}

const KINDS: Record<client.StatusCode, typeof client.CallFailed> = {
  INVALID_ARGUMENT: client.InvalidRequest,
  OUT_OF_RANGE: client.InvalidRequest,
  NOT_FOUND: client.UnknownName,
  ALREADY_EXISTS: client.DuplicateRequest,
  UNIMPLEMENTED: client.Unsupported,
  RESOURCE_EXHAUSTED: client.Overloaded,
  UNAVAILABLE: client.NotReady,
  FAILED_PRECONDITION: client.WrongState,
  DEADLINE_EXCEEDED: client.DeadlineExceeded,
  CANCELLED: client.CallCancelled,
  ABORTED: client.CallCancelled,
  UNAUTHENTICATED: client.NotAuthenticated,
  PERMISSION_DENIED: client.NotPermitted,
  INTERNAL: client.InternalError,
  UNKNOWN: client.InternalError,
  DATA_LOSS: client.InternalError,
};

function failed(code: client.StatusCode, details: string): client.CallFailed {
  const metadata = new grpc.Metadata();
  return errorFrom(Object.assign(new Error(), { code: grpc.status[code], details, metadata }));
}

for (const [code, kind] of Object.entries(KINDS)) {
  test(`${code} is ${kind.name}`, () => {
    const error = failed(code as client.StatusCode, "why");
    assert.equal(error.constructor, kind);
    assert.ok(error instanceof client.SpecdClientError);
    assert.deepEqual([error.name, error.code, error.message], [kind.name, code, "why"]);
  });
}

test("a note that gRPC leaves empty is left out of the message", () => {
  const message = "No connection established. Last error: none. Resolution note: ";
  assert.equal(failed("UNAVAILABLE", message).message, message.slice(0, -18));
  assert.equal(failed("UNAVAILABLE", `${message}no DNS`).message, `${message}no DNS`);
});

test("a message that gRPC finds too large is no overload", () => {
  const message = "CLIENT: Received message larger than max (5 vs. 4)";
  assert.ok(failed("RESOURCE_EXHAUSTED", message) instanceof client.MessageTooLarge);
});
