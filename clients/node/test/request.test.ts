/** Every option reaches its field on the wire, and what does not fit is refused by name. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { v1 } from "../src/protocol.js";
import { requestFrom } from "../src/request.js";

const { requestDeserialize, requestSerialize } = v1.GenerationService.service.StreamGenerate;

/** The request as a server reads it, from the bytes. */
function received(given: object): Record<string, unknown> {
  const message = requestDeserialize(requestSerialize(requestFrom({ text: "x", ...given })));
  return JSON.parse(JSON.stringify(message)) as Record<string, unknown>;
}

function at(message: unknown, path: string): unknown {
  const names = path.split(".");
  return names.reduce((part, name) => (part as Record<string, unknown>)[name], message);
}

const SCHEMA = '{"b":"\u00e9","a":[true,null,1.5]}';
const REACHED: [option: string, value: unknown, path: string, told?: unknown][] = [
  ["requestId", "mine", "requestId"],
  ["model", "tiny", "model"],
  ["priority", -3, "priority"],
  ["tenant", "me", "tenant"],
  ["addSpecialTokens", false, "input.addSpecialTokens"],
  ["temperature", 0, "sampling.temperature"],
  ["topP", 0.5, "sampling.topP"],
  ["topK", 0, "sampling.topK"],
  ["minP", 0.25, "sampling.minP"],
  ["repetitionPenalty", 1, "sampling.repetitionPenalty"],
  ["presencePenalty", -1.5, "sampling.presencePenalty"],
  ["frequencyPenalty", 2, "sampling.frequencyPenalty"],
  ["logitBias", { 7: -1.5 }, "sampling.logitBias", { 7: -1.5 }],
  ["logitBias", new Map([[4294967295, 2]]), "sampling.logitBias", { 4294967295: 2 }],
  ["seed", 7, "sampling.seed", "7"],
  ["seed", 2n ** 64n - 1n, "sampling.seed", "18446744073709551615"],
  ["seed", 2n ** 53n + 1n, "sampling.seed", "9007199254740993"],
  ["seed", 0n, "sampling.seed", "0"],
  ["numSequences", 1, "sampling.numSequences"],
  ["maxNewTokens", 4294967295, "stop.maxNewTokens"],
  ["minNewTokens", 0, "stop.minNewTokens"],
  ["stopStrings", ["\n", "\u{1f600}"], "stop.stopStrings"],
  ["stopTokenIds", new Set([3, 4]), "stop.stopTokenIds", [3, 4]],
  ["ignoreEos", true, "stop.ignoreEos"],
  ["includeStopString", false, "stop.includeStopString"],
  ["returnText", false, "output.text"],
  ["returnTokenIds", true, "output.tokenIds"],
  ["returnSteps", true, "output.speculationSteps"],
  ["logprobBasis", "RAW", "output.logprobBasis", "LOGPROB_BASIS_RAW"],
  ["logprobBasis", "PROCESSED", "output.logprobBasis", "LOGPROB_BASIS_PROCESSED"],
  ["topLogprobs", 0, "output.topLogprobs"],
  ["promptLogprobs", 5, "output.promptLogprobs"],
  ["skipSpecialTokens", false, "output.skipSpecialTokens"],
  ["speculation", true, "speculation.mode", "SPECULATION_MODE_ENABLED"],
  ["speculation", false, "speculation.mode", "SPECULATION_MODE_DISABLED"],
  ["drafters", ["ngram"], "speculation.drafters"],
  ["maxDraftTokens", 0, "speculation.maxDraftTokens"],
  ["draftBudgetMs", 1500.25, "speculation.draftBudget", { seconds: "1", nanos: 500_250_000 }],
  ["prediction", "text", "speculation.prediction.text"],
  ["prediction", [5, 6], "speculation.prediction.tokens.ids"],
  ["jsonSchema", " {}", "structure.jsonSchema"],
  ["jsonSchema", { b: "\u00e9", a: [true, null, 1.5] }, "structure.jsonSchema", SCHEMA],
  ["regex", "a+", "structure.regex"],
  ["grammar", "root", "structure.grammar"],
  ["choice", ["yes", "no"], "structure.choice.values"],
];

for (const [option, value, path, told = value] of REACHED) {
  test(`${option} ${String(value)} reaches ${path}`, () => {
    assert.deepEqual(at(received({ [option]: value }), path), told);
  });
}

test("what is left out or undefined sends nothing", () => {
  const options = Object.fromEntries(REACHED.map(([name]) => [name, undefined]));
  assert.deepEqual(requestFrom({ text: "x", ...options }), { input: { text: "x" } });
});

test("a prompt is text, token ids or messages", () => {
  const messages = [{ role: "user", content: "" }];
  assert.equal(at(received({}), "input.text"), "x");
  const ids = requestFrom({ tokenIds: new Uint32Array([0, 4294967295]) });
  assert.deepEqual(ids, { input: { tokens: { ids: [0, 4294967295] } } });
  assert.deepEqual(requestFrom({ messages }), { input: { chat: { messages } } });
});

test("tools and template arguments are sent as JSON values", () => {
  const value = { a: [null, true, 1.5, "s", { b: {} }] };
  const { chat } = requestFrom({ messages: [], tools: [value], templateArguments: value }).input!;
  const list = [
    { nullValue: "NULL_VALUE" },
    { boolValue: true },
    { numberValue: 1.5 },
    { stringValue: "s" },
    { structValue: { fields: { b: { structValue: { fields: {} } } } } },
  ];
  const struct = { fields: { a: { listValue: { values: list } } } };
  assert.deepEqual(chat, { messages: [], tools: [struct], templateArguments: struct });
});

const CIRCLE: Record<string, unknown> = {};
CIRCLE["a"] = CIRCLE;
const REFUSED: [given: object, kind: typeof TypeError | typeof RangeError, message: RegExp][] = [
  [{}, TypeError, /exactly one of text, tokenIds, messages/],
  [{ text: "x", tokenIds: [1] }, TypeError, /exactly one/],
  [{ text: "x", maxTokens: 3 }, TypeError, /unknown option maxTokens/],
  [{ text: "x", toString: 3 }, TypeError, /unknown option toString/],
  [{ text: "x", max_new_tokens: 3 }, TypeError, /unknown option max_new_tokens/],
  [{ text: 7 }, TypeError, /text: takes a string, not 7/],
  [{ text: "\ud83d" }, TypeError, /text: has half of a surrogate pair/],
  [{ tokenIds: "abc" }, TypeError, /tokenIds: takes a list/],
  [{ tokenIds: [1, -1] }, RangeError, /tokenIds\[1\]: is between 0 and 4294967295, not -1/],
  [{ messages: [{ role: "user", text: "Hi" }] }, TypeError, /messages\[0\]: unknown option text/],
  [{ messages: [{ role: "user" }] }, TypeError, /messages\[0\].content: takes a string/],
  [{ text: "x", topK: -1 }, RangeError, /topK: is between 0/],
  [{ text: "x", topK: 1.5 }, TypeError, /topK: takes an integer, not 1.5/],
  [{ text: "x", topK: "many" }, TypeError, /topK: takes an integer, not string/],
  [{ text: "x", maxNewTokens: 2 ** 32 }, RangeError, /maxNewTokens/],
  [{ text: "x", priority: 2 ** 31 }, RangeError, /priority/],
  [{ text: "x", temperature: "0.5" }, TypeError, /temperature: takes a number, not string/],
  [{ text: "x", seed: 2 ** 53 }, TypeError, /seed: takes a bigint or an integer up to 2\^53/],
  [{ text: "x", seed: 2n ** 64n }, RangeError, /seed/],
  [{ text: "x", seed: -1 }, RangeError, /seed/],
  [{ text: "x", ignoreEos: 1 }, TypeError, /ignoreEos: takes a boolean, not 1/],
  [{ text: "x", stopStrings: "stop" }, TypeError, /stopStrings: takes a list, not string/],
  [{ text: "x", logitBias: { a: 1 } }, TypeError, /logitBias key: takes an integer/],
  [{ text: "x", logprobBasis: "raw" }, TypeError, /logprobBasis: takes RAW or PROCESSED/],
  [{ text: "x", jsonSchema: true }, TypeError, /jsonSchema: takes an object, not boolean/],
  [{ text: "x", jsonSchema: { a: () => 1 } }, TypeError, /jsonSchema: JSON has no function as a is/],
  [{ text: "x", jsonSchema: { a: [NaN] } }, TypeError, /jsonSchema: JSON has no number as 0 is/],
  [{ text: "x", jsonSchema: CIRCLE }, TypeError, /jsonSchema: Converting circular structure/],
  [{ text: "x", draftBudgetMs: Infinity }, RangeError, /draftBudgetMs/],
  [{ text: "x", tools: [{}] }, TypeError, /tools: goes with messages only/],
  [{ messages: [], tools: [{ f: () => 1 }] }, TypeError, /tools\[0\].f: JSON has no function/],
  [{ text: "x", regex: "a", choice: ["a"] }, TypeError, /at most one of jsonSchema, regex/],
];

for (const [given, kind, message] of REFUSED) {
  test(`refused by name: ${message.source}`, () => {
    assert.throws(
      () => requestFrom(given),
      (error: Error) => error.constructor === kind && message.test(error.message),
    );
  });
}

function nested(depth: number, inLists: boolean): object {
  let value: unknown = 1;
  for (let level = 0; level < depth; level += 1) value = inLists ? [value] : { a: value };
  return { a: value };
}

const endless: Record<string, unknown> = {};
endless["a"] = [endless];

test("what is nested deeper than a parser goes is a RangeError", () => {
  const tooDeep = [nested(32, false), nested(48, true), { a: nested(47, true) }];
  for (const value of [...tooDeep, nested(5000, false), endless]) {
    const deep = { name: "RangeError", message: /^(tools|templateArguments).*: is nested deeper/ };
    assert.throws(() => requestFrom({ messages: [], templateArguments: value }), deep);
    assert.throws(() => requestFrom({ messages: [], tools: [value] }), deep);
  }
});

test("what a parser takes is sent", () => {
  // Level 98, 99 and 100 of the hundred that parsers take; the next object or list is one too many.
  for (const value of [nested(31, false), nested(47, true), { a: nested(46, true) }]) {
    const request = requestFrom({ messages: [], tools: [value], templateArguments: value });
    assert.ok(requestDeserialize(requestSerialize(request)));
  }
});
