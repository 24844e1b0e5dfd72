// What the views share: elements, numbers in words, questions to the program, the state in the address.
"use strict";

const Page = (() => {
  let program = null;
  const views = {};  // name -> { question(state) -> {words, files, stdin} or null, show(answer, state, box) }

  // element("p", {class: "soft"}, "text", child, ...)
  function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
      else if (value !== null && value !== false) made.setAttribute(key, value === true ? "" : value);
    }
    made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
    return made;
  }

  // A name that may be broken behind its underscores.
  const named = (name, kind = "b") => element(kind, { class: "name" }, name.split(/(?<=_)/).flatMap((part) => [part, document.createElement("wbr")]));

  function table(heads, rows, attributes = {}) {
    const cell = (kind, text, head) => element(kind, { class: head.startsWith("#") ? "number" : null }, text);
    return element("div", { class: "scroll" }, element("table", attributes,
      element("thead", {}, element("tr", {}, heads.map((head) => cell("th", head.replace(/^#/, ""), head)))),
      element("tbody", {}, rows.map((row) => element("tr", { class: row.chosen ? "chosen" : null },
        (row.cells ?? row).map((text, i) => cell("td", text, heads[i])))))));
  }

  // In the units of the program.
  function bytes(count) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    while (count >= 1024 && unit < units.length - 1) { count /= 1024; ++unit; }
    return `${unit === 0 ? Math.round(count) : count.toFixed(2)} ${units[unit]}`;
  }
  const percent = (ratio) => (ratio < 0.0005 ? "none" : `+${(100 * ratio).toFixed(1)} %`);

  // As a shell reads it.
  const quoted = (word) => (/^[\w.,:=+/@%-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);
  function commandLine({ words, stdin }) {
    const isData = words.includes("--places");  // which only JSON has
    const line = ["fp4moe", ...words.filter((word) => isData || word !== "--json")].map(quoted).join(" ");
    return stdin ? `${line} < vllm.log` : line;
  }

  // The answer as an object; an error is one, too.
  function ask(question) {
    const said = program.run(question.words, question);
    try {
      return { status: said.status, ...JSON.parse(said.out) };
    } catch {
      throw new Error(said.err || "The program gave no answer.");
    }
  }

  const sentence = (text) => (text ? text[0].toUpperCase() + text.slice(1).replace(/([^.!?])$/, "$1.") : "");
  function errorBox(error) {
    return [
      element("p", { class: "verdict no" }, sentence(error.message)),
      element("p", {}, [error.found ? `Found: ${error.found}. ` : "", error.expected ? `Expected: ${error.expected}.` : ""].join("")),
      error.remedy ? element("p", {}, element("b", {}, "Do: "), sentence(error.remedy)) : null,
      element("p", { class: "soft" }, "Error id ", element("code", {}, error.id)),
    ].filter(Boolean);
  }

  const section = (name) => document.getElementById(name);
  const formOf = (name) => section(name).querySelector("form");
  function stateOf(name) {
    return Object.fromEntries([...new FormData(formOf(name))].filter(([, value]) => typeof value === "string"));
  }

  // Fields as they were when the page came, so that links name only what differs.
  const defaults = {};
  function fill(name, state) {
    for (const field of formOf(name).elements) {
      if (!field.name) continue;
      const value = state[field.name] ?? defaults[name][field.name] ?? "";
      if (field.type === "radio") field.checked = field.value === value;
      else field.value = value;
      if (field.tagName === "SELECT" && field.selectedIndex < 0) field.selectedIndex = 0;
    }
  }
  // A text of this length is no config.json and no message: it is neither read nor put into a link.
  const MAX_TEXT = 1 << 20, MAX_LINKED = 1 << 14;
  const tooLong = (state) => Object.values(state).find((value) => value.length > MAX_TEXT);
  const isLinkWhole = (name) => Object.values(stateOf(name)).every((value) => value.length <= MAX_LINKED);

  function address(name) {
    const changed = Object.entries(stateOf(name)).filter(([key, value]) => value !== (defaults[name][key] ?? "") && value.length <= MAX_LINKED);
    const parameters = new URLSearchParams(changed).toString();
    return `#${name}${parameters ? `?${parameters}` : ""}`;
  }
  function fromAddress() {
    const [name, parameters] = location.hash.slice(1).split(/\?(.*)/s);
    return { name: Object.hasOwn(views, name) ? name : "which", state: Object.fromEntries(new URLSearchParams(parameters ?? "")) };
  }

  // Shows the parts of a form that go with the chosen source.
  function showParts(name) {
    const source = stateOf(name).source;
    for (const part of section(name).querySelectorAll("[data-for]")) part.hidden = part.dataset.for !== source;
  }

  const tooLarge = (count) => `This text has ${bytes(count)}; at most ${bytes(MAX_TEXT)} are read here. A config.json has some KiB: give that file, not the weights.`;

  // A dropped or opened file becomes the field's text: a config.json whole; of a long log its begin and its end, which hold what counts.
  async function take(file, field) {
    if (!file) return;
    if (file.size <= MAX_TEXT) field.value = await file.text();
    else if (field.name === "log") field.value = `${await file.slice(0, MAX_TEXT / 4).text()}\n${await file.slice(-MAX_TEXT / 4).text()}`;
    else {
      field.value = "";
      update();
      section(current).querySelector(".answer").replaceChildren(element("p", { class: "verdict no" }, tooLarge(file.size)));
      return;
    }
    update();
  }

  let current = null, question = null;
  function update() {
    showParts(current);
    history.replaceState(null, "", address(current));
    const state = stateOf(current), box = section(current).querySelector(".answer");
    try {
      const long = tooLong(state);
      question = long ? { missing: tooLarge(long.length) } : views[current].question(state);
      const shown = question.missing ? [element("p", { class: "soft" }, question.missing)] : null;
      if (shown) { box.replaceChildren(...shown); question = null; }
      else {
        const answer = ask(question);
        box.replaceChildren(...(answer.error ? (views[current].failed?.(answer.error, state) ?? errorBox(answer.error))
                                             : views[current].show(answer, state)));
        views[current].shown?.();
      }
    } catch (error) {
      question = null;
      box.replaceChildren(element("p", { class: "verdict no" }, "The question could not be answered."), element("pre", {}, String(error.message ?? error)));
    }
    document.getElementById("command").textContent = question ? commandLine(question) : "fp4moe help";
  }

  function open(name, state = null) {
    current = name;
    for (const tab of document.querySelectorAll("[role=tab]")) {
      const isIt = tab.getAttribute("aria-controls") === name;
      tab.setAttribute("aria-selected", String(isIt));
      tab.tabIndex = isIt ? 0 : -1;
    }
    for (const panel of document.querySelectorAll("[role=tabpanel]")) panel.hidden = panel.id !== name;
    if (state) fill(name, state);
    update();
  }

  // Changes some fields of the open view and asks again.
  function change(fields) {
    fill(current, { ...stateOf(current), ...fields });
    update();
  }

  return {
    views, element, named, table, bytes, percent, ask, errorBox, sentence, stateOf, defaults, fill, open, update, change, fromAddress, formOf, section, take,
    isLinkWhole: () => isLinkWhole(current),
    start(loaded) { program = loaded; },
    question: () => question,
    commandLine,
    rows: (subject) => ask({ words: ["list", subject, "--json"] }).rows,
  };
})();
