/**
 * What is served and how it fares, as values built from the wire messages.
 *
 * The types follow the messages, so that a field which the protocol gains is here with the next
 * build. Counters are numbers, exact up to 2^53.
 */
import type { BucketWaste__Output } from "./generated/specd/v1/BucketWaste.js";
import type { DrafterStats__Output } from "./generated/specd/v1/DrafterStats.js";
import type { ModelInfo__Output } from "./generated/specd/v1/ModelInfo.js";
import type { SamplingParams__Output } from "./generated/specd/v1/SamplingParams.js";
import type { ServerCounters__Output } from "./generated/specd/v1/ServerCounters.js";
import type { ServerInfo__Output } from "./generated/specd/v1/ServerInfo.js";
import type { ServerLimits__Output } from "./generated/specd/v1/ServerLimits.js";
import { ProtocolError } from "./errors.js";
import { counted } from "./numbers.js";

/** What a server takes at most. */
export type ServerLimits = Readonly<ServerLimits__Output>;

/** What a server holds now, and what it has done since it started. */
export type ServerCounters = Readonly<Record<keyof ServerCounters__Output, number>>;

/** Padding of the steps that ran in one shape. */
export type BucketWaste = { readonly label: string } & Readonly<
  Record<Exclude<keyof BucketWaste__Output, "label">, number>
>;

/** What one drafter has done since the server started. */
export type DrafterStats = { readonly name: string; readonly breakerOpen: boolean } & Readonly<
  Record<Exclude<keyof DrafterStats__Output, "name" | "breakerOpen">, number>
>;

/** STRICT: a request's tokens depend on the request alone. RELAXED: near-ties may flip. */
export type Invariance = "STRICT" | "RELAXED" | "UNSPECIFIED";

type Sizes = "weightBytes" | "kvBytesPerPosition";
type Rebuilt = Sizes | "invariance" | "limits" | "counters" | "bucketWaste" | "drafterStats";

/** A server, its settings and its counters. */
export interface ServerInfo extends Readonly<Omit<ServerInfo__Output, Rebuilt>> {
  readonly invariance: Invariance;
  readonly limits: ServerLimits;
  readonly counters: ServerCounters;
  readonly bucketWaste: readonly BucketWaste[];
  readonly drafterStats: readonly DrafterStats[];
  readonly weightBytes: number;
  readonly kvBytesPerPosition: number;
}

type SamplingFields = Omit<SamplingParams__Output, `_${string}` | "seed">;

/** The values that unset sampling fields take. */
export interface DefaultSampling extends Readonly<SamplingFields> {
  readonly seed?: bigint;
}

/** A model as it is served. */
export interface ModelInfo extends Readonly<Omit<ModelInfo__Output, "defaultSampling">> {
  readonly defaultSampling: DefaultSampling;
}

/** Returns what a server says of itself. Throws ProtocolError where a part is missing. */
export function serverInfoFrom(message: ServerInfo__Output | null): ServerInfo {
  const { limits, counters } = message ?? {};
  if (!message || !limits || !counters) throw new ProtocolError("server info without its parts");
  return {
    ...message,
    invariance: message.invariance.replace("INVARIANCE_MODE_", "") as Invariance,
    limits,
    counters: counted(counters),
    bucketWaste: message.bucketWaste.map(({ label, ...counts }) => {
      return { label, ...counted(counts) };
    }),
    drafterStats: message.drafterStats.map(({ name, breakerOpen, ...counts }) => {
      return { name, breakerOpen, ...counted(counts) };
    }),
    weightBytes: Number(message.weightBytes),
    kvBytesPerPosition: Number(message.kvBytesPerPosition),
  };
}

/** Returns the description of a model. Throws ProtocolError where it is missing. */
export function modelInfoFrom(message: ModelInfo__Output | null): ModelInfo {
  if (!message?.defaultSampling) throw new ProtocolError("a model without its description");
  const { seed, ...others } = message.defaultSampling;
  // The loader marks a field that is present by a second one, `_` and its name.
  const fields = Object.fromEntries(
    Object.entries(others).filter(([name]) => !name.startsWith("_")),
  ) as unknown as SamplingFields;
  const defaultSampling = seed === undefined ? fields : { ...fields, seed: BigInt(seed) };
  return { ...message, defaultSampling };
}
