/**
 * The events of one generation.
 *
 * Invariant: a stream yields events in the order that the protocol promises or throws; however it
 * is left, its call is over or cancelled.
 */
import type { ClientReadableStream } from "@grpc/grpc-js";

import { messages } from "./calls.js";
import { eventFrom } from "./events.js";
import type { StreamEvent } from "./events.js";
import type {
  StreamGenerateResponse__Output,
} from "./generated/specd/v1/StreamGenerateResponse.js";
import { Order } from "./order.js";

type Call = ClientReadableStream<StreamGenerateResponse__Output>;

/**
 * The events of one generation, in order: `for await (const event of stream)`.
 *
 * The call begins with the first read. Leaving the loop cancels it, and so does `cancel`. Reading
 * throws CallFailed where the call ends with a status, and ProtocolError where the server breaks
 * the order of events.
 */
export class Stream implements AsyncIterableIterator<StreamEvent> {
  readonly #own = new AbortController();
  readonly #events: AsyncGenerator<StreamEvent, void, undefined>;

  /** Programs get streams from `Client.stream`. numSequences: as many as were asked for. */
  constructor(start: () => Call, signals: readonly AbortSignal[], numSequences: number) {
    this.#events = checked(messages(start, [...signals, this.#own.signal]), numSequences);
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  /** Reads the next event. */
  next(): Promise<IteratorResult<StreamEvent, void>> {
    return this.#events.next();
  }

  /** Cancels the call and ends the iteration; a `for await` that is left calls it. */
  return(): Promise<IteratorResult<StreamEvent, void>> {
    this.cancel();
    return this.#events.return();
  }

  /** Cancels the call; whoever reads it gets CallCancelled. Does nothing after its end. */
  cancel(): void {
    this.#own.abort();
  }
}

async function* checked(
  responses: AsyncIterable<StreamGenerateResponse__Output>,
  numSequences: number,
): AsyncGenerator<StreamEvent, void, undefined> {
  const order = new Order(numSequences);
  for await (const response of responses) {
    const event = eventFrom(response);
    order.check(event);
    yield event;
  }
  order.checkEnd();
}
