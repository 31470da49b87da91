// The tokens of an answer: how likely each was, and what else was. They are found again in the shown text, so that
// pointing at a word, or walking with the arrow keys, shows the numbers behind it.

import { find, make } from "./dom.js";
import { number, say } from "./words.js";

/** Makes what is kept of each token: `{text, name, log, top}`; `text` is what it adds to the answer. */
export function reader() {
  const decoder = new TextDecoder();
  return ({ token, bytes, logprob, top_logprobs: top }) => ({
    text: bytes ? decoder.decode(new Uint8Array(bytes), { stream: true }) : token, // "" until a character is whole
    name: token,
    log: rounded(logprob),
    top: (top ?? []).map((other) => [other.token, rounded(other.logprob)]),
  });
}

const rounded = (value) => Math.round(value * 1e4) / 1e4;

/**
 * `[{start, end, first, last}]`: which tokens, from `first` to `last`, made the text from `start` to `end`. Tokens that
 * show nothing (special ones, pieces of a character) belong to the span that comes after them, if any does.
 */
export function spans(text, tokens) {
  const found = [];
  let [at, first] = [0, 0];
  tokens.forEach((token, last) => {
    const piece = [token.text, token.text.trimStart()].find((piece) => piece && text.startsWith(piece, at));
    if (!piece) return;
    found.push({ start: at, end: at + piece.length, first, last });
    [at, first] = [at + piece.length, last + 1];
  });
  return found;
}

/** What shows `text` from `start` to `end`: text nodes, and where tokens are known a `<span class="token">` for each. */
export function leafFor(text, tokens) {
  const known = tokens ? spans(text, tokens) : [];
  return (start, end) => {
    const nodes = [];
    let at = start;
    for (let index = firstAfter(known, start); known[index]?.start < end; index++) {
      const stop = Math.min(end, known[index].end);
      nodes.push(tokenElement(text.slice(at, stop), known[index], tokens));
      at = stop;
    }
    return at < end ? [...nodes, text.slice(at, end)] : nodes;
  };
}

/** The index of the first span that ends after `at`. */
function firstAfter(known, at) {
  let [low, high] = [0, known.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (known[middle].end > at) high = middle;
    else low = middle + 1;
  }
  return low;
}

function tokenElement(text, { first, last }, tokens) {
  const element = make("span", { className: "token", tokens: tokens.slice(first, last + 1) }, text);
  const surprise = 1 - Math.exp(Math.min(...element.tokens.map(({ log }) => log)));
  element.style.setProperty("--surprise", surprise.toFixed(3));
  return element;
}

/** Lets the tokens in `place` show their card: on hover, on a tap, and by arrow keys while a text has the focus. */
export function watchTokens(place) {
  place.addEventListener("pointerover", ({ target, pointerType }) => pointerType === "mouse" && showOrHide(target));
  place.addEventListener("pointerleave", ({ pointerType }) => pointerType === "mouse" && hide());
  place.addEventListener("click", ({ target }) => showOrHide(target));
  place.addEventListener("keydown", walk);
  place.addEventListener("focusout", hide);
  find("scroll").addEventListener("scroll", hide);
}

const showOrHide = (target) => (target.classList.contains("token") ? show(target) : hide());

const STEPS = { ArrowRight: 1, ArrowLeft: -1 };

function walk(event) {
  if (!event.target.matches(".body")) return;
  if (event.key === "Escape") hide();
  if (!STEPS[event.key]) return;
  const all = [...event.target.querySelectorAll(".token")];
  const now = all.findIndex((token) => token.classList.contains("shown"));
  const token = all[now < 0 ? 0 : Math.max(0, Math.min(all.length - 1, now + STEPS[event.key]))];
  if (!token) return;
  event.preventDefault();
  token.scrollIntoView({ block: "nearest" });
  show(token);
  find("status").textContent = find("card").innerText;
}

function hide() {
  find("card").hidden = true;
  for (const token of document.querySelectorAll(".token.shown")) token.classList.remove("shown");
}

function show(element) {
  hide();
  element.classList.add("shown");
  const card = find("card");
  card.replaceChildren(...element.tokens.map(description));
  card.hidden = false;
  const word = element.getClientRects()[0];
  const top = word.top - card.offsetHeight - 8;
  card.style.left = `${Math.max(8, Math.min(word.left, innerWidth - card.offsetWidth - 8))}px`;
  card.style.top = `${top > 8 ? top : word.bottom + 8}px`;
}

/** One token: its probability, its log-probability, and the likeliest tokens in its place, itself marked. */
function description({ name, log, top }) {
  const others = top.some(([other]) => other === name) ? top : [...top, [name, log]];
  return make(
    "div",
    {},
    make("p", {}, make("code", {}, visible(name)), make("span", {}, percent(log)), make("span", { className: "faint" }, `${say("logProbability")} ${minus(number(log, 3))}`)),
    make("ol", {}, ...others.map((other) => alternative(...other, other[0] === name))),
  );
}

function alternative(name, log, chosen) {
  const bar = make("i");
  bar.style.width = `${(100 * Math.exp(log)).toFixed(1)}%`;
  return make("li", { className: chosen ? "chosen" : "" }, make("code", {}, visible(name)), make("span", { className: "bar" }, bar), make("span", {}, percent(log)));
}

function percent(log) {
  const share = 100 * Math.exp(log);
  return share > 0 && share < 0.01 ? "< 0.01 %" : `${number(share, share < 10 ? 2 : 1)} %`;
}

const minus = (text) => text.replace("-", "−");

/** Spaces and line ends of a token, made visible. */
const visible = (name) => name.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "∅";
