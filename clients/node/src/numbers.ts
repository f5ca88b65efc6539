/**
 * Numbers of the wire as numbers of the language.
 *
 * The loader gives 64-bit integers as decimal text. Counters become `number`: they are exact up to
 * 2^53, which a counter of this protocol does not reach. Seeds use all 64 bits and become `bigint`.
 */

/** Returns a duration of the wire in milliseconds; an absent one is 0. */
export function milliseconds(duration: { seconds: string; nanos: number } | null): number {
  return duration === null ? 0 : Number(duration.seconds) * 1000 + duration.nanos / 1e6;
}

/** Returns milliseconds as a duration of the wire, rounded to nanoseconds. */
export function duration(milliseconds: number): { seconds: number; nanos: number } {
  const seconds = Math.trunc(milliseconds / 1000);
  return { seconds, nanos: Math.round((milliseconds - seconds * 1000) * 1e6) };
}

/** Returns a message of 64-bit counters with numbers for their texts. */
export function counted<Name extends string>(
  message: Readonly<Record<Name, string>>,
): Record<Name, number> {
  const entries = Object.entries<string>(message).map(([name, text]) => [name, Number(text)]);
  return Object.fromEntries(entries) as Record<Name, number>;
}
