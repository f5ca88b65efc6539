/** A real server on a real socket that plays scripts to the client, and events to make them of. */
import * as grpc from "@grpc/grpc-js";

import { Client } from "../src/index.js";
import type { ClientOptions } from "../src/index.js";
import type {
  StreamGenerateRequest__Output,
} from "../src/generated/specd/v1/StreamGenerateRequest.js";
import type { StreamGenerateResponse } from "../src/generated/specd/v1/StreamGenerateResponse.js";
import { details, health, v1 } from "../src/protocol.js";

export const STARTED: StreamGenerateResponse = {
  started: {
    requestId: "r-1",
    model: "tiny",
    promptTokens: 2,
    seed: "18446744073709551615",
    queueTime: { seconds: 1, nanos: 500_000 },
  },
};
export const HEL: StreamGenerateResponse = {
  delta: {
    text: "Hel",
    tokenIds: [0, 7],
    completionTokens: 2,
    steps: [{ drafter: "ngram", draftTokens: 3, acceptedDraftTokens: 1 }],
  },
};
export const LO: StreamGenerateResponse = {
  delta: { text: "lo", tokenIds: [9], completionTokens: 3, steps: [{}] },
};
export const STOPPED: StreamGenerateResponse = {
  sequenceFinished: { finishReason: "FINISH_REASON_EOS_TOKEN", matchedTokenId: 0 },
};
export const FINISHED: StreamGenerateResponse = {
  finished: {
    usage: { promptTokens: 2, completionTokens: 3 },
    speculation: {
      total: { verifySteps: 2, acceptedLengthHistogram: [1, 1], verifyTime: { nanos: 2_000_000 } },
      byDrafter: { ngram: { draftTokens: 3 } },
    },
  },
};
export const WHOLE = [STARTED, HEL, LO, STOPPED, FINISHED];
export const ASK = { text: "x" };

/** A status with `grpc-status-details-bin`, as the daemon sends it. */
export class Refusal {
  constructor(
    readonly code: grpc.status,
    readonly serialized: Buffer = Buffer.alloc(0),
    readonly pushbackMs?: number,
  ) {}

  get status(): Partial<grpc.StatusObject> {
    const metadata = new grpc.Metadata();
    metadata.set("grpc-status-details-bin", this.serialized);
    if (this.pushbackMs !== undefined) {
      metadata.set("grpc-retry-pushback-ms", `${this.pushbackMs}`);
    }
    return { code: this.code, details: "no", metadata };
  }
}

/** Returns the bytes of a google.rpc.Status with these details, by name of their message. */
export function packed(contents: Partial<Record<keyof typeof details, object>>): Buffer {
  const parts = Object.entries(contents).map(([name, content]) => {
    const value = details[name as keyof typeof details].serialize(content as never);
    return { typeUrl: `type.googleapis.com/google.rpc.${name}`, value };
  });
  return details.Status.serialize({ code: 8, message: "no", details: parts });
}

export const QUEUE_FULL = packed({
  ErrorInfo: { reason: "QUEUE_FULL", domain: "specd", metadata: { limit: "1" } },
  RetryInfo: { retryDelay: { seconds: 1, nanos: 250_000_000 } },
});

type DrainCall = grpc.ServerUnaryCall<{ timeout: { seconds: string } | null }, object>;
type HealthCall = grpc.ServerWritableStream<{ service: string }, { status: number }>;
type Call = grpc.ServerWritableStream<StreamGenerateRequest__Output, StreamGenerateResponse>;

/** What every StreamGenerate plays. A Refusal ends the call; "hang" keeps it open. */
export type Script = readonly (StreamGenerateResponse | Refusal | "hang")[];

/** The server, and what it saw. refusals: what the next attempts get, the first one first. */
export class Scripted {
  readonly arrivalsMs: number[] = [];
  readonly refusals: Refusal[] = [];
  /** What each watch of the health is told at once; null is a server without health checks. */
  health: number[] | null = [];
  drainRefusal: Refusal | undefined;
  readonly watches: HealthCall[] = [];
  /** Settles when a client watches the health. */
  readonly watched: Promise<"watched">;
  #watch: (how: "watched") => void = () => {};
  request: StreamGenerateRequest__Output | undefined;
  metadata = new grpc.Metadata();
  /** Settles when a client has cancelled a call. */
  readonly cancelled: Promise<"cancelled">;
  #end: (how: "cancelled") => void = () => {};

  constructor(readonly script: Script) {
    this.watched = new Promise((resolve) => (this.#watch = resolve));
    this.cancelled = new Promise((resolve) => (this.#end = resolve));
  }

  watchHealth(call: HealthCall): void {
    this.watches.push(call);
    call.on("cancelled", () => this.#end("cancelled"));
    const unknown = new Refusal(grpc.status.UNIMPLEMENTED);
    const refusal = this.health === null ? unknown : this.refusals.shift();
    if (refusal) call.emit("error", refusal.status);
    else for (const status of this.health ?? []) call.write({ status });
    this.#watch("watched");
  }

  streamGenerate(call: Call): void {
    this.arrivalsMs.push(performance.now());
    this.request = call.request;
    this.metadata = call.metadata;
    call.on("cancelled", () => this.#end("cancelled"));
    const refusal = this.refusals.shift();
    for (const item of refusal ? [refusal] : this.script) {
      if (item === "hang") return;
      if (item instanceof Refusal) {
        call.emit("error", item.status);
        return;
      }
      call.write(item);
    }
    call.end();
  }
}

// What waits longer waits for something that does not come.
const PATIENCE_MS = 10_000;

/** Runs `use` with a server that plays `script` and a client of it, while patience lasts. */
export async function serving(
  script: Script,
  use: (client: Client, scripted: Scripted) => Promise<void>,
  { address = "127.0.0.1:0", ...options }: ClientOptions & { address?: string } = {},
): Promise<void> {
  const server = new grpc.Server();
  const scripted = new Scripted(script);
  server.addService(v1.GenerationService.service, {
    streamGenerate: (call: Call) => scripted.streamGenerate(call),
    abortGeneration: answering((request: { requestId: string }) => {
      return { found: request.requestId === "live" };
    }),
  });
  server.addService(v1.ModelService.service, {
    getModel: answering(({ model }: { model: string }) => {
      return { model: { name: model || "tiny", defaultSampling: { temperature: 0.5 } } };
    }),
    watchServerInfo(call: grpc.ServerWritableStream<unknown, unknown>): void {
      for (const steps of [1, 2]) call.write({ info: { limits: {}, counters: { steps } } });
    },
  });
  server.addService(health.Health.service, {
    watch: (call: HealthCall) => scripted.watchHealth(call),
  });
  server.addService(v1.AdminService.service, {
    drain(call: DrainCall, done: grpc.sendUnaryData<object>): void {
      const aborted = Number(call.request.timeout?.seconds ?? 0);
      if (scripted.drainRefusal) done(scripted.drainRefusal.status);
      else done(null, { finished: 3, aborted });
    },
  });
  const port = await new Promise<number>((resolve, reject) => {
    server.bindAsync(address, grpc.ServerCredentials.createInsecure(), (error, bound) => {
      if (error) reject(error);
      else resolve(bound);
    });
  });
  const client = new Client(address.startsWith("unix:") ? address : `127.0.0.1:${port}`, options);
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    const tooLong = () => reject(new Error(`still waiting after ${PATIENCE_MS} ms`));
    timer = setTimeout(tooLong, PATIENCE_MS);
  });
  try {
    await Promise.race([use(client, scripted), late]);
  } finally {
    clearTimeout(timer);
    client.close();
    server.forceShutdown();
  }
}

function answering<Q>(answer: (request: Q) => object) {
  return (call: grpc.ServerUnaryCall<Q, object>, done: grpc.sendUnaryData<object>): void => {
    done(null, answer(call.request));
  };
}
