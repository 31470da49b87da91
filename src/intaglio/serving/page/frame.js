// What stands around the conversation: drawers, theme, short notices, the message box, the question for a key.

import { useKey } from "./api.js";
import { find, make } from "./dom.js";
import { language, label, say, switchLanguage, translate } from "./words.js";

const THEME = "intaglio.theme";
const DRAWERS = { sidebar: "sidebar-open", settings: "settings-open" };
const narrow = matchMedia("(max-width: 900px)");

/** Opens or closes a drawer; on a narrow screen it lies over the conversation, one at a time. */
export function setDrawer(name, open) {
  if (open) closeDrawers();
  find(name).hidden = !open;
  find(DRAWERS[name]).setAttribute("aria-expanded", open);
  find("scrim").hidden = !narrow.matches || Object.keys(DRAWERS).every((drawer) => find(drawer).hidden);
  if (open && narrow.matches) find(name).querySelector("header button").focus();
}

/** Closes what lies over the conversation; says whether anything did. */
export function closeDrawers() {
  const open = Object.keys(DRAWERS).filter((name) => narrow.matches && !find(name).hidden);
  for (const name of open) {
    setDrawer(name, false);
    find(DRAWERS[name]).focus();
  }
  return open.length > 0;
}

/** A short notice, with a button that does `act` if there is something to offer. */
export function toast(words, offer, act) {
  clearTimeout(toast.timer);
  const hide = () => (find("toast").hidden = true);
  const button = offer && make("button", { type: "button", onclick: () => (hide(), act()) }, offer);
  find("toast").replaceChildren(words, ...(button ? [button] : []));
  find("toast").hidden = false;
  toast.timer = setTimeout(hide, 8000);
}

/** Tells readers of the screen, and nobody else. */
export function announce(words) {
  find("status").textContent = words;
}

export const atBottom = () => find("scroll").scrollHeight - find("scroll").scrollTop - find("scroll").clientHeight < 60;

export function toBottom() {
  find("scroll").scrollTop = find("scroll").scrollHeight;
}

/** Puts `text` into the message box, which is as high as its text. */
export function setPrompt(text) {
  find("prompt").value = text;
  fitPrompt();
}

function fitPrompt() {
  const area = find("prompt");
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight}px`;
}

let asking; // one question at a time, whoever asks

/** Asks the reader for a key; resolves to whether one was given. */
export function askKey(refused) {
  asking ??= new Promise((resolve) => {
    find("key-why").textContent = say(refused ? "keyWrong" : "keyWhy");
    find("key-why").classList.toggle("alert", refused);
    find("key-value").value = "";
    find("key").returnValue = "";
    find("key").onclose = () => {
      asking = undefined;
      resolve(find("key").returnValue === "use");
    };
    find("key").showModal();
  });
  return asking;
}

function takeKey(event) {
  event.preventDefault();
  useKey(find("key-value").value.trim(), find("key-keep").checked);
  find("key").close("use");
}

function setTheme(name) {
  if (name) document.documentElement.dataset.theme = name;
}

function switchTheme() {
  const dark = document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  setTheme(dark === "dark" ? "light" : "dark");
  localStorage.setItem(THEME, document.documentElement.dataset.theme);
}

/** Writes the page in the language chosen. */
function speak() {
  document.documentElement.lang = language() === "zh" ? "zh-Hans" : "en";
  translate(document);
  find("language").textContent = say("otherLanguage");
  label(find("language"), say("otherLanguage"));
}

/** Sets the frame up; `translated()` is called when the reader has chosen the other language. */
export function startFrame(translated) {
  setTheme(localStorage.getItem(THEME));
  speak();
  for (const [name, opener] of Object.entries(DRAWERS)) {
    find(opener).onclick = () => setDrawer(name, find(name).hidden);
    find(`${name}-close`).onclick = () => (setDrawer(name, false), find(opener).focus());
    setDrawer(name, name === "sidebar" && !narrow.matches);
  }
  narrow.onchange = () => setDrawer("sidebar", !narrow.matches);
  find("scrim").onclick = closeDrawers;
  find("theme").onclick = switchTheme;
  find("language").onclick = () => (switchLanguage(), speak(), translated());
  find("prompt").oninput = fitPrompt;
  find("bottom").onclick = toBottom;
  find("scroll").onscroll = () => (find("bottom").hidden = atBottom());
  find("key").querySelector("form").onsubmit = takeKey;
  find("key-cancel").onclick = () => find("key").close();
  if (!narrow.matches) find("prompt").focus();
}
