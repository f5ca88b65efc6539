/**
 * What a stream tells, as values with a `type`, built from the wire messages.
 *
 * Knows nothing of channels and calls. Invariant: each value holds all that its message does.
 */
import { ProtocolError } from "./errors.js";
import type { Delta__Output } from "./generated/specd/v1/Delta.js";
import type { Finished__Output } from "./generated/specd/v1/Finished.js";
import type { SequenceFinished__Output } from "./generated/specd/v1/SequenceFinished.js";
import type { SpeculationTally__Output } from "./generated/specd/v1/SpeculationTally.js";
import type { Started__Output } from "./generated/specd/v1/Started.js";
import type {
  StreamGenerateResponse__Output,
} from "./generated/specd/v1/StreamGenerateResponse.js";
import type { TokenLogprob__Output } from "./generated/specd/v1/TokenLogprob.js";
import { milliseconds } from "./numbers.js";

const FINISH_REASONS = [
  "EOS_TOKEN",
  "STOP_TOKEN",
  "STOP_STRING",
  "MAX_TOKENS",
  "CONTEXT_LENGTH",
  "ABORTED",
] as const;

/** Why a sequence ended. A failure is an error, never a reason. */
export type FinishReason = (typeof FINISH_REASONS)[number];

/** A token that could have been chosen. logprob: natural logarithm. */
export interface Alternative {
  readonly tokenId: number;
  readonly logprob: number;
}

/**
 * The log probability of a token, and its rank: how many are more probable, plus 1. Both are
 * undefined for the first prompt token. alternatives: the most probable tokens of this position,
 * best first, as many as were asked for.
 */
export interface TokenLogprob {
  readonly tokenId: number;
  readonly logprob: number | undefined;
  readonly rank: number | undefined;
  readonly alternatives: readonly Alternative[];
}

/**
 * The request is admitted. queueTimeMs: from arrival to admission. sequenceSeeds: the seed of each
 * sequence, the first of which is `seed`; a request of its own with one of them gives the tokens of
 * that sequence. promptLogprobs: one per prompt token, where asked for.
 */
export interface Started {
  readonly type: "started";
  readonly requestId: string;
  readonly model: string;
  readonly promptTokens: number;
  readonly cachedPromptTokens: number;
  readonly seed: bigint;
  readonly queueTimeMs: number;
  readonly arithmeticFingerprint: string;
  readonly promptLogprobs: readonly TokenLogprob[];
  readonly sequenceSeeds: readonly bigint[];
}

/** How one step was drafted. drafter: undefined for a plain step. */
export interface SpeculationStep {
  readonly drafter: string | undefined;
  readonly draftTokens: number;
  readonly acceptedDraftTokens: number;
}

/**
 * New tokens of a sequence. text, tokenIds and logprobs are new, completionTokens counts all.
 * tokenIds, logprobs and steps are empty unless they were asked for.
 */
export interface Delta {
  readonly type: "delta";
  readonly sequenceIndex: number;
  readonly text: string;
  readonly tokenIds: readonly number[];
  readonly logprobs: readonly TokenLogprob[];
  readonly completionTokens: number;
  readonly steps: readonly SpeculationStep[];
}

/** One sequence is complete. At most one of the matches is set. */
export interface SequenceFinished {
  readonly type: "sequence_finished";
  readonly sequenceIndex: number;
  readonly finishReason: FinishReason;
  readonly matchedTokenId: number | undefined;
  readonly matchedStopString: string | undefined;
}

/** Tokens of a whole request. */
export interface Usage {
  readonly promptTokens: number;
  readonly cachedPromptTokens: number;
  readonly completionTokens: number;
}

/** Counts over steps of a request; element i of the histogram counts steps that accepted i. */
export interface DrafterTally {
  readonly verifySteps: number;
  readonly draftTokens: number;
  readonly acceptedDraftTokens: number;
  readonly acceptedLengthHistogram: readonly number[];
  readonly padPositions: number;
  readonly late: number;
  readonly faults: number;
  readonly draftTimeMs: number;
  readonly verifyTimeMs: number;
}

/** total: every step that sampled. byDrafter: the steps that verified a draft, by its maker. */
export interface SpeculationStats {
  readonly total: DrafterTally;
  readonly byDrafter: Readonly<Record<string, DrafterTally>>;
}

/** The request is complete; nothing follows. */
export interface Finished {
  readonly type: "finished";
  readonly usage: Usage;
  readonly speculation: SpeculationStats;
}

/** One event of a stream. */
export type StreamEvent = Started | Delta | SequenceFinished | Finished;

/** Returns the event of one message. Throws ProtocolError for one that this client lacks. */
export function eventFrom(response: StreamGenerateResponse__Output): StreamEvent {
  const { started, delta, sequenceFinished, finished } = response;
  if (delta) return deltaFrom(delta);
  if (started) return startedFrom(started);
  if (sequenceFinished) return sequenceFinishedFrom(sequenceFinished);
  if (finished) return finishedFrom(finished);
  throw new ProtocolError("the server sent an event that this client does not know");
}

function startedFrom(message: Started__Output): Started {
  const { seed, queueTime, promptLogprobs, sequenceSeeds, ...same } = message;
  return {
    type: "started",
    ...same,
    seed: BigInt(seed),
    queueTimeMs: milliseconds(queueTime),
    promptLogprobs: promptLogprobs.map(logprobFrom),
    sequenceSeeds: sequenceSeeds.map(BigInt),
  };
}

function deltaFrom(message: Delta__Output): Delta {
  return {
    type: "delta",
    ...message,
    logprobs: message.logprobs.map(logprobFrom),
    steps: message.steps.map(({ drafter, draftTokens, acceptedDraftTokens }) => {
      return { drafter, draftTokens, acceptedDraftTokens };
    }),
  };
}

function logprobFrom({ tokenId, logprob, rank, alternatives }: TokenLogprob__Output): TokenLogprob {
  return { tokenId, logprob, rank, alternatives };
}

function sequenceFinishedFrom(message: SequenceFinished__Output): SequenceFinished {
  const name = String(message.finishReason).replace("FINISH_REASON_", "");
  const finishReason = FINISH_REASONS.find((known) => known === name);
  if (finishReason === undefined) throw new ProtocolError(`unknown finish reason ${name}`);
  const { sequenceIndex, matchedTokenId, matchedStopString } = message;
  return {
    type: "sequence_finished",
    ...{ sequenceIndex, finishReason, matchedTokenId, matchedStopString },
  };
}

function finishedFrom({ usage, speculation }: Finished__Output): Finished {
  if (!usage || !speculation?.total) throw new ProtocolError("finished without its counts");
  const tallies = Object.entries(speculation.byDrafter).map(([name, tally]) => {
    return [name, tallyFrom(tally)];
  });
  return {
    type: "finished",
    usage,
    speculation: { total: tallyFrom(speculation.total), byDrafter: Object.fromEntries(tallies) },
  };
}

function tallyFrom({ draftTime, verifyTime, ...same }: SpeculationTally__Output): DrafterTally {
  return { ...same, draftTimeMs: milliseconds(draftTime), verifyTimeMs: milliseconds(verifyTime) };
}
