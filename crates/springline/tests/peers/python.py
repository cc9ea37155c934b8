"""A client on the official Python SDK, in the legacy era, that uses a server in full.

Argument: a JSON object as for typescript_v1.mjs, and `mode`. Prints one JSON line; an unexpected answer ends it
with an error on stderr and a status other than 0.
"""

import json
import re
import sys
import warnings

import anyio
import mcp_types as types
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters

warnings.filterwarnings("ignore")
PLAN = {"tool": "", "uri": "", "said": "", "args": [], **json.loads(sys.argv[1])}
ROOT = types.Root(uri="file:///workspace/harbour", name="harbour")

done = []
asked = []
updates = []
updated = anyio.Event()


def step(name):
    print("step:", name, file=sys.stderr)
    done.append(name)


async def sample(context, params):
    text = params.messages[0].content.text
    content = types.TextContent(type="text", text=f"sampled: {text}")
    return types.CreateMessageResult(role="assistant", model="test-model", content=content)


async def elicit(context, params):
    asked.append(params.message)
    return types.ElicitResult(action="accept", content={"name": "Ada Elicited", "check": True})


async def roots(context):
    return types.ListRootsResult(roots=[ROOT])


async def notice(message):
    if isinstance(message, types.ResourceUpdatedNotification):
        updates.append(str(message.params.uri))
        updated.set()


async def text_of(client, name, arguments, **options):
    result = await client.call_tool(PLAN["tool"] + name, arguments, **options)
    assert not result.is_error, result
    return result.content[0].text


async def use(client):
    step("initialize")
    assert client.server_capabilities.tools is not None

    step("tools/list")
    names, cursor = [], None
    while True:
        page = await client.list_tools(cursor=cursor)
        names += [tool.name for tool in page.tools]
        cursor = page.next_cursor
        if cursor is None:
            break
    for name in ("echo", "trigger-sampling-request", "trigger-elicitation-request", "get-roots-list"):
        assert PLAN["tool"] + name in names, f"{name} is not in {names}"

    step("tools/call")
    assert await text_of(client, "echo", {"message": "ahoy"}) == "Echo: ahoy"

    async def add(number):
        text = await text_of(client, "get-sum", {"a": number, "b": 10})
        assert f"is {number + 10}." in text, text

    async with anyio.create_task_group() as group:
        for number in range(4):
            group.start_soon(add, number)

    step("progress")
    seen = []

    async def progress(now, total, message):
        seen.append((now, total))

    arguments = {"duration": 0.6, "steps": 3}
    text = await text_of(client, "trigger-long-running-operation", arguments, progress_callback=progress)
    assert "completed" in text, text
    assert seen == [(1, 3), (2, 3), (3, 3)], seen

    step("cancel")
    name = PLAN.get("hold")
    with anyio.CancelScope() as scope:

        async def enough(now, total, message):
            scope.cancel()

        arguments = {"duration": 2, "steps": 10}
        await text_of(client, "trigger-long-running-operation", arguments, progress_callback=enough)
    assert scope.cancelled_caught
    if name:
        async with anyio.create_task_group() as group:
            group.start_soon(client.call_tool, name, {"id": "cancelled-by-python"})
            assert await text_of(client, "echo", {"message": "beside"}) == "Echo: beside"
            group.cancel_scope.cancel()
    assert await text_of(client, "echo", {"message": "after"}) == "Echo: after"

    step("sampling")
    text = await text_of(client, "trigger-sampling-request", {"prompt": "tide?"})
    assert re.search(r"sampled: .*tide\?", text), text

    step("elicitation")
    result = await client.call_tool(PLAN["tool"] + "trigger-elicitation-request", {})
    assert "Ada Elicited" in result.model_dump_json(), result
    assert asked == [PLAN["said"] + "Please provide inputs for the following fields:"], asked

    step("roots")
    assert "file:///workspace/harbour" in await text_of(client, "get-roots-list", {})

    step("resources")
    resources = (await client.list_resources()).resources
    uri = next(str(resource.uri) for resource in resources if str(resource.uri).startswith(PLAN["uri"]))
    contents = (await client.read_resource(uri)).contents
    assert str(contents[0].uri) == uri, contents
    templates = (await client.list_resource_templates()).resource_templates
    assert any(template.uri_template.startswith(PLAN["uri"]) for template in templates), templates

    step("subscribe")
    await client.subscribe_resource(uri)
    await text_of(client, "toggle-subscriber-updates", {})
    with anyio.fail_after(20):
        await updated.wait()
    await text_of(client, "toggle-subscriber-updates", {})
    await client.unsubscribe_resource(uri)
    assert updates[0] == uri, updates

    step("prompts")
    prompts = (await client.list_prompts()).prompts
    assert any(prompt.name == PLAN["tool"] + "args-prompt" for prompt in prompts), prompts
    prompt = await client.get_prompt(PLAN["tool"] + "args-prompt", {"city": "Kiel"})
    assert "Kiel" in prompt.messages[0].content.text, prompt
    ref = types.PromptReference(type="ref/prompt", name=PLAN["tool"] + "completable-prompt")
    answer = await client.complete(ref, {"name": "department", "value": "E"})
    assert answer.completion.values == ["Engineering"], answer

    step("logging")
    await client.set_logging_level("warning")
    step("ping")
    await client.send_ping()


async def main():
    if "url" in PLAN:
        server = PLAN["url"]
    else:
        server = StdioServerParameters(command=PLAN["command"], args=PLAN["args"])
    callbacks = {
        "sampling_callback": sample,
        "elicitation_callback": elicit,
        "list_roots_callback": roots,
        "message_handler": notice,
    }
    with anyio.fail_after(100):
        async with Client(server, mode=PLAN.get("mode", "legacy"), **callbacks) as client:
            await use(client)
    print(json.dumps({"client": "python", "done": done}))


anyio.run(main)
