/**
 * The order of events that the protocol promises, and a whole answer gathered from it.
 *
 * Invariant: what `check` and `checkEnd` let through is a complete stream.
 */
import { ProtocolError } from "./errors.js";
import type {
  Delta,
  Finished,
  FinishReason,
  SequenceFinished,
  SpeculationStats,
  SpeculationStep,
  Started,
  StreamEvent,
  TokenLogprob,
  Usage,
} from "./events.js";

/** Watches one stream. */
export class Order {
  #started = false;
  #finished = false;
  readonly #open = new Set<number>();
  readonly #closed = new Set<number>();

  /** Takes the next event. Throws ProtocolError where it may not come now. */
  check(event: StreamEvent): void {
    if (this.#finished) throw new ProtocolError(`${event.type} after finished`);
    if ((event.type === "started") === this.#started) {
      throw new ProtocolError("a stream begins with one started and no other event");
    }
    this.#started = true;
    if (event.type === "finished") {
      this.#finish();
    } else if (event.type !== "started") {
      this.#take(event);
    }
  }

  /** Throws ProtocolError where the stream may not end now. */
  checkEnd(): void {
    if (!this.#finished) throw new ProtocolError("the stream ended without finished");
  }

  #take({ type, sequenceIndex }: Delta | SequenceFinished): void {
    if (this.#closed.has(sequenceIndex)) {
      throw new ProtocolError(`an event of sequence ${sequenceIndex} after its end`);
    }
    this.#open.add(sequenceIndex);
    if (type === "sequence_finished") {
      this.#open.delete(sequenceIndex);
      this.#closed.add(sequenceIndex);
    }
  }

  #finish(): void {
    if (this.#open.size > 0 || this.#closed.size === 0) {
      throw new ProtocolError("finished before the end of every sequence");
    }
    this.#finished = true;
  }
}

/** A whole answer. tokenIds, logprobs and steps are empty unless they were asked for. */
export interface Completion {
  readonly requestId: string;
  /** The seed that the tokens were sampled with; the same one gives them again. */
  readonly seed: bigint;
  readonly started: Started;
  readonly text: string;
  readonly tokenIds: readonly number[];
  readonly logprobs: readonly TokenLogprob[];
  readonly steps: readonly SpeculationStep[];
  readonly finishReason: FinishReason;
  readonly matchedTokenId: number | undefined;
  readonly matchedStopString: string | undefined;
  readonly usage: Usage;
  readonly speculation: SpeculationStats;
}

/** Returns the whole answer that a checked stream of one sequence told. Throws ProtocolError. */
export function completionFrom(events: readonly StreamEvent[]): Completion {
  const started = events[0] as Started;
  const finished = events.at(-1) as Finished;
  const sequence = events.at(-2);
  const deltas = events.filter((event) => event.type === "delta");
  if (sequence?.type !== "sequence_finished" || events.length !== deltas.length + 3) {
    throw new ProtocolError("more than one sequence in an answer that has one");
  }
  const { finishReason, matchedTokenId, matchedStopString } = sequence;
  return {
    requestId: started.requestId,
    seed: started.seed,
    started,
    text: deltas.map((delta) => delta.text).join(""),
    tokenIds: deltas.flatMap((delta) => delta.tokenIds),
    logprobs: deltas.flatMap((delta) => delta.logprobs),
    steps: deltas.flatMap((delta) => delta.steps),
    ...{ finishReason, matchedTokenId, matchedStopString },
    usage: finished.usage,
    speculation: finished.speculation,
  };
}
