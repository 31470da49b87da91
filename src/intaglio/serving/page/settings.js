// The sampling panel: the fields of a conversation's settings. An empty field is not sent.

import { find, make } from "./dom.js";
import { forgetKey, key } from "./api.js";
import { say } from "./words.js";

const NUMBERS = {
  temperature: { min: 0, max: 2, step: "any" },
  top_p: { min: 0, max: 1, step: "any" },
  top_k: { min: 0, step: 1 },
  min_p: { min: 0, max: 1, step: "any" },
  max_tokens: { min: 1, step: 1 },
  seed: { step: 1 },
};
const TICKS = ["logprobs", "markdown", "shade"];
const HINTED = new Set(["logprobs", ...Object.keys(NUMBERS)]);

/** What the settings add to a request. */
export function sampling(settings) {
  const set = Object.keys(NUMBERS).filter((name) => settings[name] !== undefined);
  const chosen = Object.fromEntries(set.map((name) => [name, settings[name]]));
  return settings.logprobs ? { ...chosen, logprobs: true, top_logprobs: 5 } : chosen;
}

/** Fills the panel with `settings`; `changed()` is called after each change of them. */
export function showSettings(settings, changed) {
  const put = (name, value) => {
    settings[name] = value;
    changed();
  };
  find("fields").replaceChildren(
    make("p", { className: "small" }, say("samplingHint")),
    systemPrompt(settings, put),
    ...Object.entries(NUMBERS).map(([name, limits]) => numberField(name, limits, settings, put)),
    make("button", { type: "button", onclick: () => reset(settings, changed) }, say("reset")),
    make("h3", {}, say("view")),
    ...TICKS.map((name) => tick(name, settings, put)),
    ...(key() ? [make("button", { type: "button", onclick: () => (forgetKey(), changed()) }, say("keyForget"))] : []),
  );
}

/** Whether every field holds what it may; the first that does not gets the focus. */
export function checkSettings() {
  return find("fields").checkValidity();
}

function reset(settings, changed) {
  for (const name of [...Object.keys(NUMBERS), "system_prompt"]) delete settings[name];
  changed();
  showSettings(settings, changed);
}

function field(name, input) {
  input.id = `field-${name}`;
  const label = make("label", { htmlFor: input.id }, say(name));
  const hint = HINTED.has(name) ? [make("p", { id: `hint-${name}`, className: "small" }, say(`${name}Hint`))] : [];
  if (hint.length) input.setAttribute("aria-describedby", `hint-${name}`);
  return input.type === "checkbox" ? make("div", { className: "tick" }, input, label, ...hint) : make("div", {}, label, input, ...hint);
}

function systemPrompt(settings, put) {
  const input = make("textarea", { rows: 3, value: settings.system_prompt ?? "" });
  input.oninput = () => put("system_prompt", input.value.trim() ? input.value : undefined);
  return field("system_prompt", input);
}

/** A number, or nothing; one out of range is marked and leaves the setting unset. */
function numberField(name, limits, settings, put) {
  const input = make("input", { type: "number", inputMode: "decimal", placeholder: say("default"), ...limits, value: settings[name] ?? "" });
  input.oninput = () => put(name, input.value !== "" && input.validity.valid ? input.valueAsNumber : undefined);
  return field(name, input);
}

function tick(name, settings, put) {
  const input = make("input", { type: "checkbox", checked: Boolean(settings[name]) });
  input.onchange = () => put(name, input.checked);
  return field(name, input);
}
