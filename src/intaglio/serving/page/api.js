// The server's API: https://platform.openai.com/docs/api-reference/chat, as far as the page needs it.

import { say } from "./words.js";

const KEY = "intaglio.key";

/** An error whose message can be shown to the reader as it is. */
export class ApiError extends Error {}

export const key = () => sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY);

export function forgetKey() {
  for (const storage of [sessionStorage, localStorage]) storage.removeItem(KEY);
}

export function useKey(value, keep) {
  forgetKey();
  (keep ? localStorage : sessionStorage).setItem(KEY, value);
}

/** `[{id, max_model_len}]`; `askKey` as for `request`. */
export async function models(askKey) {
  const response = await request("v1/models", { askKey });
  return (await response.json()).data;
}

/** The chunks of a streamed answer to `body`, as the server sends them; throws `ApiError` if the stream ends early. */
export async function* stream(body, { askKey, signal }) {
  const whole = { ...body, stream: true, stream_options: { include_usage: true } };
  const response = await request("v1/chat/completions", { askKey, signal, body: whole });
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(chunk.error.message);
    yield chunk;
  }
  throw new ApiError(say("errorCut"));
}

/** The data of each server-sent event. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch(cut);
    if (done) return;
    const lines = (rest + value).split(/\r?\n/);
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data:")) yield line.slice(5).trim();
  }
}

function cut(error) {
  throw error.name === "AbortError" ? error : new ApiError(say("errorCut"));
}

/** A good response from `path`. `askKey(refused)` resolves to whether there is a new key to try. */
async function request(path, { askKey, signal, body }) {
  for (;;) {
    const response = await send(path, signal, body);
    if (response.ok) return response;
    if (response.status !== 401) throw new ApiError(await reason(response));
    if (!(await askKey(Boolean(key())))) throw new ApiError(say("errorKey"));
  }
}

function send(path, signal, body) {
  const headers = { "Content-Type": "application/json" };
  if (key()) headers.Authorization = `Bearer ${key()}`;
  const options = body ? { method: "POST", body: JSON.stringify(body) } : {};
  return fetch(path, { ...options, headers, signal }).catch((error) => {
    throw error.name === "AbortError" ? error : new ApiError(say("errorReach"));
  });
}

/** What a refusal says, in words for the reader. */
async function reason(response) {
  const answer = await response.json().catch(() => null);
  const message = answer?.error?.message ?? say("errorStatus", { status: response.status });
  if (response.status === 429) return say("errorBusy", { seconds: response.headers.get("Retry-After") ?? 1 });
  return response.status === 503 ? say("errorReady", { message }) : message;
}
