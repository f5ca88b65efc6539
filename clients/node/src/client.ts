/**
 * The client: one channel, and the calls over it.
 *
 * Knows which call a method is; leaves requests to `request.ts`, messages to `events.ts` and
 * `info.ts`, and how calls run and end to `calls.ts`.
 */
import * as grpc from "@grpc/grpc-js";

import { messages, unary } from "./calls.js";
import * as check from "./checks.js";
import { SpecdClientError, Unsupported } from "./errors.js";
import type {
  AbortGenerationResponse__Output,
} from "./generated/specd/v1/AbortGenerationResponse.js";
import type { DetokenizeRequest } from "./generated/specd/v1/DetokenizeRequest.js";
import type { DetokenizeResponse__Output } from "./generated/specd/v1/DetokenizeResponse.js";
import type { DrainResponse__Output } from "./generated/specd/v1/DrainResponse.js";
import type { GetModelResponse__Output } from "./generated/specd/v1/GetModelResponse.js";
import type { GetServerInfoResponse__Output } from "./generated/specd/v1/GetServerInfoResponse.js";
import type { TokenizeResponse__Output } from "./generated/specd/v1/TokenizeResponse.js";
import { modelInfoFrom, serverInfoFrom } from "./info.js";
import type { ModelInfo, ServerInfo } from "./info.js";
import { duration } from "./numbers.js";
import type { CallOptions, GenerationRequest, Options, Prompt } from "./options.js";
import { completionFrom } from "./order.js";
import type { Completion } from "./order.js";
import { SERVICE_CONFIG, health, v1 } from "./protocol.js";
import { SERVICE, ready } from "./readiness.js";
import { requestFrom } from "./request.js";
import { Stream } from "./stream.js";

/** How a client connects. */
export interface ClientOptions {
  /** Default: plain text. */
  readonly credentials?: grpc.ChannelCredentials | undefined;
  /** Sent with every call. Names of binary values end in `-bin`. */
  readonly metadata?: Readonly<Record<string, string | Buffer>> | undefined;
  /** Options of the gRPC channel, for instance `{"grpc.keepalive_time_ms": 30000}`. */
  readonly channelOptions?: Readonly<Record<string, string | number>> | undefined;
  /** Whether gRPC repeats calls that were refused before anything was sent. Default true. */
  readonly retries?: boolean | undefined;
}

/** What Drain tells when no request is left. */
export interface Drained {
  /** Requests that finished by themselves. */
  readonly finished: number;
  /** Requests that were ended with ABORTED. */
  readonly aborted: number;
}

/** A prompt, and the options that decide its tokens. */
export type TokenizedPrompt = Prompt &
  Pick<Options, "model" | "addSpecialTokens" | "tools" | "templateArguments">;

type Settings = [metadata: grpc.Metadata, options: grpc.CallOptions];
type Begun = { signals: AbortSignal[]; settings: () => Settings; limitMs: number };
type Invoke<T> = (...call: [...Settings, grpc.requestCallback<T>]) => grpc.ClientUnaryCall;

// By default gRPC tries a server that was not there again after 1 s, and up to 2 min later.
const RECONNECT = {
  "grpc.initial_reconnect_backoff_ms": 100,
  "grpc.max_reconnect_backoff_ms": 1000,
};
// Node has no timer of more milliseconds, and grpc-js no deadline of more than 11,000 years.
const LONGEST_TIMER_MS = 2 ** 31 - 1;
const TEN_YEARS_MS = 10 * 365.25 * 86_400_000;
const CLIENT_OPTIONS = ["credentials", "metadata", "channelOptions", "retries"];
const CALL_OPTIONS = ["signal", "timeoutMs"];
const TOKENIZED = [
  ...["text", "tokenIds", "messages"],
  ...["model", "addSpecialTokens", "tools", "templateArguments"],
];
const DETOKENIZED = ["model", "skipSpecialTokens"];

/**
 * A connection to one daemon.
 *
 * address: what gRPC takes, `host:port` or `unix:/path`. It connects with the first call.
 */
export class Client {
  readonly address: string;
  readonly #closing = new AbortController();
  readonly #metadata = new grpc.Metadata();
  readonly #generation: InstanceType<typeof v1.GenerationService>;
  readonly #model: InstanceType<typeof v1.ModelService>;
  readonly #admin: InstanceType<typeof v1.AdminService>;
  readonly #health: InstanceType<typeof health.Health>;

  /** Throws TypeError for an unknown option. */
  constructor(address: string, options: ClientOptions = {}) {
    check.object("client", options, CLIENT_OPTIONS);
    this.address = check.text("address", address);
    const credentials = options.credentials ?? grpc.credentials.createInsecure();
    const channelOptions = {
      ...RECONNECT,
      ...retrying(options.retries ?? true),
      ...options.channelOptions,
    };
    this.#generation = new v1.GenerationService(address, credentials, channelOptions);
    const shared = { channelOverride: this.#generation.getChannel() };
    this.#model = new v1.ModelService(address, credentials, shared);
    this.#admin = new v1.AdminService(address, credentials, shared);
    this.#health = new health.Health(address, credentials, shared);
    for (const [name, value] of Object.entries(options.metadata ?? {})) {
      this.#metadata.set(name, value);
    }
  }

  /** Returns the events of a generation. Throws TypeError or RangeError for bad options. */
  stream(request: GenerationRequest, options: CallOptions = {}): Stream {
    const message = requestFrom(request);
    const { signals, settings } = this.#call(options);
    const start = () => this.#generation.streamGenerate(message, ...settings());
    return new Stream(start, signals, request.numSequences ?? 1);
  }

  /** Returns the whole answer. Rejects with CallFailed or ProtocolError. */
  async generate(request: GenerationRequest, options: CallOptions = {}): Promise<Completion> {
    const events = [];
    for await (const event of this.stream(request, options)) events.push(event);
    return completionFrom(events);
  }

  /** Ends a generation, whose stream finishes with ABORTED. Returns whether it was live. */
  async abort(requestId: string, options: CallOptions = {}): Promise<boolean> {
    const message = { requestId: check.text("requestId", requestId) };
    const response = await this.#answer<AbortGenerationResponse__Output>(
      options,
      (...settings) => this.#generation.abortGeneration(message, ...settings),
    );
    return response.found;
  }

  /** Describes the model; without a name, the one that the server serves. */
  async model(name = "", options: CallOptions = {}): Promise<ModelInfo> {
    const message = { model: check.text("name", name) };
    const response = await this.#answer<GetModelResponse__Output>(options, (...settings) =>
      this.#model.getModel(message, ...settings),
    );
    return modelInfoFrom(response.model);
  }

  /** Turns a prompt into the token ids that a generation would start from. */
  async tokenize(prompt: TokenizedPrompt, options: CallOptions = {}): Promise<number[]> {
    check.object("prompt", prompt, TOKENIZED);
    const { model = "", input = null } = requestFrom(prompt);
    const response = await this.#answer<TokenizeResponse__Output>(options, (...settings) =>
      this.#model.tokenize({ model, input }, ...settings),
    );
    return response.tokenIds;
  }

  /** Turns token ids into text. Special tokens are left out unless `skipSpecialTokens` is false. */
  async detokenize(
    tokenIds: Iterable<number>,
    details: { readonly model?: string; readonly skipSpecialTokens?: boolean } = {},
    options: CallOptions = {},
  ): Promise<string> {
    const { model = "", skipSpecialTokens } = check.object("details", details, DETOKENIZED);
    const message: DetokenizeRequest = {
      model: check.text("model", model),
      tokenIds: check.listOf(check.uint32)("tokenIds", tokenIds),
    };
    if (skipSpecialTokens !== undefined) {
      message.skipSpecialTokens = check.bool("skipSpecialTokens", skipSpecialTokens);
    }
    const response = await this.#answer<DetokenizeResponse__Output>(options, (...settings) =>
      this.#model.detokenize(message, ...settings),
    );
    return response.text;
  }

  /** Returns what the server says of itself now. */
  async serverInfo(options: CallOptions = {}): Promise<ServerInfo> {
    const response = await this.#answer<GetServerInfoResponse__Output>(options, (...settings) =>
      this.#model.getServerInfo({}, ...settings),
    );
    return serverInfoFrom(response.info);
  }

  /** Yields what the server says of itself, at once and then every second or `intervalMs`. */
  watchServerInfo(
    { intervalMs, ...others }: { readonly intervalMs?: number } = {},
    options: CallOptions = {},
  ): AsyncGenerator<ServerInfo, void, undefined> {
    check.object("watchServerInfo", others, []);
    const { signals, settings } = this.#call(options);
    const interval = intervalMs === undefined ? null : lasting("intervalMs", intervalMs);
    const start = () => this.#model.watchServerInfo({ interval }, ...settings());
    return mapped(messages(start, signals), ({ info }) => serverInfoFrom(info));
  }

  /**
   * Waits until the server takes generations, also for one that is not there yet.
   *
   * Rejects with DeadlineExceeded, whose message tells the last state, after `timeoutMs`, and with
   * CallFailed for what waiting cannot cure, for instance a server without health checks.
   */
  async waitReady(options: CallOptions = {}): Promise<void> {
    const { signals, limitMs } = this.#call(options);
    const watch = (leftMs: number) =>
      messages(
        () => this.#health.watch({ service: SERVICE }, ...this.#settings(leftMs)),
        signals,
      );
    await ready(watch, limitMs, signals);
  }

  /**
   * Refuses new requests, waits for the live ones and tells how they ended. Call it on the server's
   * admin address. `drain.timeoutMs`: after this, live ones are ended with ABORTED; without it, the
   * server waits as long as they take. (`timeoutMs` of the call gives up waiting and ends nothing.)
   */
  async drain(
    { timeoutMs, ...others }: { readonly timeoutMs?: number } = {},
    options: CallOptions = {},
  ): Promise<Drained> {
    check.object("drain", others, []);
    const limit =
      timeoutMs === undefined ? undefined : check.limit("timeoutMs", timeoutMs, TEN_YEARS_MS);
    const timeout = limit === undefined ? null : duration(limit);
    try {
      return await this.#answer<DrainResponse__Output>(options, (...settings) =>
        this.#admin.drain({ timeout }, ...settings),
      );
    } catch (error) {
      if (!(error instanceof Unsupported) || error.reason) throw error;
      const message = `${error.message} (drain is for the server's admin address)`;
      throw new Unsupported(error.code, message);
    }
  }

  /** Cancels what still runs and closes the connection. A closed client takes no calls. */
  close(): void {
    this.#closing.abort(new SpecdClientError("the client was closed"));
    this.#generation.close();
  }

  #answer<T>(options: CallOptions, invoke: Invoke<T>): Promise<T> {
    const { signals, settings } = this.#call(options);
    return unary((done) => invoke(...settings(), done), signals);
  }

  /** Returns what ends a call early, and the settings of a call that begins now. */
  #call(options: CallOptions): Begun {
    const { signal, timeoutMs } = check.object("call", options, CALL_OPTIONS) as CallOptions;
    const limitMs = check.limit("timeoutMs", timeoutMs ?? Infinity, LONGEST_TIMER_MS) ?? Infinity;
    return {
      signals: signal ? [signal, this.#closing.signal] : [this.#closing.signal],
      settings: () => this.#settings(limitMs),
      limitMs,
    };
  }

  #settings(limitMs: number): Settings {
    return [this.#metadata.clone(), { deadline: Date.now() + limitMs }];
  }
}

function retrying(retries: boolean): Record<string, string | number> {
  return check.bool("retries", retries)
    ? { "grpc.service_config": SERVICE_CONFIG }
    : { "grpc.enable_retries": 0 };
}

function lasting(name: string, milliseconds: number): ReturnType<typeof duration> {
  return duration(check.milliseconds(name, milliseconds));
}

async function* mapped<T, R>(items: AsyncIterable<T>, change: (item: T) => R) {
  for await (const item of items) yield change(item);
}
