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

/** Watches one stream. numSequences: as many as were asked for. */
export class Order {
  #started = false;
  #finished = false;
  readonly #numSequences: number;
  readonly #closed = new Set<number>();

  constructor(numSequences = 1) {
    this.#numSequences = numSequences;
  }

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
    if (sequenceIndex >= this.#numSequences) {
      const asked = `where ${this.#numSequences} were asked for`;
      throw new ProtocolError(`sequence ${sequenceIndex}, ${asked}`);
    }
    if (this.#closed.has(sequenceIndex)) {
      throw new ProtocolError(`an event of sequence ${sequenceIndex} after its end`);
    }
    if (type === "sequence_finished") this.#closed.add(sequenceIndex);
  }

  #finish(): void {
    if (this.#closed.size < this.#numSequences) {
      throw new ProtocolError("finished before the end of every sequence");
    }
    this.#finished = true;
  }
}

/** A whole sequence. tokenIds, logprobs and steps are empty unless they were asked for. */
export interface GeneratedSequence {
  readonly text: string;
  readonly tokenIds: readonly number[];
  readonly logprobs: readonly TokenLogprob[];
  readonly steps: readonly SpeculationStep[];
  readonly completionTokens: number;
  readonly finishReason: FinishReason;
  readonly matchedTokenId: number | undefined;
  readonly matchedStopString: string | undefined;
}

/** A whole answer. `text` and what else belongs to a sequence is that of the first one. */
export interface Completion extends Omit<GeneratedSequence, "completionTokens"> {
  readonly requestId: string;
  /** The seed that the tokens were sampled with; the same one gives them again. */
  readonly seed: bigint;
  readonly started: Started;
  readonly sequences: readonly GeneratedSequence[];
  readonly usage: Usage;
  readonly speculation: SpeculationStats;
}

/** Returns the whole answer that a checked stream told. */
export function completionFrom(events: readonly StreamEvent[]): Completion {
  const started = events[0] as Started;
  const finished = events.at(-1) as Finished;
  const ends = events.filter((event) => event.type === "sequence_finished");
  const sequences = ends
    .toSorted((one, other) => one.sequenceIndex - other.sequenceIndex)
    .map((end) => sequenceFrom(events, end));
  const { completionTokens: _, ...first } = sequences[0] as GeneratedSequence;
  return {
    requestId: started.requestId,
    seed: started.seed,
    started,
    ...first,
    sequences,
    usage: finished.usage,
    speculation: finished.speculation,
  };
}

function sequenceFrom(events: readonly StreamEvent[], end: SequenceFinished): GeneratedSequence {
  const { sequenceIndex, finishReason, matchedTokenId, matchedStopString } = end;
  const deltas = events.filter((event): event is Delta => {
    return event.type === "delta" && event.sequenceIndex === sequenceIndex;
  });
  return {
    text: deltas.map((delta) => delta.text).join(""),
    tokenIds: deltas.flatMap((delta) => delta.tokenIds),
    logprobs: deltas.flatMap((delta) => delta.logprobs),
    steps: deltas.flatMap((delta) => delta.steps),
    completionTokens: deltas.at(-1)?.completionTokens ?? 0,
    ...{ finishReason, matchedTokenId, matchedStopString },
  };
}
