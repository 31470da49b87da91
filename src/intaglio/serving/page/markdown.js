// The little Markdown that models write: headings, lists, code, bold and italics. Everything else stays as it came.
// No link, no picture, no HTML: a model's text can neither load nor run anything.
//
// Blocks keep the offsets of their text in the source, and every piece of text goes through `leaf(start, end)`, which
// returns the nodes that show it; so tokens can be found again in what is shown.

import { copy, icon, iconButton, make } from "./dom.js";
import { say } from "./words.js";

const FENCE = /^\s*(```+|~~~+)\s*([\w+#.-]*)/;
const HEADING = /^#{1,6}\s+/;
const ITEM = /^(\s*)([-*+•]|(\d{1,9})[.)])\s+/;
const RULE = /^\s*([-*_])(\s*\1){2,}\s*$/;
const MARKS = [["**", "strong"], ["*", "em"]];

/** Shows `source` in `place`. Blocks that have not changed since the last call are left alone. */
export function render(place, source, leaf, formatted = true) {
  const found = formatted ? blocks(source) : [{ kind: "plain", start: 0, end: source.length }];
  found.forEach((block, index) => {
    const text = source.slice(block.start, block.end);
    const old = place.children[index];
    if (old?.source === text && old.offset === block.start) return;
    const element = Object.assign(BUILD[block.kind](block, source, leaf), { source: text, offset: block.start });
    old ? old.replaceWith(element) : place.append(element);
  });
  while (place.children.length > found.length) place.lastChild.remove();
}

/** `[{kind, start, end, ...}]`, in the order of the text. */
export function blocks(source) {
  const lines = linesOf(source);
  const found = [];
  for (let at = 0; at < lines.length; ) {
    const take = [fence, rule, heading, list, paragraph].find((take) => take(lines, at, found));
    at = take ? found.at(-1).next : at + 1;
  }
  return found;
}

function linesOf(source) {
  let start = 0;
  return source.split("\n").map((text) => {
    const line = { text, start, end: start + text.length };
    start = line.end + 1;
    return line;
  });
}

function fence(lines, at, found) {
  const [, mark, language] = FENCE.exec(lines[at].text) ?? [];
  if (!mark) return false;
  let last = at + 1;
  while (last < lines.length && lines[last].text.trim() !== mark) last++;
  const inner = { from: lines[at + 1]?.start ?? lines[at].end, to: lines[last - 1].end };
  const end = lines[Math.min(last, lines.length - 1)].end;
  return found.push({ kind: "code", start: lines[at].start, end, next: last + 1, language, ...inner });
}

function rule(lines, at, found) {
  const { text, start, end } = lines[at];
  return RULE.test(text) && found.push({ kind: "rule", start, end, next: at + 1 });
}

function heading(lines, at, found) {
  const { text, start, end } = lines[at];
  const mark = HEADING.exec(text)?.[0];
  return mark && found.push({ kind: "heading", start, end, next: at + 1, from: start + mark.length });
}

/** Items one after the other, ordered or not as the first is; a line indented below an item belongs to it. */
function list(lines, at, found) {
  if (!ITEM.test(lines[at].text)) return false;
  const items = [];
  let next = at;
  for (; next < lines.length && !FENCE.test(lines[next].text); next++) {
    const { text, start, end } = lines[next];
    const [mark, indent, , value] = ITEM.exec(text) ?? [];
    if (mark) items.push({ depth: Math.min(3, indent.replaceAll("\t", "  ").length >> 1), value, from: start + mark.length, to: end });
    else if (/^\s+\S/.test(text)) items.at(-1).to = end;
    else if (text.trim() || !ITEM.test(lines[next + 1]?.text ?? "")) break;
  }
  return found.push({ kind: "list", start: lines[at].start, end: items.at(-1).to, next, items });
}

function paragraph(lines, at, found) {
  const ends = (line) => !line.text.trim() || [FENCE, HEADING, ITEM, RULE].some((mark) => mark.test(line.text));
  let next = at;
  while (next < lines.length && !ends(lines[next])) next++;
  return next > at && found.push({ kind: "paragraph", start: lines[at].start, end: lines[next - 1].end, next });
}

const BUILD = {
  plain: ({ start, end }, _, leaf) => make("p", {}, ...leaf(start, end)),
  rule: () => make("hr"),
  heading: ({ from, end }, source, leaf) => make("p", { className: "heading" }, ...inline(source, from, end, leaf)),
  paragraph: ({ start, end }, source, leaf) => make("p", {}, ...inline(source, start, end, leaf)),
  list({ items }, source, leaf) {
    const build = ({ depth, value, from, to }) => {
      const item = make("li", { className: `depth-${depth}` }, ...inline(source, from, to, leaf));
      if (value) item.value = Number(value);
      else item.classList.add("bullet");
      return item;
    };
    return make(items[0].value ? "ol" : "ul", {}, ...items.map(build));
  },
  code({ from, to, language }, source, leaf) {
    const button = iconButton("copy", say("copy"), async () => {
      await copy(source.slice(from, to));
      button.replaceChildren(icon("check"));
    });
    const head = make("header", {}, make("span", {}, language || ""), button);
    const code = make("pre", { tabIndex: 0 }, make("code", {}, ...leaf(from, Math.max(from, to))));
    return make("figure", { className: "code" }, head, code);
  },
};

/** The nodes that show `source` from `start` to `end`, marks turned into elements. Linear in the length of the text. */
function inline(source, start, end, leaf) {
  const nodes = [];
  const open = new Set(MARKS.map(([mark]) => mark)); // marks that may still find their partner
  let plain = start;
  for (let at = start; at < end; ) {
    const { mark, tag, close } = marked(source, at, end, open);
    if (tag) {
      const [from, to] = [at + mark.length, close];
      nodes.push(...leaf(plain, at), make(tag, {}, ...(tag === "code" ? leaf(from, to) : inline(source, from, to, leaf))));
      plain = to + mark.length;
    }
    at = tag ? plain : at + mark.length;
  }
  return [...nodes, ...leaf(plain, end)];
}

/** `{mark, tag, close}` for a mark that opens at `at` and closes before `end`; without `tag`, what to step over. */
function marked(source, at, end, open) {
  if (source[at] !== "`" && source[at] !== "*") return { mark: source[at] };
  const tick = /^`*/.exec(source.slice(at, at + 80))[0];
  for (const [mark, tag] of tick ? [[tick, "code"]] : MARKS) {
    if (!source.startsWith(mark, at) || !(tick || open.has(mark))) continue;
    const from = at + mark.length;
    let close = source.indexOf(mark, from);
    if (close < 0 || close + mark.length > end) open.delete(mark);
    else if (close > from && (tick || !/^\s|\s$/.test(source.slice(from, close)))) {
      if (mark === "**" && source[close + 2] === "*" && close + 3 <= end) close++; // ***both***
      return { mark, tag, close };
    }
  }
  return { mark: tick || (source.startsWith("**", at) ? "**" : "*") };
}
