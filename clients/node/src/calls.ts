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

/** Waits. Rejects with CallCancelled where a signal ends it early. */
export async function pause(milliseconds: number, signals: readonly AbortSignal[]): Promise<void> {
  throwIfAborted(signals);
  await new Promise<void>((resolve) => {
    const end = () => {
      clearTimeout(timer);
      unlink();
      resolve();
    };
    const timer = setTimeout(end, milliseconds);
    const unlink = onAbort(signals, end);
  });
  throwIfAborted(signals);
}

// What to cancel with each signal. A signal has one listener for all, since a program may have any
// number of calls and Node takes more than ten listeners for a leak.
const followers = new WeakMap<AbortSignal, Set<() => void>>();

function onAbort(signals: readonly AbortSignal[], cancel: () => void): () => void {
  for (const signal of signals) {
    const following = followers.get(signal) ?? new Set();
    followers.set(signal, following.add(cancel));
    signal.addEventListener("abort", cancelFollowers);
  }
  return () => {
    for (const signal of signals) {
      const following = followers.get(signal);
      following?.delete(cancel);
      if (following?.size === 0) signal.removeEventListener("abort", cancelFollowers);
    }
  };
}

function cancelFollowers(event: Event): void {
  for (const cancel of followers.get(event.target as AbortSignal) ?? []) cancel();
}

function throwIfAborted(signals: readonly AbortSignal[]): void {
  const error = abortion(signals);
  if (error) throw error;
}

function abortion(signals: readonly AbortSignal[]): Error | undefined {
  const aborted = signals.find((signal) => signal.aborted);
  return aborted && cancelled(aborted.reason);
}
