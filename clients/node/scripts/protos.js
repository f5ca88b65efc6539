// Begins a build: empties dist/, copies the protocol and the service config into it, and writes the
// TypeScript types of the messages. The copies make the package complete; proto/ stays the one
// source.
import { execFileSync } from "node:child_process";
import { copyFileSync, cpSync, rmSync } from "node:fs";
import { fileURLToPath } from "node:url";

const PROTOS = "dist/proto";
const GENERATED = "src/generated";

// Relative paths from here on: the generator writes them into its files.
process.chdir(fileURLToPath(new URL("..", import.meta.url)));
rmSync("dist", { recursive: true, force: true });
rmSync(GENERATED, { recursive: true, force: true });
cpSync("../../proto/specd", `${PROTOS}/specd`, { recursive: true });
copyFileSync("../../proto/service_config.json", `${PROTOS}/service_config.json`);
for (const name of ["details.proto", "health.proto"]) {
  copyFileSync(`src/${name}`, `${PROTOS}/${name}`);
}
execFileSync(
  process.execPath,
  [
    "node_modules/@grpc/proto-loader/build/bin/proto-loader-gen-types.js",
    // What src/protocol.ts loads the same files with.
    ...["--longs=String", "--enums=String", "--defaults", "--oneofs"],
    ...["--grpcLib=@grpc/grpc-js", "--importFileExtension=.js"],
    ...["--includeDirs", PROTOS, "--outDir", GENERATED],
    ...["specd/v1/generation.proto", "specd/v1/model.proto", "specd/v1/admin.proto"],
    ...["details.proto", "health.proto"],
  ],
  { stdio: ["ignore", "ignore", "inherit"] },
);
