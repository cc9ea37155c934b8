// A client on the official TypeScript SDK v1 that uses a server in full, and checks every answer.
//
// Argument: a JSON object, see `PLAN` below. Prints one JSON line; an unexpected answer ends it
// with an error on stderr and a status other than 0.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join } from "node:path";

const peers = createRequire(join(process.env.SPRINGLINE_PEERS, "peers.js"));
const sdk = (path) => peers(`@modelcontextprotocol/sdk/${path}`);
const { Client } = sdk("client/index.js");
const { StreamableHTTPClientTransport } = sdk("client/streamableHttp.js");
const { StdioClientTransport } = sdk("client/stdio.js");
const types = sdk("types.js");

// url, or command and args: where the server is
// tool, uri: what stands before each tool's and each resource's name
// said: what stands before the message of an elicitation
// hold: a tool that answers only when it is released, if there is one to cancel
const PLAN = { tool: "", uri: "", said: "", args: [], ...JSON.parse(process.argv[2]) };
const ROOT = { uri: "file:///workspace/harbour", name: "harbour" };

const client = new Client(
  { name: "springline-v1", version: "1.0.0" },
  { capabilities: { sampling: {}, elicitation: {}, roots: { listChanged: true } } },
);
client.onerror = (error) => console.error("client error:", error.message);
client.setRequestHandler(types.CreateMessageRequestSchema, async (request) => ({
  model: "test-model",
  role: "assistant",
  content: { type: "text", text: `sampled: ${request.params.messages[0].content.text}` },
}));
const asked = [];
client.setRequestHandler(types.ElicitRequestSchema, async (request) => {
  asked.push(request.params.message);
  return { action: "accept", content: { name: "Ada Elicited", check: true } };
});
client.setRequestHandler(types.ListRootsRequestSchema, async () => ({ roots: [ROOT] }));

const updates = [];
let updated = () => {};
client.setNotificationHandler(types.ResourceUpdatedNotificationSchema, (notification) => {
  updates.push(notification.params.uri);
  updated();
});

const transport = PLAN.url
  ? new StreamableHTTPClientTransport(new URL(PLAN.url))
  : new StdioClientTransport({ command: PLAN.command, args: PLAN.args, env: process.env });

const call = async (name, args, options) => {
  const result = await client.callTool({ name: PLAN.tool + name, arguments: args }, undefined, options);
  assert.ok(!result.isError, JSON.stringify(result));
  return result.content[0].text;
};
const step = async (name, act) => {
  console.error("step:", name);
  try {
    await act();
  } catch (error) {
    error.message = `${name}: ${error.message}`;
    throw error;
  }
  done.push(name);
};
const done = [];

await step("initialize", () => client.connect(transport));
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
await step("tools/list", () => {
  const names = tools.map((tool) => tool.name);
  for (const name of ["echo", "trigger-sampling-request", "trigger-elicitation-request", "get-roots-list"]) {
    assert.ok(names.includes(PLAN.tool + name), `${name} is not in ${names}`);
  }
});
await step("tools/call", async () => {
  assert.equal(await call("echo", { message: "ahoy" }), "Echo: ahoy");
  const sum = await Promise.all([1, 2, 3, 4].map((a) => call("get-sum", { a, b: 10 })));
  sum.forEach((text, at) => assert.match(text, new RegExp(`is ${at + 11}\\.`)));
});
await step("progress", async () => {
  const seen = [];
  const onprogress = (progress) => seen.push(`${progress.progress}/${progress.total}`);
  const text = await call("trigger-long-running-operation", { duration: 0.6, steps: 3 }, { onprogress });
  assert.match(text, /completed/);
  assert.deepEqual(wire, [1, 2, 3, "answer"]);
  assert.deepEqual(seen.slice(0, 2), ["1/3", "2/3"]);
});
await step("cancel", async () => {
  const stop = new AbortController();
  const options = { signal: stop.signal, onprogress: () => stop.abort("enough") };
  const operation = call("trigger-long-running-operation", { duration: 2, steps: 10 }, options);
  await assert.rejects(operation, /enough/);
  if (PLAN.hold) {
    const held = new AbortController();
    const params = { name: PLAN.hold, arguments: { id: "cancelled-by-v1" } };
    const hold = client.callTool(params, undefined, { signal: held.signal });
    assert.equal(await call("echo", { message: "beside" }), "Echo: beside");
    held.abort("let go");
    await assert.rejects(hold, /let go/);
  }
  assert.equal(await call("echo", { message: "after" }), "Echo: after");
});
await step("sampling", async () => {
  const text = await call("trigger-sampling-request", { prompt: "tide?" });
  assert.match(text, /sampled: .*tide\?/);
});
await step("elicitation", async () => {
  const name = `${PLAN.tool}trigger-elicitation-request`;
  const { content } = await client.callTool({ name, arguments: {} });
  assert.match(JSON.stringify(content), /Ada Elicited/);
  assert.deepEqual(asked, [`${PLAN.said}Please provide inputs for the following fields:`]);
});
await step("roots", async () => {
  assert.match(await call("get-roots-list", {}), /file:\/\/\/workspace\/harbour/);
});
const { resources } = await client.listResources();
await step("resources", async () => {
  const first = resources.find((resource) => resource.uri.startsWith(PLAN.uri));
  assert.ok(first, JSON.stringify(resources));
  const { contents } = await client.readResource({ uri: first.uri });
  assert.equal(contents[0].uri, first.uri);
  const { resourceTemplates } = await client.listResourceTemplates();
  assert.ok(resourceTemplates.some((template) => template.uriTemplate.startsWith(PLAN.uri)));
});
await step("subscribe", async () => {
  const { uri } = resources.find((resource) => resource.uri.startsWith(PLAN.uri));
  await client.subscribeResource({ uri });
  const first = new Promise((resolve) => (updated = resolve));
  await call("toggle-subscriber-updates", {});
  await first;
  await call("toggle-subscriber-updates", {});
  await client.unsubscribeResource({ uri });
  assert.equal(updates[0], uri);
});
await step("prompts", async () => {
  const { prompts } = await client.listPrompts();
  assert.ok(prompts.some((prompt) => prompt.name === `${PLAN.tool}args-prompt`), JSON.stringify(prompts));
  const got = await client.getPrompt({ name: `${PLAN.tool}args-prompt`, arguments: { city: "Kiel" } });
  assert.match(got.messages[0].content.text, /Kiel/);
  const { completion } = await client.complete({
    ref: { type: "ref/prompt", name: `${PLAN.tool}completable-prompt` },
    argument: { name: "department", value: "E" },
  });
  assert.deepEqual(completion.values, ["Engineering"]);
});
await step("logging", () => client.setLoggingLevel("warning"));
await step("ping", () => client.ping());
await step("errors", async () => {
  await assert.rejects(client.readResource({ uri: `${PLAN.uri}demo://resource/none` }), /McpError|MCP error/);
});
if (PLAN.url) {
  await step("terminate", () => transport.terminateSession());
}
await client.close();
console.log(JSON.stringify({ client: "typescript v1", done }));
