// Starts the page: lists, tabs, fields, links.
"use strict";

(async () => {
  const { element } = Page;
  const began = performance.now();
  const failure = document.getElementById("failure");
  let program;
  try {
    program = await loadProgram();
  } catch (error) {
    failure.textContent = `${error.message} The explorer needs a browser with WebAssembly (any of the last years). The same answers come from the command line: fp4moe explain.`;
    failure.hidden = false;
    document.getElementById("main").hidden = true;
    return;
  }
  Page.start(program);

  // The names that fields take.
  const options = (rows, first = []) => [...first, ...rows].map((row) => element("option", { value: row.name, title: row.what ?? null }, row.label ?? row.name));
  const lists = {
    models: () => options(Page.rows("models").map((row) => ({ ...row, label: `${row.name} (${row.what.match(/usually (\w+)/)?.[1] ?? ""})` }))),
    devices: () => options(Page.rows("devices").map((row) => ({ ...row, label: `${row.name}: ${row.what.split(",")[0]}` }))),
    rules: () => options(Page.rows("vllm").reverse().map((row) => ({ ...row, label: `vLLM ${row.name}` })), [{ name: "native", label: "fp4moe's own" }]),
    policies: () => options(Page.rows("policies"), [{ name: "", label: "nothing" }]),
    layouts: () => options(Page.rows("layouts")),
  };
  for (const field of document.querySelectorAll("[data-list]")) field.append(...lists[field.dataset.list]());
  for (const name of ["which", "plan"]) {
    const fields = Page.formOf(name).elements;
    fields.device.value = "h100";
    fields.rules.selectedIndex = 1;  // the newest release
  }
  Page.formOf("layouts").elements.layout.value = "marlin.mxfp4";
  for (const name of Object.keys(Page.views)) Page.defaults[name] = Page.stateOf(name);

  // A log names its device: the field then is for what it does not say.
  const devices = Page.formOf("which").elements.device;
  devices.prepend(element("option", { value: "" }, "as the log says"));
  devices.value = Page.defaults.which.device;

  // Fields.
  let waiting = 0;
  for (const form of document.querySelectorAll("form")) {
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", (event) => {
      if (event.target.type === "file") return;
      if (event.target.name === "source" && form === Page.formOf("which"))
        devices.value = event.target.value === "log" ? "" : devices.value || Page.defaults.which.device;
      clearTimeout(waiting);
      waiting = setTimeout(Page.update, event.target.tagName === "TEXTAREA" || event.target.type === "text" ? 200 : 0);
    });
  }
  for (const drop of document.querySelectorAll(".drop")) {
    const [input, text] = [drop.querySelector("input"), drop.querySelector("textarea")];
    const take = (file) => Page.take(file, text);
    input.addEventListener("change", () => take(input.files[0]));
    drop.addEventListener("dragover", (event) => { event.preventDefault(); drop.classList.add("over"); });
    drop.addEventListener("dragleave", () => drop.classList.remove("over"));
    drop.addEventListener("drop", (event) => { event.preventDefault(); drop.classList.remove("over"); take(event.dataTransfer.files[0]); });
  }
  for (const button of document.querySelectorAll("[data-fill]"))
    button.addEventListener("click", () => Page.views.numbers.fillWith(button.dataset.fill));

  // Tabs: arrow keys move, as the pattern of tab lists has it.
  const tabs = [...document.querySelectorAll("[role=tab]")];
  for (const [i, tab] of tabs.entries()) {
    tab.addEventListener("click", () => Page.open(tab.getAttribute("aria-controls")));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = tabs[(i + step + tabs.length) % tabs.length];
      next.focus();
      next.click();
    });
  }

  // Links and copies.
  const follow = () => { const { name, state } = Page.fromAddress(); Page.open(name, state); };
  window.addEventListener("hashchange", follow);
  const copied = document.getElementById("copied");
  const copy = async (text) => {
    try { await navigator.clipboard.writeText(text); copied.textContent = "Copied."; }
    catch { copied.textContent = text; }
    setTimeout(() => { copied.textContent = ""; }, 4000);
  };
  document.getElementById("copy").addEventListener("click", () => copy(document.getElementById("command").textContent));
  document.getElementById("link").addEventListener("click", async () => {
    await copy(location.href);
    if (!Page.isLinkWhole()) copied.textContent = "Copied, without the text: it is too long for a link.";
  });
  follow();
  document.getElementById("loaded").textContent = `Ready in ${Math.round(performance.now() - began)} ms.`;
  document.documentElement.dataset.ready = String(Math.round(performance.now() - began));
})();
