/** The client of specd: everything that a program calls. */
export { credentials } from "@grpc/grpc-js";

export { Client } from "./client.js";
export type { ClientOptions, Drained, TokenizedPrompt } from "./client.js";
export type { FieldViolation, Resource } from "./details.js";
export {
  CallCancelled,
  CallFailed,
  DeadlineExceeded,
  DuplicateRequest,
  InternalError,
  InvalidRequest,
  MessageTooLarge,
  NotAuthenticated,
  NotPermitted,
  NotReady,
  Overloaded,
  ProtocolError,
  SpecdClientError,
  UnknownName,
  Unsupported,
  WrongState,
} from "./errors.js";
export type { StatusCode } from "./errors.js";
export type {
  Alternative,
  Delta,
  DrafterTally,
  Finished,
  FinishReason,
  SequenceFinished,
  SpeculationStats,
  SpeculationStep,
  Started,
  StreamEvent,
  TokenLogprob,
  Usage,
} from "./events.js";
export type {
  BucketWaste,
  DefaultSampling,
  DrafterStats,
  Invariance,
  ModelInfo,
  ServerCounters,
  ServerInfo,
  ServerLimits,
} from "./info.js";
export type {
  CallOptions,
  ChatMessage,
  GenerationRequest,
  Json,
  JsonObject,
  LogprobBasis,
  Options,
  Prompt,
} from "./options.js";
export type { Completion, GeneratedSequence } from "./order.js";
export type { Stream } from "./stream.js";
