// The chat page: one conversation is shown, and each may have an answer that is being made.

import { answer, explain, isRunning, messages, stop } from "./answers.js";
import { models } from "./api.js";
import { download, find, iconButton, make, rosette } from "./dom.js";
import { announce, askKey, atBottom, closeDrawers, setDrawer, setPrompt, startFrame, toast, toBottom } from "./frame.js";
import { checkSettings, showSettings } from "./settings.js";
import * as store from "./store.js";
import { watchTokens } from "./tokens.js";
import { forget, paint, refresh, setLive } from "./transcript.js";
import { modelName, number, say } from "./words.js";

const loaded = new Map(); // id -> conversation, so that one answered in the background stays the same object
const actions = { again: ask, choose, revise };
let current = store.create();
let served = []; // the server's models

// What is shown

/** Shows the conversation that the address names, or a new one. */
function open() {
  const id = location.hash.slice(1);
  const found = loaded.get(id) ?? store.load(id);
  current = found?.root ? found : store.create();
  loaded.set(current.id, current);
  showAll();
  toBottom();
  closeDrawers();
}

function showAll() {
  paint(current, actions);
  showSettings(current.settings, settingsChanged);
  showModels();
  showList();
  showState();
}

function showList() {
  const all = store.all();
  const empty = make("li", { className: "small" }, say("none"));
  find("conversations").replaceChildren(...(all.length ? all.map(listItem) : [empty]));
}

function listItem(conversation) {
  const title = store.title(conversation);
  const link = make("a", { href: `#${conversation.id}`, title }, title);
  if (conversation.id === current.id) link.setAttribute("aria-current", "page");
  const item = make("li", {}, link, iconButton("bin", say("remove", { title }), () => remove(conversation.id)));
  item.classList.toggle("running", isRunning(conversation));
  return item;
}

function showModels() {
  const wanted = current.settings.model;
  find("model").replaceChildren(...served.map(({ id }) => make("option", { value: id, selected: id === wanted }, modelName(id))));
  find("model").disabled = served.length < 2;
}

/** What depends on the state: the welcome, the send or stop button, the room left in the model's context. */
function showState() {
  const tip = store.tip(current);
  const model = served.find(({ id }) => id === find("model").value);
  const used = (tip.stats?.prompt ?? 0) + (tip.stats?.tokens ?? 0);
  const all = model?.max_model_len;
  find("send").hidden = isRunning(current);
  find("stop").hidden = !isRunning(current);
  find("save").hidden = tip.role !== "assistant";
  find("welcome").hidden = tip !== current.root;
  find("welcome").replaceChildren(...(tip === current.root ? welcome(model?.id) : []));
  find("room").textContent = used && all ? say("room", { used: number(used), all: number(all) }) : "";
  document.title = store.title(current) || "Intaglio";
}

function welcome(model) {
  const example = (text) => make("button", { type: "button", onclick: () => (setPrompt(text), submit()) }, text);
  const hint = model ? [make("p", {}, say("welcomeHint", { model: modelName(model) }))] : [];
  const examples = make("p", { className: "examples" }, ...say("examples").split("|").map(example));
  return [rosette(), make("h2", {}, say("welcome")), ...hint, examples];
}

// What the reader does with conversations

function go(id) {
  if (location.hash.slice(1) !== id) history.pushState(null, "", `#${id}`);
  open();
}

function keep(conversation) {
  try {
    store.save(conversation);
  } catch {
    toast(say("errorFull"));
  }
}

function remove(id) {
  const conversation = loaded.get(id) ?? store.load(id);
  stop(conversation);
  store.remove(conversation);
  loaded.delete(id);
  if (id === current.id) go("");
  else showList();
  toast(say("removed", { title: store.title(conversation) }), say("undo"), () => {
    keep(conversation);
    go(id);
  });
}

/** One of the other versions of a turn becomes the one shown. */
function choose(parent, index) {
  parent.chosen = index;
  keep(current);
  showAll();
}

/** An edited message of the reader's is answered; an edited answer stands as it is. */
function revise(parent, old, text) {
  const edited = store.add(parent, store.node(old.role, text));
  if (old.role === "user") return ask(edited);
  Object.assign(edited, { model: old.model, finish: "stop" });
  keep(current);
  showAll();
}

function settingsChanged() {
  store.keepSettings(current);
  if (store.tip(current) !== current.root) keep(current);
  forget();
  paint(current, actions);
}

function chooseModel() {
  current.settings.model = find("model").value;
  settingsChanged();
  showState();
}

function saveRow() {
  const row = JSON.stringify({ messages: messages(current, store.tip(current)) });
  download(`${store.title(current).slice(0, 40)}.jsonl`, `${row}\n`);
}

function changedElsewhere(id) {
  if (loaded.has(id) && isRunning(loaded.get(id))) return;
  loaded.delete(id);
  if (id === current.id) open();
  else showList();
}

// Questions and answers

function submit(event) {
  event?.preventDefault();
  const text = find("prompt").value.trim();
  if (!text || isRunning(current)) return;
  if (!checkSettings()) return refuseSettings();
  setPrompt("");
  ask(store.add(store.tip(current), store.node("user", text)));
  toBottom();
}

function refuseSettings() {
  setDrawer("settings", true);
  find("fields").reportValidity();
  toast(say("errorField"));
}

/** Asks for an answer below `parent` and shows it as it comes, also when another conversation is shown meanwhile. */
function ask(parent) {
  if (isRunning(current)) return;
  const conversation = current;
  const hooks = {
    askKey,
    began: (reply) => began(conversation, reply),
    grew: (reply) => draw(conversation, parent, reply),
    ended: (reply) => ended(conversation, reply),
  };
  answer(conversation, parent, chosenModel, hooks);
}

function began(conversation, reply) {
  setLive(reply, true);
  reply.model = find("model").value;
  conversation.updated = Date.now();
  keep(conversation);
  history.replaceState(null, "", `#${conversation.id}`);
  showAll();
  announce(say("answering"));
}

let drawing = false;

/** Draws a growing answer, once a frame at most. */
function draw(conversation, parent, node) {
  if (drawing || conversation !== current) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    if (conversation !== current) return;
    const follow = atBottom();
    refresh({ parent, node }, conversation, actions);
    if (follow) toBottom();
  });
}

function ended(conversation, reply) {
  setLive(reply, false);
  if (loaded.has(conversation.id)) keep(conversation); // unless it was deleted meanwhile
  showList();
  if (conversation !== current) return;
  const follow = atBottom();
  paint(current, actions);
  showState();
  if (follow) toBottom();
  announce(reply.error ?? say("answered", { tokens: number(reply.stats?.tokens ?? 0) }));
}

/** The name of the model chosen, once the server has said which it has. */
async function chosenModel() {
  if (!served.length) {
    served = await models(askKey);
    showModels();
  }
  return find("model").value;
}

async function connect() {
  try {
    await chosenModel();
  } catch (error) {
    toast(explain(error), say("retry"), connect);
  }
  showState();
}

/** The page goes away: what came so far is kept, as if the reader had stopped it. */
function leave() {
  for (const conversation of [...loaded.values()].filter(isRunning)) {
    stop(conversation);
    keep(conversation);
  }
}

function wire() {
  find("composer").onsubmit = submit;
  find("prompt").onkeydown = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
  };
  find("stop").onclick = () => (stop(current), find("prompt").focus());
  find("new").onclick = () => (go(""), find("prompt").focus());
  find("save").onclick = saveRow;
  find("model").onchange = chooseModel;
  find("fields").onsubmit = (event) => event.preventDefault();
  watchTokens(find("transcript"));
  addEventListener("keydown", ({ key }) => key === "Escape" && (closeDrawers() || stop(current)));
  addEventListener("hashchange", open);
  addEventListener("pagehide", leave);
  store.watch(changedElsewhere);
}

startFrame(() => (forget(), showAll()));
wire();
open();
connect();
