/** What a driver saw, as the protocol of drivers tells it (clients/conformance/README.md). */
import type {
  CallFailed,
  Completion,
  Delta,
  Finished,
  GeneratedSequence,
  SequenceFinished,
  Started,
  StreamEvent,
  TokenLogprob,
} from "specd-client";

export type Json = Record<string, unknown>;

/** An error. */
export function errorSeen(error: CallFailed): Json {
  return {
    kind: error.name,
    code: error.code,
    reason: error.reason,
    message: error.message,
    metadata: error.metadata,
    field_violations: error.fieldViolations,
    retry_after_ms: error.retryAfterMs ?? null,
    resource: error.resource ?? null,
  };
}

function logprobSeen({ tokenId, logprob, rank, alternatives }: TokenLogprob): Json {
  return {
    token_id: tokenId,
    logprob: logprob ?? null,
    rank: rank ?? null,
    alternatives: alternatives.map((other) => {
      return { token_id: other.tokenId, logprob: other.logprob };
    }),
  };
}

/** A sequence, from events or whole. */
export function sequenceSeen(
  deltas: readonly (Delta | GeneratedSequence)[],
  end: SequenceFinished | GeneratedSequence,
): Json {
  return {
    text: deltas.map((delta) => delta.text).join(""),
    token_ids: deltas.flatMap((delta) => delta.tokenIds),
    logprobs: deltas.flatMap((delta) => delta.logprobs).map(logprobSeen),
    steps: deltas.flatMap((delta) => delta.steps).map((step) => {
      return {
        drafter: step.drafter ?? null,
        draft_tokens: step.draftTokens,
        accepted_draft_tokens: step.acceptedDraftTokens,
      };
    }),
    finish_reason: end.finishReason,
    matched_token_id: end.matchedTokenId ?? null,
    matched_stop_string: end.matchedStopString ?? null,
  };
}

/** An answer, from events or from a completion. */
export function answerSeen(
  started: Started,
  [first, ...others]: readonly Json[],
  finished: Finished | Completion,
): Json {
  const { total } = finished.speculation;
  return {
    request_id: started.requestId,
    model: started.model,
    prompt_tokens: started.promptTokens,
    seed: started.seed.toString(),
    arithmetic_fingerprint: started.arithmeticFingerprint,
    sequence_seeds: started.sequenceSeeds.map(String),
    prompt_logprobs: started.promptLogprobs.map(logprobSeen),
    ...first,
    others,
    completion_tokens: finished.usage.completionTokens,
    verify_steps: total.verifySteps,
    draft_tokens: total.draftTokens,
    accepted_draft_tokens: total.acceptedDraftTokens,
    accepted_length_histogram: total.acceptedLengthHistogram,
  };
}

/** The types of events, a run of deltas once. */
export function orderSeen(events: readonly StreamEvent[]): string[] {
  const types = events.map((event) => event.type);
  return types.filter((type, at) => type !== "delta" || types[at - 1] !== "delta");
}
