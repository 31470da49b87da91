// The turns of a conversation as they are shown. A node keeps its article as long as the page lives, so that an answer
// that grows is not drawn anew, and what the reader has selected stays selected.

import { copy, find, icon, iconButton, make } from "./dom.js";
import { render } from "./markdown.js";
import { turns } from "./store.js";
import { leafFor } from "./tokens.js";
import { modelName, number, say } from "./words.js";

const live = new WeakSet(); // answers that are being made
let articles = new WeakMap();

/** Says whether `node` is being answered. */
export function setLive(node, now) {
  now ? live.add(node) : live.delete(node);
}

/** Draws everything anew the next time, in another language or with other settings. */
export function forget() {
  articles = new WeakMap();
}

/** Shows `conversation`; `act` has `again(parent)`, `choose(parent, index)` and `revise(parent, node, text)`. */
export function paint(conversation, act) {
  const shown = turns(conversation);
  const system = conversation.settings.system_prompt;
  const head = system && shown.length ? [make("article", { className: "turn system" }, who(say("system")), make("div", { className: "body" }, make("p", {}, system)))] : [];
  for (const turn of shown) if (!articles.has(turn.node)) articles.set(turn.node, article(turn.node));
  find("transcript").replaceChildren(...head, ...shown.map(({ node }) => articles.get(node)));
  for (const turn of shown) refresh(turn, conversation, act);
}

/** Brings one turn up to date. */
export function refresh({ parent, node }, conversation, act) {
  const [, body, foot] = articles.get(node).children;
  articles.get(node).setAttribute("aria-busy", live.has(node));
  if (body.matches(".editing")) return;
  const { markdown, shade } = conversation.settings;
  if (node.role === "user") body.replaceChildren(make("p", {}, node.content));
  else render(body, node.content, leafFor(node.content, node.tokens), markdown);
  body.classList.toggle("shade", Boolean(shade));
  body.classList.toggle("waiting", live.has(node) && !node.content);
  if (node.tokens?.length) Object.assign(body, { tabIndex: 0, ariaDescription: say("tokensHelp") });
  foot.replaceChildren(...notes(node, parent, act), ...buttons(parent, node, conversation, act));
}

const who = (name) => make("h3", { className: "who" }, name);

function article(node) {
  const name = node.role === "user" ? say("you") : modelName(node.model);
  return make("article", { className: `turn ${node.role}` }, who(name), make("div", { className: "body" }), make("footer"));
}

/** What is to be said about an answer: what went wrong, where it was cut, its figures. */
function notes(node, parent, act) {
  if (node.role === "user") return [];
  const found = [];
  const note = (words, role = "note") => found.push(make("p", { className: role, role }, words));
  if (node.error) note(node.error, "alert");
  else if (live.has(node) && !node.content) note(say("wait"));
  else if (!live.has(node) && node.finish !== "stop") note(say(node.finish === "length" ? "length" : "stopped"));
  if (node.error) found.push(make("button", { type: "button", onclick: () => act.again(parent) }, say("retry")));
  if (node.citations?.length) found.push(sources(node.citations));
  if (node.stats?.tokens) found.push(figures(node.stats));
  return found;
}

/** The documents that an answer stands on, each with what the model read of it. */
function sources(citations) {
  const shown = citations.map(({ number, file, page, line, last_line, title, text }) => {
    const place = page ? say("page", { page }) : say("lines", { first: line, last: last_line });
    const words = [`[${number}] ${file}, ${place}`, title].filter(Boolean).join(" · ");
    return make("li", {}, make("details", {}, make("summary", {}, words), make("blockquote", {}, text)));
  });
  return make("section", { className: "sources", ariaLabel: say("sources") }, make("h4", {}, say("sources")), make("ul", {}, ...shown));
}

function figures({ tokens, first, speed, prompt, cached }) {
  const words = say("figures", { tokens: number(tokens), speed: number(speed, 1), first: number(first, 2) });
  const title = prompt === undefined ? "" : say("prompt", { tokens: number(prompt), cached: number(cached) });
  return make("p", { className: "figures", title }, words);
}

function buttons(parent, node, conversation, act) {
  const busy = turns(conversation).some((turn) => live.has(turn.node));
  if (busy) return [];
  const copied = iconButton("copy", say("copy"), async () => {
    await copy(node.content);
    copied.replaceChildren(icon("check"));
    find("status").textContent = say("copied");
  });
  const again = iconButton("again", say("again"), () => act.again(parent));
  const edit = iconButton("edit", say("edit"), () => startEditing(parent, node, conversation, act));
  const all = [...versions(parent, act), copied, edit, ...(node.role === "user" ? [] : [again])];
  return [make("span", { className: "actions" }, ...all)];
}

/** The way from one version of a turn to the next, where there are several. */
function versions(parent, act) {
  const { next, chosen } = parent;
  if (next.length < 2) return [];
  const step = (name, words, to) => Object.assign(iconButton(name, say(words), () => act.choose(parent, to)), { disabled: !next[to] });
  const place = make("span", { className: "place" }, say("version", { this: chosen + 1, all: next.length }));
  return [step("back", "earlier", chosen - 1), place, step("next", "later", chosen + 1)];
}

function startEditing(parent, node, conversation, act) {
  const [, body, foot] = articles.get(node).children;
  const area = make("textarea", { value: node.content, rows: Math.min(12, node.content.split("\n").length + 1) });
  area.setAttribute("aria-label", say("editing"));
  const end = (text) => {
    body.classList.remove("editing");
    body.replaceChildren();
    if (text?.trim()) act.revise(parent, node, text);
    else refresh({ parent, node }, conversation, act);
  };
  area.onkeydown = (event) => {
    if (event.key === "Escape") end();
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing && node.role === "user") {
      event.preventDefault();
      end(area.value);
    }
  };
  body.classList.add("editing");
  body.replaceChildren(area);
  const keep = make("button", { type: "button", className: "main", onclick: () => end(area.value) }, say(node.role === "user" ? "resend" : "keep"));
  foot.replaceChildren(make("button", { type: "button", onclick: () => end() }, say("cancel")), keep);
  area.focus();
}
