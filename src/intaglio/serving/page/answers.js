// Answers: asking the server for one, and taking it up piece by piece.

import { ApiError, stream } from "./api.js";
import { sampling } from "./settings.js";
import { add, node, turns } from "./store.js";
import { reader } from "./tokens.js";

const running = new Map(); // a conversation's id -> its AbortController

export const isRunning = (conversation) => running.has(conversation.id);

export const stop = (conversation) => running.get(conversation.id)?.abort();

/**
 * The messages from the first to `last`, as the server takes them. An answer that came to nothing is left out, and the
 * messages around it are one: many chat templates refuse two of the same role in a row.
 */
export function messages(conversation, last) {
  const system = conversation.settings.system_prompt;
  const shown = turns(conversation).map((turn) => turn.node);
  const said = shown.slice(0, shown.indexOf(last) + 1).filter(({ content }) => content);
  const all = system ? [{ role: "system", content: system }] : [];
  for (const { role, content } of said) {
    if (all.at(-1)?.role === role) all.at(-1).content += `\n\n${content}`;
    else all.push({ role, content });
  }
  return all;
}

/**
 * Asks `model()` for an answer below `parent`. `hooks` has `began(reply)`, `grew(reply)` and `ended(reply)`, and
 * `askKey` as in api.js. What goes wrong is kept in `reply.error`; an answer that was stopped has no `finish`.
 */
export async function answer(conversation, parent, model, hooks) {
  const body = { messages: messages(conversation, parent), ...sampling(conversation.settings) };
  const reply = add(parent, node("assistant", ""));
  const control = new AbortController();
  running.set(conversation.id, control);
  hooks.began(reply);
  try {
    reply.model = await model();
    await receive(reply, { ...body, model: reply.model }, { askKey: hooks.askKey, signal: control.signal }, hooks.grew);
  } catch (error) {
    if (!control.signal.aborted) reply.error = explain(error);
  }
  running.delete(conversation.id);
  hooks.ended(reply);
}

/** What an error says; one that is no `ApiError` is a mistake of ours and goes to the console too. */
export function explain(error) {
  if (!(error instanceof ApiError)) console.error(error);
  return error.message;
}

async function receive(reply, body, options, grew) {
  const read = reader();
  const clock = stopwatch();
  for await (const { choices: [choice], usage } of stream(body, options)) {
    const content = choice?.delta?.content ?? "";
    const tokens = choice?.logprobs?.content ?? [];
    reply.content += content;
    reply.finish = choice?.finish_reason ?? reply.finish;
    reply.citations = choice?.citations ?? reply.citations;
    if (tokens.length) (reply.tokens ??= []).push(...tokens.map(read));
    clock.count(tokens.length || (content ? 1 : 0));
    reply.stats = clock.figures(usage);
    grew(reply);
  }
}

/** Counts tokens as they come. Speed is that of the tokens after the first, whose time is the prompt's. */
function stopwatch() {
  const start = performance.now();
  let [tokens, first, last] = [0, 0, 0];
  return {
    count(more) {
      if (!more) return;
      last = (performance.now() - start) / 1000;
      first ||= last;
      tokens += more;
    },
    figures(usage) {
      const all = usage?.completion_tokens ?? tokens;
      const speed = last > first ? (all - 1) / (last - first) : all / (last || 1);
      const prompt = usage && { prompt: usage.prompt_tokens, cached: usage.prompt_tokens_details?.cached_tokens ?? 0 };
      return { tokens: all, first, speed, ...prompt };
    },
  };
}
