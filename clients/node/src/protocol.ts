/**
 * The protocol as this package carries it: messages, services and the service config.
 *
 * Knows where the build put the files. Invariant: the options here are those that the generated
 * types were written with (scripts/protos.js): 64-bit integers and enum values are strings.
 */
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

import * as grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

import type { ProtoGrpcType as Admin } from "./generated/admin.js";
import type { ProtoGrpcType as Details } from "./generated/details.js";
import type { ProtoGrpcType as Generation } from "./generated/generation.js";
import type { ProtoGrpcType as Health } from "./generated/health.js";
import type { ProtoGrpcType as Model } from "./generated/model.js";

const FOLDER = fileURLToPath(new URL("../proto", import.meta.url));
const FILES = ["generation", "model", "admin"].map((name) => `specd/v1/${name}.proto`);

const loaded = grpc.loadPackageDefinition(
  loadSync([...FILES, "details.proto", "health.proto"], {
    longs: String,
    enums: String,
    defaults: true,
    oneofs: true,
    includeDirs: [FOLDER],
  }),
) as unknown as Generation & Model & Admin & Details & Health;

/** Services and messages of `specd.v1`. */
export const v1: (Generation & Model & Admin)["specd"]["v1"] = loaded.specd.v1;

/** The messages of error details. */
export const details: Details["specd_client"]["details"] = loaded.specd_client.details;

/** The health checks of gRPC. */
export const health: Health["grpc"]["health"]["v1"] = loaded.grpc.health.v1;

/** Which calls gRPC itself repeats, and how, as JSON. */
export const SERVICE_CONFIG: string = readFileSync(`${FOLDER}/service_config.json`, "utf8");
