// A client on the official TypeScript SDK v2: a handshake of each kind that it knows, a list, a
// call, progress and an elicitation.
//
// Argument: a JSON object with `url`, or `command` and `args`. Prints one JSON line; an unexpected
// answer ends it with an error on stderr and a status other than 0.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join } from "node:path";

const peers = createRequire(join(process.env.SPRINGLINE_PEERS, "peers.js"));
const { Client, StreamableHTTPClientTransport } = peers("@modelcontextprotocol/client");
const { StdioClientTransport } = peers("@modelcontextprotocol/client/stdio");

const PLAN = { args: [], ...JSON.parse(process.argv[2]) };
const done = [];

for (const mode of ["legacy", "auto"]) {
  const client = new Client(
    { name: "springline-v2", version: "1.0.0" },
    { capabilities: { elicitation: { form: {} } }, versionNegotiation: { mode } },
  );
  client.setRequestHandler("elicitation/create", async () => ({
    action: "accept",
    content: { name: "Ada Elicited", check: true },
  }));
  const transport = PLAN.url
    ? new StreamableHTTPClientTransport(new URL(PLAN.url))
    : new StdioClientTransport({ command: PLAN.command, args: PLAN.args, env: process.env });
  await client.connect(transport);
  // The SDK passes progress on in a later turn than it answers a call, so that of progress and answer
  // in one read the progress is lost. The order on the wire is what counts here.
  const wire = [];
  const receive = transport.onmessage;
  transport.onmessage = (message, extra) => {
    if (message.method === "notifications/progress") wire.push(message.params.progress);
    if (message.result?.content?.[0]?.text?.startsWith("Long running")) wire.push("answer");
    receive(message, extra);
  };
  const { tools } = await client.listTools();
  assert.ok(tools.some((tool) => tool.name === "echo"), JSON.stringify(tools));

  const echo = await client.callTool({ name: "echo", arguments: { message: mode } });
  assert.equal(echo.content[0].text, `Echo: ${mode}`);

  const seen = [];
  const onprogress = (progress) => seen.push(progress.progress);
  const operation = { name: "trigger-long-running-operation", arguments: { duration: 0.3, steps: 3 } };
  await client.callTool(operation, { onprogress });
  assert.deepEqual(wire, [1, 2, 3, "answer"]);
  assert.deepEqual(seen.slice(0, 2), [1, 2]);

  const elicited = await client.callTool({ name: "trigger-elicitation-request", arguments: {} });
  assert.match(JSON.stringify(elicited.content), /Ada Elicited/);
  await client.close();
  done.push(mode);
}
console.log(JSON.stringify({ client: "typescript v2", done }));
