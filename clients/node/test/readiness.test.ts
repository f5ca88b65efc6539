/** Waiting for a server: for one that starts, restarts or never comes, and what is left behind. */
import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import { status } from "@grpc/grpc-js";

import * as api from "../src/index.js";
import { Refusal, WHOLE, serving } from "./server.js";

const PATIENCE = { timeoutMs: 30_000 };
const SERVING = 1;
const NOT_SERVING = 2;

test("waiting ends when the server serves, and its watch with it", async () => {
  await serving(WHOLE, async (client, scripted) => {
    scripted.health = [NOT_SERVING];
    let over = false;
    const waiting = client.waitReady(PATIENCE).then(() => (over = true));
    await scripted.watched;
    const [watch] = scripted.watches;
    assert.equal(watch!.request.service, "specd.v1.GenerationService");
    assert.equal(over, false);
    watch!.write({ status: SERVING });
    await waiting;
    await scripted.cancelled;
  });
});

test("a server that never serves is told with its last state", async () => {
  await serving(WHOLE, async (client, scripted) => {
    scripted.health = [NOT_SERVING];
    const message = "not ready within 200 ms: NOT_SERVING";
    await assert.rejects(client.waitReady({ timeoutMs: 200 }), {
      ...{ name: "DeadlineExceeded", message },
    });
    await scripted.cancelled;
  });
});

test("an address where nobody answers is told as such", async () => {
  const client = new api.Client(`unix:${tmpdir()}/nobody-listens-here`);
  const waiting = client.waitReady({ timeoutMs: 200 });
  await assert.rejects(waiting, { name: "DeadlineExceeded", message: /200 ms: nobody answers/ });
  client.close();
});

test("a server may come later than its client", async () => {
  const folder = mkdtempSync(join(tmpdir(), "specd-"));
  const address = `unix:${folder}/specd.sock`;
  const early = new api.Client(address);
  await assert.rejects(early.waitReady({ timeoutMs: 50 }), api.DeadlineExceeded);
  const waiting = early.waitReady(PATIENCE);
  try {
    await serving(
      WHOLE,
      async (_, scripted) => {
        scripted.health = [SERVING];
        await waiting;
      },
      { address },
    );
  } finally {
    early.close();
    rmSync(folder, { recursive: true });
  }
});

test("a watch that breaks is begun again", async () => {
  await serving(WHOLE, async (client, scripted) => {
    scripted.refusals.push(new Refusal(status.UNAVAILABLE), new Refusal(status.UNAVAILABLE));
    scripted.health = [SERVING];
    await client.waitReady(PATIENCE);
    assert.equal(scripted.watches.length, 3);
  });
});

test("a server without health checks is no matter of time", async () => {
  await serving(WHOLE, async (client, scripted) => {
    scripted.health = null;
    await assert.rejects(client.waitReady(PATIENCE), api.Unsupported);
  });
});

test("a signal ends the wait, also between two watches, and keeps no listener", async () => {
  const client = new api.Client(`unix:${tmpdir()}/nobody-listens-here`);
  const controller = new AbortController();
  const waiting = client.waitReady({ ...PATIENCE, signal: controller.signal });
  setTimeout(() => controller.abort("enough"), 50);
  await assert.rejects(waiting, { name: "CallCancelled", cause: "enough" });
  assert.deepEqual(getEventListeners(controller.signal, "abort"), []);
  client.close();
});

test("closing the client ends the wait", async () => {
  const client = new api.Client(`unix:${tmpdir()}/nobody-listens-here`);
  const waiting = client.waitReady();
  client.close();
  await assert.rejects(waiting, api.CallCancelled);
});

test("an unknown option of a wait is refused", async () => {
  const client = new api.Client("localhost:1");
  const wrong = { timeout: 3 } as object;
  await assert.rejects(client.waitReady(wrong), /call: unknown option timeout/);
  await assert.rejects(client.waitReady({ timeoutMs: -1 }), /timeoutMs: is between 0/);
  client.close();
});
