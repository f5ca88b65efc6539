/** The order of events: what the protocol promises passes, everything else is a ProtocolError. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { eventFrom } from "../src/events.js";
import type { StreamEvent } from "../src/events.js";
import { Order, completionFrom } from "../src/order.js";

const EVENTS = {
  started: { type: "started" },
  delta: { type: "delta", sequenceIndex: 0, text: "a" },
  delta1: { type: "delta", sequenceIndex: 1, text: "b" },
  end: { type: "sequence_finished", sequenceIndex: 0, finishReason: "EOS_TOKEN" },
  end1: { type: "sequence_finished", sequenceIndex: 1, finishReason: "MAX_TOKENS" },
  finished: { type: "finished" },
} as unknown as Record<string, StreamEvent>;

function play(names: string): StreamEvent[] {
  const order = new Order(names.includes("1") ? 2 : 1);
  const events = names.split(" ").map((name) => EVENTS[name]!);
  for (const event of events) order.check(event);
  order.checkEnd();
  return events;
}

const GOOD = [
  "started end finished",
  "started delta delta end finished",
  "started delta delta1 delta end1 delta end finished",
];
for (const names of GOOD) {
  test(`legal: ${names}`, () => {
    play(names);
  });
}

const BAD: [names: string, message: RegExp][] = [
  ["delta", /begins with one started/],
  ["finished", /begins with one started/],
  ["started started", /begins with one started/],
  ["started delta end delta", /sequence 0 after its end/],
  ["started end end", /sequence 0 after its end/],
  ["started delta finished", /before the end of every sequence/],
  ["started finished", /before the end of every sequence/],
  ["started delta delta1 end finished", /before the end of every sequence/],
  ["started delta delta1 end1 finished", /before the end of every sequence/],
  ["started end finished delta", /delta after finished/],
  ["started end finished finished", /finished after finished/],
  ["started", /ended without finished/],
  ["started delta end", /ended without finished/],
];
for (const [names, message] of BAD) {
  test(`illegal: ${names}`, () => {
    assert.throws(() => play(names), { name: "ProtocolError", message });
  });
}

test("a sequence more than was asked for is refused", () => {
  const order = new Order();
  order.check(EVENTS["started"]!);
  for (const name of ["delta1", "end1"]) {
    assert.throws(() => order.check(EVENTS[name]!), /sequence 1, where 1 were asked for/);
  }
});

test("an answer gathers each sequence, and is itself the first", () => {
  const answer = completionFrom(play("started delta1 delta delta1 end1 delta end finished"));
  assert.deepEqual(
    answer.sequences.map((sequence) => [sequence.text, sequence.finishReason]),
    [
      ["aa", "EOS_TOKEN"],
      ["bb", "MAX_TOKENS"],
    ],
  );
  assert.deepEqual([answer.text, answer.finishReason], ["aa", "EOS_TOKEN"]);
});

test("log probabilities keep what they have, and nothing is made of what is not there", () => {
  const alternatives = [{ tokenId: 0, logprob: -1.5 }];
  const entry = { tokenId: 7, logprob: 0, rank: 1, alternatives };
  const first = { tokenId: 5, alternatives: [] };
  const started = {
    ...{ requestId: "r", model: "m", promptTokens: 2, cachedPromptTokens: 0, seed: "3" },
    ...{ queueTime: null, arithmeticFingerprint: "", promptLogprobs: [first, entry] },
    sequenceSeeds: ["3", "18446744073709551615"],
  };
  const event = eventFrom({ started });
  assert.equal(event.type, "started");
  const none = { logprob: undefined, rank: undefined };
  assert.deepEqual(event.promptLogprobs, [{ ...first, ...none }, entry]);
  assert.deepEqual(event.sequenceSeeds, [3n, 2n ** 64n - 1n]);
});

test("an event of a newer protocol and an unknown reason are refused", () => {
  assert.throws(() => eventFrom({}), /does not know/);
  const sequenceFinished = { sequenceIndex: 0, finishReason: 77 as never };
  assert.throws(() => eventFrom({ sequenceFinished }), /unknown finish reason 77/);
});
