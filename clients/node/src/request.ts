/**
 * Options -> StreamGenerateRequest.
 *
 * Knows which option fills which field; knows no default and no rule: the server has these.
 *
 * Invariant: every option that is given reaches its field, and an unknown one is a TypeError.
 */
import * as check from "./checks.js";
import type { Check } from "./checks.js";
import type { ChatInput } from "./generated/specd/v1/ChatInput.js";
import type { Input } from "./generated/specd/v1/Input.js";
import type { OutputParams } from "./generated/specd/v1/OutputParams.js";
import type { SamplingParams } from "./generated/specd/v1/SamplingParams.js";
import type { SpeculationParams } from "./generated/specd/v1/SpeculationParams.js";
import type { StopParams } from "./generated/specd/v1/StopParams.js";
import type { StreamGenerateRequest } from "./generated/specd/v1/StreamGenerateRequest.js";
import type { StructureParams } from "./generated/specd/v1/StructureParams.js";
import { duration } from "./numbers.js";
import type { Options } from "./options.js";
import { structFrom } from "./struct.js";

interface Parts {
  input: Input;
  sampling: SamplingParams;
  stop: StopParams;
  output: OutputParams;
  speculation: SpeculationParams;
  structure: StructureParams;
}
type Put = (request: StreamGenerateRequest, name: string, value: unknown) => void;
type Basis = NonNullable<OutputParams["logprobBasis"]>;

const STRUCTURES = ["jsonSchema", "regex", "grammar", "choice"];
const ROLE_AND_CONTENT = ["role", "content"];
const BASES = new Map<unknown, Basis>([
  ["RAW", "LOGPROB_BASIS_RAW"],
  ["PROCESSED", "LOGPROB_BASIS_PROCESSED"],
]);

const PROMPTS = {
  text: part("input", "text", check.text),
  tokenIds: part("input", "tokens", ids),
  messages: part("input", "chat", (name, value) => {
    return { messages: check.listOf(message)(name, value) };
  }),
};
const OPTIONS: Readonly<Record<keyof Options, Put>> = {
  requestId: whole("requestId", check.text),
  model: whole("model", check.text),
  priority: whole("priority", check.int32),
  tenant: whole("tenant", check.text),
  addSpecialTokens: part("input", "addSpecialTokens", check.bool),
  tools: chat("tools", check.listOf(structFrom)),
  templateArguments: chat("templateArguments", structFrom),
  temperature: part("sampling", "temperature", check.float),
  topP: part("sampling", "topP", check.float),
  topK: part("sampling", "topK", check.uint32),
  minP: part("sampling", "minP", check.float),
  repetitionPenalty: part("sampling", "repetitionPenalty", check.float),
  presencePenalty: part("sampling", "presencePenalty", check.float),
  frequencyPenalty: part("sampling", "frequencyPenalty", check.float),
  logitBias: part("sampling", "logitBias", check.bias),
  seed: part("sampling", "seed", check.uint64),
  numSequences: part("sampling", "numSequences", check.uint32),
  maxNewTokens: part("stop", "maxNewTokens", check.uint32),
  minNewTokens: part("stop", "minNewTokens", check.uint32),
  stopStrings: part("stop", "stopStrings", check.listOf(check.text)),
  stopTokenIds: part("stop", "stopTokenIds", check.listOf(check.uint32)),
  ignoreEos: part("stop", "ignoreEos", check.bool),
  includeStopString: part("stop", "includeStopString", check.bool),
  returnText: part("output", "text", check.bool),
  returnTokenIds: part("output", "tokenIds", check.bool),
  returnSteps: part("output", "speculationSteps", check.bool),
  topLogprobs: part("output", "topLogprobs", check.uint32),
  promptLogprobs: part("output", "promptLogprobs", check.uint32),
  logprobBasis: part("output", "logprobBasis", basis),
  skipSpecialTokens: part("output", "skipSpecialTokens", check.bool),
  speculation: part("speculation", "mode", (name, value) =>
    check.bool(name, value) ? "SPECULATION_MODE_ENABLED" : "SPECULATION_MODE_DISABLED",
  ),
  drafters: part("speculation", "drafters", check.listOf(check.text)),
  maxDraftTokens: part("speculation", "maxDraftTokens", check.uint32),
  draftBudgetMs: part("speculation", "draftBudget", (name, value) =>
    duration(check.milliseconds(name, value)),
  ),
  prediction: part("speculation", "prediction", (name, value) =>
    typeof value === "string" ? { text: check.text(name, value) } : { tokens: ids(name, value) },
  ),
  jsonSchema: part("structure", "jsonSchema", check.json),
  regex: part("structure", "regex", check.text),
  grammar: part("structure", "grammar", check.text),
  choice: part("structure", "choice", (name, value) => {
    return { values: check.listOf(check.text)(name, value) };
  }),
};
const FIELDS = { ...PROMPTS, ...OPTIONS };

/**
 * Returns the request. `given` is what a program passed, whatever its type.
 *
 * Throws TypeError for an unknown option, a value of a wrong type or not exactly one prompt, and
 * RangeError for a number that its field cannot hold.
 */
export function requestFrom(given: unknown): StreamGenerateRequest {
  const set = Object.entries(check.object("request", given)).filter(([, value]) => value != null);
  const names = set.map(([name]) => name);
  const [prompt, ...more] = set.filter(([name]) => Object.hasOwn(PROMPTS, name));
  if (prompt === undefined || more.length > 0) {
    throw new TypeError(`give exactly one of ${Object.keys(PROMPTS).join(", ")}`);
  }
  if (STRUCTURES.filter((name) => names.includes(name)).length > 1) {
    throw new TypeError(`give at most one of ${STRUCTURES.join(", ")}`);
  }
  const request: StreamGenerateRequest = { input: {} };
  for (const [name, value] of [prompt, ...set.filter((entry) => entry !== prompt)]) {
    if (!Object.hasOwn(FIELDS, name)) throw new TypeError(`unknown option ${name}`);
    FIELDS[name as keyof typeof FIELDS](request, name, value);
  }
  return request;
}

/** An option that fills a field of the request itself. */
function whole<F extends keyof StreamGenerateRequest>(
  field: F,
  checked: Check<NonNullable<StreamGenerateRequest[F]>>,
): Put {
  return (request, name, value) => {
    request[field] = checked(name, value);
  };
}

/** An option that fills a field of a part of the request. */
function part<P extends keyof Parts, F extends keyof Parts[P]>(
  place: P,
  field: F,
  checked: Check<NonNullable<Parts[P][F]>>,
): Put {
  return (request, name, value) => {
    const filled: Parts[P] = (request[place] ?? {}) as Parts[P];
    filled[field] = checked(name, value);
    Object.assign(request, { [place]: filled });
  };
}

/** An option that goes with `messages`; with another form of prompt it has no place. */
function chat<F extends keyof ChatInput>(field: F, checked: Check<NonNullable<ChatInput[F]>>): Put {
  return (request, name, value) => {
    if (!request.input?.chat) throw new TypeError(`${name}: goes with messages only`);
    request.input.chat[field] = checked(name, value);
  };
}

function ids(name: string, value: unknown): { ids: number[] } {
  return { ids: check.listOf(check.uint32)(name, value) };
}

function basis(name: string, value: unknown): Basis {
  const found = BASES.get(value);
  if (found === undefined) throw new TypeError(`${name}: takes ${[...BASES.keys()].join(" or ")}`);
  return found;
}

function message(name: string, value: unknown): { role: string; content: string } {
  const { role, content } = check.object(name, value, ROLE_AND_CONTENT);
  return {
    role: check.text(`${name}.role`, role),
    content: check.text(`${name}.content`, content),
  };
}
