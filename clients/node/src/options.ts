/**
 * What a program may ask for: types alone.
 *
 * Names are those of the wire contract in camel case, but: `returnText`, `returnTokenIds` and
 * `returnSteps` choose what deltas carry; `speculation: false` decodes plainly; `draftBudgetMs` is in
 * milliseconds; `prediction` is text or token ids; `jsonSchema` is JSON text or what becomes it.
 */

/** A value that JSON can hold. */
export type Json = null | boolean | number | string | readonly Json[] | JsonObject;

/** A JSON object. */
export type JsonObject = { readonly [key: string]: Json };

/** One message of a conversation. role: "system", "user", "assistant" or "tool". */
export interface ChatMessage {
  readonly role: string;
  readonly content: string;
}

/** A prompt: exactly one of text, token ids and messages. */
export type Prompt =
  | { readonly text: string; readonly tokenIds?: undefined; readonly messages?: undefined }
  | {
      readonly tokenIds: Iterable<number>;
      readonly text?: undefined;
      readonly messages?: undefined;
    }
  | {
      readonly messages: readonly ChatMessage[];
      readonly text?: undefined;
      readonly tokenIds?: undefined;
    };

/** Which logits a log probability is taken from. */
export type LogprobBasis = "RAW" | "PROCESSED";

/** Options of a generation. Leaving one out, or undefined, takes the server's default. */
export interface Options {
  readonly requestId?: string | undefined;
  readonly model?: string | undefined;
  readonly priority?: number | undefined;
  readonly tenant?: string | undefined;
  readonly addSpecialTokens?: boolean | undefined;
  readonly tools?: readonly JsonObject[] | undefined;
  readonly templateArguments?: JsonObject | undefined;
  readonly temperature?: number | undefined;
  readonly topP?: number | undefined;
  readonly topK?: number | undefined;
  readonly minP?: number | undefined;
  readonly repetitionPenalty?: number | undefined;
  readonly presencePenalty?: number | undefined;
  readonly frequencyPenalty?: number | undefined;
  readonly logitBias?: ReadonlyMap<number, number> | Readonly<Record<number, number>> | undefined;
  /** 0 to 2^64 - 1; a number only up to 2^53. */
  readonly seed?: bigint | number | undefined;
  readonly numSequences?: number | undefined;
  readonly maxNewTokens?: number | undefined;
  readonly minNewTokens?: number | undefined;
  readonly stopStrings?: readonly string[] | undefined;
  readonly stopTokenIds?: Iterable<number> | undefined;
  readonly ignoreEos?: boolean | undefined;
  readonly includeStopString?: boolean | undefined;
  readonly returnText?: boolean | undefined;
  readonly returnTokenIds?: boolean | undefined;
  readonly returnSteps?: boolean | undefined;
  readonly topLogprobs?: number | undefined;
  readonly promptLogprobs?: number | undefined;
  readonly logprobBasis?: LogprobBasis | undefined;
  readonly skipSpecialTokens?: boolean | undefined;
  readonly speculation?: boolean | undefined;
  readonly drafters?: readonly string[] | undefined;
  readonly maxDraftTokens?: number | undefined;
  readonly draftBudgetMs?: number | undefined;
  readonly prediction?: string | Iterable<number> | undefined;
  /** At most one of jsonSchema, regex, grammar and choice. */
  readonly jsonSchema?: string | JsonObject | undefined;
  readonly regex?: string | undefined;
  readonly grammar?: string | undefined;
  readonly choice?: readonly string[] | undefined;
}

/** A prompt and its options in one object. */
export type GenerationRequest = Prompt & Options;

/** How one call runs. */
export interface CallOptions {
  /** Cancels the call. */
  readonly signal?: AbortSignal | undefined;
  /** The deadline of the whole call, retries included. More than 2^31 - 1 is none. */
  readonly timeoutMs?: number | undefined;
}
