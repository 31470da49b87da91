// Elements are made here, and text becomes text nodes only: nothing on this page is ever parsed as HTML.

import { label } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";

export const find = (id) => document.getElementById(id);

/** An element with properties and children; a child that is a string becomes a text node. */
export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

export function icon(name) {
  const picture = document.createElementNS(SVG, "svg");
  picture.setAttribute("aria-hidden", "true");
  picture.append(document.createElementNS(SVG, "use"));
  picture.firstChild.setAttribute("href", `#icon-${name}`);
  return picture;
}

/** A button that shows a picture and is named by `words`. */
export function iconButton(name, words, onclick) {
  const button = make("button", { type: "button", className: "quiet", onclick }, icon(name));
  label(button, words);
  return button;
}

/** A line ornament as banknotes have, which are printed in intaglio: one curve that winds round `turns` times. */
export function rosette(turns = 24, steps = 1800) {
  const points = Array.from({ length: steps + 1 }, (_, step) => {
    const angle = (14 * Math.PI * step) / steps; // seven rounds
    const radius = 0.62 + 0.34 * Math.cos((angle * turns) / 7);
    return `${(radius * Math.cos(angle)).toFixed(4)} ${(radius * Math.sin(angle)).toFixed(4)}`;
  });
  const picture = document.createElementNS(SVG, "svg");
  picture.setAttribute("viewBox", "-1 -1 2 2");
  picture.setAttribute("aria-hidden", "true");
  picture.classList.add("rosette");
  picture.append(document.createElementNS(SVG, "path"));
  picture.firstChild.setAttribute("d", `M${points.join("L")}`);
  return picture;
}

/** Puts `text` on the clipboard, also where the page is not served from a secure address. */
export async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = make("textarea", { value: text, className: "unseen" });
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

/** Lets the browser save `text` as a file. */
export function download(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
