/**
 * One call each: a unary one as a promise, a server stream as an async iterator.
 *
 * Invariant: however a call is left, it is over or cancelled, and nothing listens to its signals
 * any more.
 */
import type { ClientReadableStream, ClientUnaryCall, requestCallback } from "@grpc/grpc-js";

import { cancelled, errorFrom } from "./errors.js";

/** Runs a unary call. Rejects with CallFailed. */
export function unary<T>(
  invoke: (callback: requestCallback<T>) => ClientUnaryCall,
  signals: readonly AbortSignal[],
): Promise<T> {
  return new Promise((resolve, reject) => {
    throwIfAborted(signals);
    const call = invoke((error, response) => {
      unlink();
      if (error) reject(abortion(signals) ?? errorFrom(error));
      else resolve(response as T);
    });
    const unlink = onAbort(signals, () => call.cancel());
  });
}

/** Runs a server stream, from the first read on. Leaving the iteration cancels the call. */
export async function* messages<T>(
  start: () => ClientReadableStream<T>,
  signals: readonly AbortSignal[],
): AsyncGenerator<T, void, undefined> {
  throwIfAborted(signals);
  const call = start();
  const unlink = onAbort(signals, () => call.cancel());
  try {
    yield* iterated<T>(call, signals);
  } finally {
    unlink();
    call.cancel();
  }
}

async function* iterated<T>(
  call: ClientReadableStream<T>,
  signals: readonly AbortSignal[],
): AsyncGenerator<T, void, undefined> {
  try {
    for await (const message of call) yield message as T;
  } catch (error) {
    throw abortion(signals) ?? errorFrom(error as Parameters<typeof errorFrom>[0]);
  }
}

function onAbort(signals: readonly AbortSignal[], cancel: () => void): () => void {
  for (const signal of signals) signal.addEventListener("abort", cancel);
  return () => {
    for (const signal of signals) signal.removeEventListener("abort", cancel);
  };
}

function throwIfAborted(signals: readonly AbortSignal[]): void {
  const error = abortion(signals);
  if (error) throw error;
}

function abortion(signals: readonly AbortSignal[]): Error | undefined {
  const aborted = signals.find((signal) => signal.aborted);
  return aborted && cancelled(aborted.reason);
}
