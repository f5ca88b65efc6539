/**
 * The driver of the Node client: does one action of clients/conformance, tells what it saw.
 *
 * Knows the public API alone; judges nothing. The protocol is in clients/conformance/README.md.
 */
import { setTimeout as pause } from "node:timers/promises";
import { text as textOf } from "node:stream/consumers";

import { CallFailed, Client, Overloaded } from "specd-client";
import type {
  Finished,
  GenerationRequest,
  SequenceFinished,
  ServerCounters,
  Started,
  StreamEvent,
} from "specd-client";

import { answerSeen, errorSeen, orderSeen, sequenceSeen } from "./seen.js";
import type { Json } from "./seen.js";

interface Asked {
  prompt: Json;
  options: Json;
}
interface Job {
  address: string;
  admin_address: string;
  action: string;
  parameters: unknown;
}

const HELD = ["running", "waiting", "pagesUsed", "slotsUsed", "drafterSessions"] as const;
const PAUSE_MS = 10;

/** What a call of the client takes. */
function asked({ prompt, options }: Asked): GenerationRequest {
  const named = Object.entries({ ...prompt, ...options }).map(([name, value]) => {
    return [camel(name), name === "seed" ? BigInt(value as string) : value];
  });
  return Object.fromEntries(named) as GenerationRequest;
}

function camel(name: string): string {
  return name.replace(/_(.)/g, (_, letter: string) => letter.toUpperCase());
}

function snake(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

async function stream(client: Client, parameters: Asked): Promise<Json> {
  const events = await rest(client.stream(asked(parameters)));
  const deltas = events.filter((event) => event.type === "delta");
  const ends = events.filter((event) => event.type === "sequence_finished");
  const sequences = ends.toSorted((one, other) => one.sequenceIndex - other.sequenceIndex);
  const seen = sequences.map((end) => {
    return sequenceSeen(deltas.filter((delta) => delta.sequenceIndex === end.sequenceIndex), end);
  });
  return {
    order: orderSeen(events),
    last_completion_tokens: deltas.at(-1)?.completionTokens,
    answer: answerSeen(events[0] as Started, seen, events.at(-1) as Finished),
  };
}

async function generate(client: Client, parameters: Asked): Promise<Json> {
  const answer = await client.generate(asked(parameters));
  const sequences = answer.sequences.map((sequence) => sequenceSeen([sequence], sequence));
  return { answer: answerSeen(answer.started, sequences, answer) };
}

async function cancel(
  client: Client,
  parameters: Asked & { how: string; within_ms: number },
): Promise<Json> {
  const events = client.stream(asked(parameters));
  let error: Json | null = null;
  if (parameters.how === "leave") {
    for await (const event of events) if (event.type === "delta") break;
  } else {
    await toFirstDelta(events);
    events.cancel();
    error = errorSeen(await failureOf(rest(events)));
  }
  return { error, held: await held(client, parameters.within_ms) };
}

async function deadline(
  client: Client,
  parameters: Asked & { timeout_ms: number; within_ms: number },
): Promise<Json> {
  const began = performance.now();
  const options = { timeoutMs: parameters.timeout_ms };
  const error = await failureOf(rest(client.stream(asked(parameters), options)));
  return {
    error: errorSeen(error),
    elapsed_ms: millisecondsSince(began),
    held: await held(client, parameters.within_ms),
  };
}

async function overload(
  client: Client,
  { prompt, options, holding }: Asked & { holding: Json },
  { address }: Job,
): Promise<Json> {
  const [running, waiting] = [holding, holding].map((held) => {
    return client.stream(asked({ prompt, options: held }));
  });
  await running?.next();
  const admitted = failureOf(waiting!.next());
  await counted(client, { running: 1, waiting: 1 });
  const patient = new Client(address);
  await patient.serverInfo();
  const began = performance.now();
  const late = patient.generate(asked({ prompt, options }));
  const errors: CallFailed[] = [];
  for (let times = 0; times < 3; times++) {
    errors.push(await failureOf(client.generate(asked({ prompt, options }))));
  }
  running?.cancel();
  waiting?.cancel();
  await admitted;
  const answer = await late;
  const elapsed = millisecondsSince(began);
  patient.close();
  return {
    refused: errorSeen(errors.at(-1)!),
    late_completion_tokens: answer.usage.completionTokens,
    late_elapsed_ms: elapsed,
  };
}

async function refusals(client: Client, { requests }: { requests: Asked[] }): Promise<Json> {
  const errors = [];
  for (const request of requests) {
    errors.push(errorSeen(await failureOf(client.generate(asked(request)))));
  }
  return { errors };
}

async function abort(client: Client, parameters: Asked): Promise<Json> {
  const request = asked(parameters);
  const requestId = request.requestId!;
  const first = client.stream(request);
  const events = await toFirstDelta(first);
  const duplicate = await failureOf(rest(client.stream(request)));
  const found = await client.abort(requestId);
  events.push(...(await rest(first)));
  return {
    duplicate: errorSeen(duplicate),
    found,
    order: orderSeen(events),
    finish_reason: (events.at(-2) as SequenceFinished).finishReason,
    found_again: await client.abort(requestId),
    empty: errorSeen(await failureOf(client.abort(""))),
  };
}

async function inspect(
  client: Client,
  parameters: { text: string; interval_ms: number; reports: number },
): Promise<Json> {
  const model = await client.model();
  const tokenIds = await client.tokenize({ text: parameters.text });
  const info = await client.serverInfo();
  let reports = 0;
  for await (const _ of client.watchServerInfo({ intervalMs: parameters.interval_ms })) {
    reports += 1;
    if (reports === parameters.reports) break;
  }
  return {
    context_length: model.contextLength,
    vocab_size: model.vocabSize,
    default_temperature: model.defaultSampling.temperature,
    has_chat_template: model.hasChatTemplate,
    token_ids: tokenIds,
    text: await client.detokenize(tokenIds),
    drafters: info.drafters,
    max_rows: info.limits.maxRows,
    kernels: info.kernels,
    weight_bytes: info.weightBytes,
    kv_bytes_per_position: info.kvBytesPerPosition,
    running: info.counters.running,
    reports,
  };
}

async function drain(
  client: Client,
  parameters: { prompt: Json; options: Json[]; drain_timeout_ms: number | null },
  { admin_address: adminAddress }: Job,
): Promise<Json> {
  const { prompt, options, drain_timeout_ms: timeoutMs } = parameters;
  const readings: Promise<StreamEvent[]>[] = [];
  for (const each of options) {
    readings.push(rest(client.stream(asked({ prompt, options: each }))));
    await counted(client, { running: 1, waiting: readings.length - 1 });
  }
  const operator = new Client(adminAddress, { retries: false });
  const limit = timeoutMs === null ? {} : { timeoutMs };
  const draining = operator.drain(limit);
  let refused: CallFailed | undefined;
  const probe = asked({ prompt, options: { max_new_tokens: 1 } });
  while (refused === undefined) {
    const error = await failureOf(client.generate(probe));
    if (error instanceof Overloaded) await pause(PAUSE_MS); // it does not drain yet
    else refused = error;
  }
  const ends = (await Promise.all(readings)).map((events) => events.at(-2) as SequenceFinished);
  const seen = {
    refused: errorSeen(refused),
    finish_reasons: ends.map((end) => end.finishReason),
    drained: await draining,
    drained_again: await operator.drain(limit),
  };
  operator.close();
  return seen;
}

async function rest(events: AsyncIterable<StreamEvent>): Promise<StreamEvent[]> {
  const found = [];
  for await (const event of events) found.push(event);
  return found;
}

async function toFirstDelta(events: AsyncIterator<StreamEvent>): Promise<StreamEvent[]> {
  const found = [];
  for (;;) {
    const { value } = await events.next();
    if (value === undefined) throw new Error("the stream ended without a delta");
    found.push(value as StreamEvent);
    if (value.type === "delta") return found;
  }
}

/** The error of a call that has to fail. */
async function failureOf(call: Promise<unknown>): Promise<CallFailed> {
  try {
    await call;
  } catch (error) {
    if (error instanceof CallFailed) return error;
    throw error;
  }
  throw new Error("this has to fail, and did not");
}

/** Waits until the server counts these values. */
async function counted(client: Client, wanted: Partial<ServerCounters>): Promise<void> {
  for (;;) {
    const now: Json = (await client.serverInfo()).counters;
    if (Object.entries(wanted).every(([name, value]) => now[name] === value)) return;
    await pause(PAUSE_MS);
  }
}

/** What the server still holds, at the latest after `withinMs`. */
async function held(client: Client, withinMs: number): Promise<Record<string, number>> {
  const began = performance.now();
  for (;;) {
    const { counters } = await client.serverInfo();
    const now = HELD.map((name) => [snake(name), counters[name]] as const);
    if (now.every(([, count]) => count === 0) || millisecondsSince(began) > withinMs) {
      return Object.fromEntries(now);
    }
    await pause(PAUSE_MS);
  }
}

function millisecondsSince(began: number): number {
  return Math.round(performance.now() - began);
}

const ACTIONS: Record<string, (client: Client, parameters: never, job: Job) => Promise<Json>> = {
  ...{ stream, generate, cancel, deadline, overload },
  ...{ refusals, abort, inspect, drain },
};

const job = JSON.parse(await textOf(process.stdin)) as Job;
const action = ACTIONS[job.action];
if (action === undefined) throw new Error(`unknown action ${job.action}`);
const client = new Client(job.address, { retries: false });
process.stdout.write(JSON.stringify(await action(client, job.parameters as never, job)));
client.close();
