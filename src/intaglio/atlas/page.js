// The reader's language and theme: by ?lang= and ?theme=, by the buttons, else by the browser.
(() => {
  const root = document.documentElement, asked = new URLSearchParams(location.search);
  const browser = navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en";
  const choose = (name, value) => {
    root.dataset[name] = value;
    if (name === "lang") root.lang = value;
    for (const button of document.querySelectorAll(`button[data-${name}]`))
      button.setAttribute("aria-pressed", button.dataset[name] === value);
  };
  for (const [name, usual] of [["lang", browser], ["theme", "auto"]]) {
    const values = [...document.querySelectorAll(`button[data-${name}]`)].map((button) => button.dataset[name]);
    choose(name, values.includes(asked.get(name)) ? asked.get(name) : usual);
  }
  for (const button of document.querySelectorAll(".choose button"))
    button.addEventListener("click", () => Object.entries(button.dataset).forEach(([name, value]) => choose(name, value)));
  if (matchMedia("(prefers-reduced-motion: reduce)").matches)
    for (const svg of document.querySelectorAll("svg")) svg.pauseAnimations();
})();
