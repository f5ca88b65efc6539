/** The order of events: what the protocol promises passes, everything else is a ProtocolError. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { ProtocolError } from "../src/errors.js";
import { eventFrom } from "../src/events.js";
import type { StreamEvent } from "../src/events.js";
import { Order, completionFrom } from "../src/order.js";

const EVENTS = {
  started: { type: "started" },
  delta: { type: "delta", sequenceIndex: 0, text: "a" },
  delta1: { type: "delta", sequenceIndex: 1, text: "b" },
  end: { type: "sequence_finished", sequenceIndex: 0 },
  end1: { type: "sequence_finished", sequenceIndex: 1 },
  finished: { type: "finished" },
} as unknown as Record<string, StreamEvent>;

function play(names: string): StreamEvent[] {
  const order = new Order();
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

test("an answer of two sequences is no answer of one", () => {
  const events = play("started delta delta1 end end1 finished");
  assert.throws(() => completionFrom(events), ProtocolError);
});

test("an event of a newer protocol and an unknown reason are refused", () => {
  assert.throws(() => eventFrom({}), /does not know/);
  const sequenceFinished = { sequenceIndex: 0, finishReason: 77 as never };
  assert.throws(() => eventFrom({ sequenceFinished }), /unknown finish reason 77/);
});
