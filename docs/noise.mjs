// The keyed noise of specd in JavaScript, written from noise.md, on BigInt and Math.imul.
//
// As a program it reads vectors on stdin, in the form of tests/data/noise.json, and writes the same
// document with what it computes itself: `node docs/noise.mjs < tests/data/noise.json`.

import { readFileSync } from "node:fs";
import { argv } from "node:process";
import { pathToFileURL } from "node:url";

const wrap = (x) => BigInt.asUintN(64, x);

function finalise(z) {
  z = wrap((z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n);
  z = wrap((z ^ (z >> 27n)) * 0x94d049bb133111ebn);
  return z ^ (z >> 31n);
}

/** The key of a seed and a text position, both BigInt, as an unsigned 64-bit BigInt. */
export function keyOf(seed, position) {
  return finalise(wrap(finalise(seed) + position * 0x9e3779b97f4a7c15n));
}

/** The seed of sequence `index` of a request; both BigInt. */
export function sequenceSeed(seed, index) {
  return index === 0n ? seed : finalise(wrap(finalise(seed) + index * 0xd1342543de82ef95n));
}

function mix(x) {
  x = Math.imul(x ^ (x >>> 16), 0x7feb352d);
  x = Math.imul(x ^ (x >>> 15), 0x846ca68b);
  return x ^ (x >>> 16);
}

/** The unsigned 32-bit integer of a token id under a key. */
export function hashOf(key, token) {
  const high = Number(key >> 32n);
  const low = Number(key & 0xffffffffn);
  return mix(mix(token ^ high) ^ low) >>> 0;
}

/** The noise that belongs to an integer. */
export function gumbelOf(h) {
  const u = Math.min(Math.fround((h + 0.5) / 2 ** 32), 1 - 2 ** -24);
  return -Math.log(-Math.log1p(-u));
}

function vectorOf({ seed, position, token }) {
  const h = hashOf(keyOf(BigInt(seed), BigInt(position)), token);
  return { seed, position, token, h, g: gumbelOf(h) };
}

function recompute({ keys, vectors, edges, sequence_seeds }) {
  return {
    keys: keys.map(({ seed, position }) => {
      return { seed, position, key: String(keyOf(BigInt(seed), BigInt(position))) };
    }),
    vectors: vectors.map(vectorOf),
    edges: edges.map(({ h }) => ({ h, g: gumbelOf(h) })),
    sequence_seeds: sequence_seeds.map(({ seed, index }) => {
      const own = String(sequenceSeed(BigInt(seed), BigInt(index)));
      return { seed, index, sequence_seed: own };
    }),
  };
}

if (import.meta.url === pathToFileURL(argv[1] ?? "").href) {
  console.log(JSON.stringify(recompute(JSON.parse(readFileSync(0, "utf8")))));
}
