// Which backend: the answer in a sentence, what to do, then every reason.
"use strict";

Page.views.which = (() => {
  const { element, named, table, sentence } = Page;

  // The words of the command line that the fields stand for.
  function words(state) {
    const list = [];
    const add = (option, value) => { if (value) list.push(option, value); };
    if (state.source === "model") list.push(state.model);
    if (state.source === "config") list.push("config.json");
    if (state.source === "log") list.push("--log", "-");
    add("--device", state.device);
    if (state.rules === "native") add("--policy", "native");
    else add("--vllm", state.rules);
    add("--format", state.format);
    add("--tp", state.tp);
    add("--dp", state.dp);
    if (state.ep) list.push("--ep");
    add("--backend", state.backend?.trim());
    if (state.lib?.trim()) list.push(`--lib=${state.lib.trim()}`);
    for (const line of (state.env ?? "").split("\n")) add("--env", line.trim());
    return list;
  }

  function question(state) {
    if (state.source === "config" && !state.config.trim())
      return { missing: "Drop, open or paste the config.json of a model. It stays in this page." };
    if (state.source === "log" && !state.log.trim())
      return { missing: "Paste a message of vLLM's about MoE backends, or whole lines of its log. They stay in this page." };
    const asked = { ...state };
    if (state.source === "log" && state.rules === Page.defaults.which.rules) asked.rules = "";  // the log knows its version
    return {
      words: ["explain", ...words(asked), "--json"],
      files: state.source === "config" ? { "config.json": state.config } : {},
      stdin: state.source === "log" ? state.log : "",
    };
  }

  // The fields that a remedy changes: ["--tp", "4", "--lib=+quark"].
  function fieldsOf(asks) {
    const state = Page.stateOf("which"), fields = {};
    for (let i = 0; i < asks.length; ++i) {
      const [option, inline] = asks[i].split(/=(.*)/s);
      const next = () => inline ?? asks[++i];
      if (option === "--ep") { fields.ep = "on"; if (/^\d+$/.test(asks[i + 1] ?? "")) ++i; }
      else if (option === "--env") fields.env = [fields.env ?? state.env, next()].filter(Boolean).join("\n");
      else if (option === "--lib") fields.lib = [fields.lib ?? state.lib, next()].filter(Boolean).join(",");
      else if (option === "--vllm") fields.rules = next();
      else if (option.slice(2) in state) fields[option.slice(2)] = next();
      else return null;
    }
    return fields;
  }

  function remedies(answer) {
    if (answer.to_change.length === 0) return [];
    return [
      element("h2", {}, answer.served ? "To get another backend" : "What makes it run"),
      element("ul", { class: "steps" }, answer.to_change.map((change) => {
        const fields = fieldsOf(change.asks);
        return element("li", {}, named(change.backend), change.steps.map((step) => element("code", {}, step)),
          fields && element("button", { type: "button", onclick: () => Page.change(fields) }, "Try"));
      })),
    ];
  }

  function reasons(answer) {
    const text = (kernel) => (kernel.accepted ? element("span", { class: "yes" }, "would run")
      : element("ul", { class: "plain" }, kernel.refusals.map((why) => element("li", {}, `${why.requirement}; ${why.fact}`))));
    return [
      answer.near_misses.length ? element("h2", {}, "Why not the others") : null,
      answer.near_misses.length ? table(["Backend", "Reason"], answer.near_misses.map((miss) =>
        [named(miss.backend), miss.reasons.join("; ")]), { class: "stack" }) : null,
      element("details", {}, element("summary", {}, `All ${answer.candidates.length} kernels, with every reason`),
        table(["Backend", "Kernel", "Answer"], answer.candidates.map((kernel) => ({
          chosen: kernel.backend === answer.backend && kernel.experts === answer.experts,
          cells: [named(kernel.backend), named(kernel.experts, "code"), text(kernel)],
        })), { class: "stack" })),
    ].filter(Boolean);
  }

  function fromLog(log) {
    if (!log) return [];
    const facts = log.facts.filter((fact) => fact.name !== "message").map((fact) => `${fact.name} ${fact.value} (line ${fact.line})`);
    return [
      element("h2", {}, "What the log says"),
      log.message ? element("p", {}, log.message.means, " ", element("b", {}, "Do: "), log.message.todo) : null,
      log.comparison ? element("p", {}, log.comparison) : null,
      facts.length ? element("p", { class: "soft" }, `Read: ${facts.join("; ")}.`) : null,
    ].filter(Boolean);
  }

  function comparison(state) {
    if (!state.diff) return [];
    const asked = question(state);
    const both = Page.ask({ ...asked, words: [...asked.words, "--diff", state.diff] });
    if (both.error) return [element("h2", {}, `Beside ${state.diff}`), element("p", {}, sentence(both.error.message))];
    const side = (record) => element("div", { class: "card" }, element("span", { class: "tag" }, record.policy),
      element("p", { class: "verdict" + (record.outcome === "selected" ? "" : " no") }, record.backend ?? "none"),
      element("p", { class: "soft mono" }, record.experts ?? ""));
    return [
      element("h2", {}, "Two policies side by side"),
      element("div", { class: "sides" }, side(both.here), side(both.there)),
      both.changes.length === 0 ? element("p", { class: "soft" }, "Every backend gets the same answer.")
        : table(["Backend", both.here.policy, both.there.policy], both.changes.map((row) => [named(row.backend), row.here, row.there]), { class: "stack" }),
    ];
  }

  function show(answer, state) {
    const also = answer.alternatives.map((other) =>
      `${other.title} would ${other.backend ? `run it with ${other.backend}` : "refuse it, too"}`);
    const remarks = [...answer.notes, ...also, ...answer.assumed.map((text) => `assumed: ${text}`)];
    return [
      element("p", { class: "verdict" + (answer.served ? "" : " no") }, answer.summary),
      answer.experts ? element("p", { class: "soft" }, "Kernel ", element("code", {}, answer.experts), answer.consequences?.layout ? [", layout ",
        element("a", { href: `#layouts?${new URLSearchParams({ layout: answer.consequences.layout })}` }, answer.consequences.layout)] : "",
        `, policy ${answer.policy}`) : null,
      ...fromLog(answer.log_read),
      ...remedies(answer),
      ...comparison(state),
      ...reasons(answer),
      element("h2", {}, "Notes"),
      element("ul", { class: "plain" }, remarks.map((text) => element("li", {}, sentence(text)))),
      element("details", {}, element("summary", {}, "vLLM's log, and the whole answer as JSON"),
        element("pre", {}, answer.log.join("\n")), element("pre", {}, JSON.stringify(answer, null, 2))),
    ].filter(Boolean);
  }

  return { question, show, words };
})();
