/**
 * Waiting for a server that is starting, over grpc.health.v1.
 *
 * Knows which failures pass by themselves; does not know how a call is made.
 *
 * Invariant: a wait ends with SERVING, with an error that waiting cannot cure, or at its time limit,
 * and leaves no call and no timer.
 */
import { pause } from "./calls.js";
import { CallFailed, DeadlineExceeded, NotReady } from "./errors.js";

/** The service whose state is the server's. */
export const SERVICE = "specd.v1.GenerationService";

// Between a watch that broke and the next one.
const PAUSE_MS = 100;
const STATUSES = ["UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"];

/** Begins a watch that lasts as long as given. */
export type Watch = (leftMs: number) => AsyncIterable<{ readonly status: number }>;

/** Returns when the server serves. Rejects with CallFailed. */
export async function ready(
  watch: Watch,
  limitMs: number,
  signals: readonly AbortSignal[],
): Promise<void> {
  const end = performance.now() + limitMs;
  let last = "nobody answers";
  for (;;) {
    const leftMs = end - performance.now();
    if (leftMs <= 0) throw tooLate(limitMs, last);
    try {
      for await (const { status } of watch(leftMs)) {
        last = STATUSES[status] ?? `status ${status}`;
        if (last === "SERVING") return;
      }
    } catch (error) {
      if (error instanceof DeadlineExceeded) throw tooLate(limitMs, last);
      if (!(error instanceof NotReady)) throw error;
    }
    await pause(PAUSE_MS, signals);
  }
}

function tooLate(limitMs: number, last: string): CallFailed {
  return new DeadlineExceeded("DEADLINE_EXCEEDED", `not ready within ${limitMs} ms: ${last}`);
}
