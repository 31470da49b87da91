// Conversations, kept in the browser, each under a key of its own so that two tabs do not overwrite each other's.
// A conversation is a tree: another answer or an edited message is one more child of the same parent, and
// `chosen` says which child is shown. So nothing that was said is lost.

const PREFIX = "intaglio.chat.";
const LAST = "intaglio.settings";

export const node = (role, content) => ({ role, content, next: [], chosen: 0 });

/** Adds `child` below `parent` and shows it. */
export function add(parent, child) {
  parent.chosen = parent.next.push(child) - 1;
  return child;
}

/** What is shown, from the first message on: each with its parent. */
export function turns(conversation) {
  const shown = [];
  for (let parent = conversation.root; parent.next.length; parent = parent.next[parent.chosen])
    shown.push({ parent, node: parent.next[parent.chosen] });
  return shown;
}

/** The node that the next message goes below. */
export const tip = (conversation) => turns(conversation).at(-1)?.node ?? conversation.root;

export const title = (conversation) => conversation.root.next[conversation.root.chosen]?.content.trim().slice(0, 80) ?? "";

/** A conversation with the settings that were last used. */
export function create() {
  const now = Date.now();
  const id = now.toString(36) + Math.random().toString(36).slice(2, 8);
  return { id, updated: now, settings: lastSettings(), root: node("root", "") };
}

export const lastSettings = () => read(LAST) ?? { logprobs: true, markdown: true };

export function keepSettings(conversation) {
  localStorage.setItem(LAST, JSON.stringify(conversation.settings));
}

/** All conversations, the latest first. */
export function all() {
  const keys = Object.keys(localStorage).filter((key) => key.startsWith(PREFIX));
  return keys.map(read).filter((found) => found?.root).sort((a, b) => b.updated - a.updated);
}

export const load = (id) => read(PREFIX + id);

function read(key) {
  try {
    return JSON.parse(localStorage.getItem(key));
  } catch {
    return null; // not of our writing
  }
}

/** Keeps a conversation; throws where the browser has no room even without the token details of the others. */
export function save(conversation) {
  const write = () => localStorage.setItem(PREFIX + conversation.id, JSON.stringify(conversation));
  try {
    write();
  } catch {
    for (const other of all()) if (other.id !== conversation.id) localStorage.setItem(PREFIX + other.id, withoutTokens(other));
    write();
  }
}

const withoutTokens = (conversation) => JSON.stringify(conversation, (key, value) => (key === "tokens" ? undefined : value));

export const remove = (conversation) => localStorage.removeItem(PREFIX + conversation.id);

/** Calls `changed` when another tab has written a conversation. */
export function watch(changed) {
  addEventListener("storage", ({ key }) => key?.startsWith(PREFIX) && changed(key.slice(PREFIX.length)));
}
