/** Calls against a server on a real socket: what they tell, how they end, what a retry does. */
import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import { status } from "@grpc/grpc-js";

import * as api from "../src/index.js";
import { ASK, HEL, LO, QUEUE_FULL, Refusal, STARTED, WHOLE, serving } from "./server.js";

const REFUSED = new Refusal(status.RESOURCE_EXHAUSTED, QUEUE_FULL, 50);

async function all(events: AsyncIterable<api.StreamEvent>): Promise<api.StreamEvent[]> {
  const found = [];
  for await (const event of events) found.push(event);
  return found;
}

test("a stream tells everything that the messages hold", async () => {
  await serving(WHOLE, async (client) => {
    const [started, hel, lo, stopped, finished, ...more] = await all(client.stream(ASK));
    assert.deepEqual(more, []);
    assert.deepEqual(started, {
      type: "started",
      requestId: "r-1",
      model: "tiny",
      promptTokens: 2,
      cachedPromptTokens: 0,
      seed: 2n ** 64n - 1n,
      queueTimeMs: 1000.5,
      arithmeticFingerprint: "",
      promptLogprobs: [],
      sequenceSeeds: [],
    });
    const common = { type: "delta", sequenceIndex: 0, logprobs: [] };
    const drafted = { drafter: "ngram", draftTokens: 3, acceptedDraftTokens: 1 };
    const plain = { drafter: undefined, draftTokens: 0, acceptedDraftTokens: 0 };
    assert.deepEqual(hel, {
      ...{ ...common, text: "Hel", tokenIds: [0, 7] },
      ...{ completionTokens: 2, steps: [drafted] },
    });
    assert.deepEqual(lo, {
      ...{ ...common, text: "lo", tokenIds: [9] },
      ...{ completionTokens: 3, steps: [plain] },
    });
    assert.deepEqual(stopped, {
      ...{ type: "sequence_finished", sequenceIndex: 0, finishReason: "EOS_TOKEN" },
      ...{ matchedTokenId: 0, matchedStopString: undefined },
    });
    assert.equal(finished?.type, "finished");
    assert.deepEqual(finished.usage, {
      ...{ promptTokens: 2, cachedPromptTokens: 0, completionTokens: 3 },
    });
    const { total, byDrafter } = finished.speculation;
    assert.deepEqual([total.acceptedLengthHistogram, total.verifyTimeMs], [[1, 1], 2]);
    assert.equal(byDrafter["ngram"]?.draftTokens, 3);
  });
});

test("generate gathers the answer", async () => {
  await serving(WHOLE, async (client) => {
    const answer = await client.generate(ASK);
    assert.deepEqual([answer.text, answer.tokenIds], ["Hello", [0, 7, 9]]);
    assert.deepEqual([answer.seed, answer.requestId], [2n ** 64n - 1n, "r-1"]);
    assert.deepEqual([answer.finishReason, answer.matchedTokenId], ["EOS_TOKEN", 0]);
    assert.equal(answer.sequences.length, 1);
    await assert.rejects(client.generate({ ...ASK, numSequences: 2 }), {
      name: "ProtocolError",
    });
  });
});

test("metadata goes with every call, over a local socket too", async () => {
  const folder = mkdtempSync(join(tmpdir(), "specd-node-"));
  const metadata = { "x-request-id": "a", "x-bin": Buffer.of(0, 255) };
  const options = { address: `unix:${folder}/s`, metadata };
  try {
    await serving(
      WHOLE,
      async (client, scripted) => {
        await client.generate(ASK);
        assert.deepEqual(scripted.metadata.get("x-request-id"), ["a"]);
        assert.deepEqual(scripted.metadata.get("x-bin"), [Buffer.of(0, 255)]);
      },
      options,
    );
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test("leaving the loop by break or throw cancels the call", async () => {
  for (const leave of ["break", "throw"]) {
    await serving([STARTED, HEL, "hang"], async (client, scripted) => {
      const stream = client.stream(ASK);
      try {
        for await (const event of stream) {
          if (event.type !== "delta") continue;
          if (leave === "throw") throw new EvalError("mine");
          break;
        }
      } catch (error) {
        assert.ok(error instanceof EvalError);
      }
      assert.equal(await scripted.cancelled, "cancelled");
      assert.deepEqual(await stream.next(), { done: true, value: undefined });
    });
  }
});

test("cancel wakes a waiting reader with CallCancelled", async () => {
  await serving([STARTED, "hang"], async (client, scripted) => {
    const stream = client.stream(ASK);
    assert.equal((await stream.next()).value?.type, "started");
    const waiting = stream.next();
    stream.cancel();
    await assert.rejects(waiting, api.CallCancelled);
    await scripted.cancelled;
    stream.cancel();
  });
});

test("a signal cancels the call and is the cause of the error", async () => {
  await serving([STARTED, "hang"], async (client, scripted) => {
    const controller = new AbortController();
    const stream = client.stream(ASK, { signal: controller.signal });
    await stream.next();
    const waiting = stream.next();
    controller.abort("enough");
    await assert.rejects(waiting, { name: "CallCancelled", code: "CANCELLED", cause: "enough" });
    await scripted.cancelled;
    await assert.rejects(client.generate(ASK, { signal: controller.signal }), api.CallCancelled);
    await assert.rejects(client.abort("live", { signal: controller.signal }), api.CallCancelled);
    assert.equal(scripted.arrivalsMs.length, 1, "an aborted signal lets no call out");
  });
});

test("nothing listens to a signal once its call is over", async () => {
  await serving(WHOLE, async (client) => {
    const { signal } = new AbortController();
    await client.generate(ASK, { signal });
    await client.abort("live", { signal });
    for await (const event of client.stream(ASK, { signal })) if (event.type === "delta") break;
    assert.deepEqual(getEventListeners(signal, "abort"), []);
  });
});

test("closing the client cancels its calls, and it takes no more", async () => {
  await serving([STARTED, "hang"], async (client, scripted) => {
    const stream = client.stream(ASK);
    await stream.next();
    const waiting = stream.next();
    client.close();
    await assert.rejects(waiting, api.CallCancelled);
    await scripted.cancelled;
    await assert.rejects(client.generate(ASK), api.CallCancelled);
    await assert.rejects(client.abort("live"), api.CallCancelled);
  });
});

test("a deadline is a deadline", async () => {
  await serving([STARTED, HEL, "hang"], async (client, scripted) => {
    await assert.rejects(client.generate(ASK, { timeoutMs: 100 }), api.DeadlineExceeded);
    await scripted.cancelled;
    await assert.rejects(client.generate(ASK, { timeoutMs: 0 }), api.DeadlineExceeded);
    for (const timeoutMs of [-1, NaN]) {
      await assert.rejects(client.generate(ASK, { timeoutMs }), RangeError);
    }
  });
});

test("a failure after output comes behind the output, with its details", async () => {
  const failure = new Refusal(status.INTERNAL, QUEUE_FULL);
  await serving([STARTED, HEL, LO, failure], async (client) => {
    const seen: string[] = [];
    const reading = (async () => {
      for await (const event of client.stream(ASK)) seen.push(event.type);
    })();
    await assert.rejects(reading, { name: "InternalError", reason: "QUEUE_FULL", message: "no" });
    assert.deepEqual(seen, ["started", "delta", "delta"]);
  });
});

test("a stream that ends without finished is a ProtocolError", async () => {
  for (const script of [[], [STARTED], [STARTED, HEL]]) {
    await serving(script, async (client) => {
      const message = "the stream ended without finished";
      await assert.rejects(all(client.stream(ASK)), { name: "ProtocolError", message });
    });
  }
});

test("an event out of order is a ProtocolError and cancels the call", async () => {
  await serving([HEL, "hang"], async (client, scripted) => {
    await assert.rejects(client.generate(ASK), api.ProtocolError);
    await scripted.cancelled;
  });
});

test("refused calls are tried again when the server says so", async () => {
  await serving(WHOLE, async (client, scripted) => {
    scripted.refusals.push(REFUSED, new Refusal(status.UNAVAILABLE, QUEUE_FULL, 400));
    assert.equal((await client.generate(ASK)).text, "Hello");
    const [first, second, third] = scripted.arrivalsMs as [number, number, number];
    assert.ok(second - first >= 49, `pushed back by 50 ms, came after ${second - first}`);
    assert.ok(third - second >= 399, `pushed back by 400 ms, came after ${third - second}`);
  });
});

test("a server that pushes back for ever is not tried again", async () => {
  await serving(WHOLE, async (client, scripted) => {
    scripted.refusals.push(new Refusal(status.UNAVAILABLE, QUEUE_FULL, -1));
    await assert.rejects(client.generate(ASK), api.NotReady);
    assert.equal(scripted.arrivalsMs.length, 1);
  });
});

test("without retries the first refusal is told", async () => {
  await serving(
    WHOLE,
    async (client, scripted) => {
      scripted.refusals.push(REFUSED);
      await assert.rejects(client.generate(ASK), {
        ...{ name: "Overloaded", code: "RESOURCE_EXHAUSTED", reason: "QUEUE_FULL" },
        ...{ retryAfterMs: 1250, message: "no" },
      });
      assert.equal(scripted.arrivalsMs.length, 1);
    },
    { retries: false },
  );
});

test("a bad request is not tried again", async () => {
  await serving(WHOLE, async (client, scripted) => {
    scripted.refusals.push(new Refusal(status.INVALID_ARGUMENT));
    await assert.rejects(client.generate(ASK), api.InvalidRequest);
    assert.equal(scripted.arrivalsMs.length, 1);
  });
});

test("where nobody listens a call is NotReady", async () => {
  const client = new api.Client(`unix:${tmpdir()}/nobody-listens-here`, { retries: false });
  await assert.rejects(client.generate(ASK), api.NotReady);
  client.close();
});

test("a deadline beyond the longest timer is none", async () => {
  await serving(WHOLE, async (client) => {
    for (const timeoutMs of [2 ** 31, 1e15, Infinity]) {
      assert.equal((await client.generate(ASK, { timeoutMs })).text, "Hello");
      assert.equal((await client.model("", { timeoutMs })).name, "tiny");
    }
    assert.deepEqual(await client.drain({ timeoutMs: 1e15 }), { finished: 3, aborted: 0 });
    const watch = () => client.watchServerInfo({ intervalMs: 1e18 });
    assert.throws(watch, /RangeError: intervalMs: is between 0 and 315576000000000/);
  });
});

test("any number of calls at a time is no leak, and one signal cancels them all", async () => {
  const warnings: Error[] = [];
  const warned = (warning: Error) => warnings.push(warning);
  process.on("warning", warned);
  await serving([STARTED, "hang"], async (client) => {
    const controller = new AbortController();
    const streams = Array.from({ length: 12 }, () => {
      return client.stream(ASK, { signal: controller.signal });
    });
    await Promise.all(streams.map((stream) => stream.next()));
    const waiting = streams.map((stream) => assert.rejects(stream.next(), api.CallCancelled));
    controller.abort();
    await Promise.all(waiting);
    assert.deepEqual(getEventListeners(controller.signal, "abort"), []);
  });
  process.off("warning", warned);
  assert.deepEqual(warnings, []);
});

test("drain on a server without it names the admin address", async () => {
  const unimplemented = new Refusal(status.UNIMPLEMENTED);
  await serving(WHOLE, async (client, scripted) => {
    scripted.drainRefusal = unimplemented;
    const message = "no (drain is for the server's admin address)";
    await assert.rejects(client.drain(), { name: "Unsupported", message });
  });
});

test("the other calls", async () => {
  await serving(WHOLE, async (client, scripted) => {
    assert.deepEqual([await client.abort("live"), await client.abort("dead")], [true, false]);
    assert.equal((await client.model()).name, "tiny");
    assert.deepEqual((await client.model("other")).defaultSampling, {
      ...{ logitBias: {}, temperature: 0.5 },
    });
    assert.deepEqual(await client.drain(), { finished: 3, aborted: 0 });
    assert.deepEqual(await client.drain({ timeoutMs: 2000 }), { finished: 3, aborted: 2 });
    const steps = [];
    for await (const { counters } of client.watchServerInfo({ intervalMs: 100 })) {
      if (steps.push(counters.steps) === 2) break;
    }
    assert.deepEqual(steps, [1, 2]);
    assert.equal(scripted.arrivalsMs.length, 0);
  });
});

test("unknown options are refused wherever they are given", async () => {
  const made = (options: object) => () => new api.Client("localhost:1", options);
  assert.throws(made({ retry: false }), /client: unknown option retry/);
  assert.throws(made({ retries: 3 }), /retries: takes a boolean, not 3/);
  const client = new api.Client("localhost:1");
  const wrong = { timeout: 3 } as object;
  assert.throws(() => client.stream(ASK, wrong), /call: unknown option timeout/);
  assert.throws(() => client.watchServerInfo(wrong), /watchServerInfo: unknown option timeout/);
  await assert.rejects(client.drain(wrong), /drain: unknown option timeout/);
  await assert.rejects(client.tokenize({ ...ASK, ...{ seed: 1 } }), /prompt: unknown option seed/);
  await assert.rejects(client.detokenize([-1]), /tokenIds\[0\]: is between/);
  client.close();
});
