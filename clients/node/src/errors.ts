/**
 * Every way in which a call can fail, named after the situation.
 *
 *     SpecdClientError
 *     |-- ProtocolError         the server broke the rules of a stream
 *     `-- CallFailed            the call ended with a status; the subclass follows from its code
 *         |-- InvalidRequest        INVALID_ARGUMENT, OUT_OF_RANGE
 *         |-- UnknownName           NOT_FOUND
 *         |-- DuplicateRequest      ALREADY_EXISTS
 *         |-- Unsupported           UNIMPLEMENTED
 *         |-- Overloaded            RESOURCE_EXHAUSTED
 *         |-- MessageTooLarge       RESOURCE_EXHAUSTED, told by gRPC itself
 *         |-- NotReady              UNAVAILABLE: starting, draining, or nobody listens
 *         |-- WrongState            FAILED_PRECONDITION
 *         |-- DeadlineExceeded      DEADLINE_EXCEEDED
 *         |-- CallCancelled         CANCELLED, ABORTED
 *         |-- NotAuthenticated      UNAUTHENTICATED
 *         |-- NotPermitted          PERMISSION_DENIED
 *         `-- InternalError         INTERNAL, UNKNOWN, DATA_LOSS
 *
 * Invariant: ERRORS has a class for every status code but OK; the compiler checks it.
 */
import { status, type ServiceError } from "@grpc/grpc-js";

import { NO_DETAILS, detailsFrom } from "./details.js";
import type { Details, FieldViolation, Resource } from "./details.js";

/** Name of a gRPC status code, for instance "RESOURCE_EXHAUSTED". */
export type StatusCode = Exclude<keyof typeof status, "OK">;

/** Root of everything that this package throws for what a server or a connection did. */
export class SpecdClientError extends Error {
  constructor(message: string, options?: { cause?: unknown }) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** The server broke a rule of the protocol, for instance ended a stream without `finished`. */
export class ProtocolError extends SpecdClientError {}

/** A call that ended with a status. */
export class CallFailed extends SpecdClientError implements Details {
  /** Name of the status code. */
  readonly code: StatusCode;
  /** Upper-case name of the situation, empty where none was sent. */
  readonly reason: string;
  /** Further facts by name. */
  readonly metadata: Readonly<Record<string, string>>;
  /** The fields that were refused. */
  readonly fieldViolations: readonly FieldViolation[];
  /** When the same call may succeed. */
  readonly retryAfterMs: number | undefined;
  /** What is missing or taken. */
  readonly resource: Resource | undefined;

  constructor(
    code: StatusCode,
    message: string,
    details: Details = NO_DETAILS,
    options?: { cause?: unknown },
  ) {
    super(message, options);
    this.code = code;
    this.reason = details.reason;
    this.metadata = details.metadata;
    this.fieldViolations = details.fieldViolations;
    this.retryAfterMs = details.retryAfterMs;
    this.resource = details.resource;
  }
}

/** A field is missing, contradictory or out of range; see `fieldViolations`. */
export class InvalidRequest extends CallFailed {}

/** The server has no such model or drafter. */
export class UnknownName extends CallFailed {}

/** The request id belongs to a live request. */
export class DuplicateRequest extends CallFailed {}

/** The server does not have this feature, or this call. */
export class Unsupported extends CallFailed {}

/** The server has no room now; try again after `retryAfterMs`. */
export class Overloaded extends CallFailed {}

/** The request or the answer exceeds the size that a message may have; a retry cannot help. */
export class MessageTooLarge extends CallFailed {}

/** The server is starting, draining or not there; try again later. */
export class NotReady extends CallFailed {}

/** The server cannot do this until its operator changes something. */
export class WrongState extends CallFailed {}

/** The timeout of the call has passed. */
export class DeadlineExceeded extends CallFailed {}

/** The call was cancelled; where a signal did it, `cause` is the signal's reason. */
export class CallCancelled extends CallFailed {}

/** The credentials are missing or wrong. */
export class NotAuthenticated extends CallFailed {}

/** The caller may not do this. */
export class NotPermitted extends CallFailed {}

/** The server failed; `metadata.error_id`, where present, finds the cause in its log. */
export class InternalError extends CallFailed {}

const ERRORS: Readonly<Record<StatusCode, typeof CallFailed>> = {
  INVALID_ARGUMENT: InvalidRequest,
  OUT_OF_RANGE: InvalidRequest,
  NOT_FOUND: UnknownName,
  ALREADY_EXISTS: DuplicateRequest,
  UNIMPLEMENTED: Unsupported,
  RESOURCE_EXHAUSTED: Overloaded,
  UNAVAILABLE: NotReady,
  FAILED_PRECONDITION: WrongState,
  DEADLINE_EXCEEDED: DeadlineExceeded,
  CANCELLED: CallCancelled,
  ABORTED: CallCancelled,
  UNAUTHENTICATED: NotAuthenticated,
  PERMISSION_DENIED: NotPermitted,
  INTERNAL: InternalError,
  UNKNOWN: InternalError,
  DATA_LOSS: InternalError,
};

// How gRPC itself says that a message exceeds a limit, the server's or this client's.
const TOO_LARGE = "message larger than max";

// What grpc-js puts behind its own messages, also where it has no note.
const EMPTY_NOTE = /\s*Resolution note:\s*$/;

/** Returns the typed error of a failed call. */
export function errorFrom(error: ServiceError): CallFailed {
  const code = (status[error.code] ?? "UNKNOWN") as StatusCode;
  const message = (error.details ?? error.message).replace(EMPTY_NOTE, "");
  const [serialized] = error.metadata?.get("grpc-status-details-bin") ?? [];
  const details = serialized instanceof Buffer ? detailsFrom(serialized) : NO_DETAILS;
  const tooLarge = code === "RESOURCE_EXHAUSTED" && !details.reason && message.includes(TOO_LARGE);
  const kind = tooLarge ? MessageTooLarge : ERRORS[code];
  return new kind(code, message, details);
}

/** Returns the error of a call that this side cancelled. */
export function cancelled(reason: unknown): CallCancelled {
  return new CallCancelled("CANCELLED", "cancelled by this client", NO_DETAILS, { cause: reason });
}
