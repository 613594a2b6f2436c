// The Vercel AI SDK: a tool's turn, or a stream aborted half-way.
import { once } from "node:events";
import { stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { model } from "./recipe.mjs";

const add = tool({
  description: "Adds two numbers.",
  inputSchema: z.object({ a: z.number(), b: z.number() }),
  execute: async ({ a, b }) => `luce-${a + b}`,
});

async function turn() {
  const result = streamText({
    model,
    prompt: "What is 40+2?",
    tools: { add },
    stopWhen: stepCountIs(5),
  });
  console.log(await result.text);
}

async function cancel() {
  const abort = new AbortController();
  const { textStream } = streamText({
    model,
    prompt: "Tell me a long story.",
    abortSignal: abort.signal,
  });
  await textStream[Symbol.asyncIterator]().next();
  console.log("streaming");
  await once(process.stdin, "data");
  abort.abort();
  console.log("closed");
  await once(process.stdin, "end");
}

await { turn, cancel }[process.argv[2]]();
