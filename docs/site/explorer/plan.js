// Plan: what a model takes on each rank, as bars.
"use strict";

Page.views.plan = (() => {
  const { element, named, table, bytes, percent } = Page;
  const MAX_RANKS_DRAWN = 64, FARTHEST_TRY = 64;

  function question(state) {
    if (state.source === "config" && !state.config.trim())
      return { missing: "Drop, open or paste the config.json of a model. It stays in this page." };
    const words = ["plan", state.source === "config" ? "config.json" : state.model, "--device", state.device];
    words.push(...(state.rules === "native" ? ["--policy", "native"] : ["--vllm", state.rules]));
    for (const name of ["tp", "ep", "dp", "format"]) if (state[name]) words.push(`--${name}`, state[name]);
    return { words: [...words, "--json"], files: state.source === "config" ? { "config.json": state.config } : {} };
  }

  // A bar of bytes on a device: without padding, padding.
  function memoryBar(plan, backend) {
    const device = plan.device_bytes, rank = backend.bytes.rank;
    const real = Math.min(rank, backend.bytes.without_padding / plan.split.ranks);
    const whole = Math.max(device, rank) || rank;
    const width = (count) => `width:${(100 * count / whole).toFixed(2)}%`;
    return element("div", { class: "bar" + (backend.fits === false ? " over" : ""), role: "img",
      "aria-label": `${backend.backend}: ${bytes(rank)} of ${bytes(device)} on each rank, of it ${bytes(rank - real)} padding` },
      element("i", { style: width(real) }), element("i", { style: width(rank - real) }));
  }

  // What each rank holds of a layer: rows of the intermediate size, or experts.
  function rankStrips(plan, backend) {
    const split = plan.split, byExperts = split.experts_most < plan.layer.experts;
    const most = byExperts ? split.experts_most : backend.after.intermediate;
    const held = (rank) => {
      if (byExperts) {
        const larger = plan.layer.experts - split.experts_least * split.ranks;
        return split.experts_most === split.experts_least || rank < larger ? split.experts_most : split.experts_least;
      }
      const part = split.intermediate_most;
      return Math.max(0, Math.min(part, plan.layer.intermediate - rank % split.tp * part));
    };
    const shown = Math.min(split.ranks, MAX_RANKS_DRAWN);
    return [
      element("h2", {}, byExperts ? "Experts of each rank" : "Intermediate size of each rank"),
      element("div", { class: "ranks" }, Array.from({ length: shown }, (_, rank) => element("div", {},
        element("div", { class: "bar" }, element("i", { style: `width:${100 * held(rank) / most}%` }),
          element("i", { style: `width:${100 * (most - held(rank)) / most}%` })),
        `rank ${rank}: ${held(rank)}${held(rank) < most ? ` of ${most}` : ""}`))),
      shown < split.ranks ? element("p", { class: "soft" }, `and ${split.ranks - shown} more`) : null,
      key(byExperts ? "experts" : "rows of the model"),
    ];
  }

  const key = (what) => element("p", { class: "key" }, element("span", {}, element("i"), what), element("span", {}, element("i", { class: "pad" }), "padding"));

  // Splits near the wished one that the planner accepts.
  function nearest(state) {
    const field = state.tp && state.tp !== "1" ? "tp" : "ep", wish = Number(state[field] || 1), found = [];
    const works = (size) => !Page.ask(question({ ...state, [field]: String(size) })).error;
    for (let size = wish - 1; size >= 1; --size) if (works(size)) { found.push({ [field]: String(size) }); break; }
    for (let size = wish + 1; size <= wish + FARTHEST_TRY; ++size) if (works(size)) { found.push({ [field]: String(size) }); break; }
    if (field === "tp" && !Page.ask(question({ ...state, tp: "", ep: state.tp })).error) found.push({ tp: "", ep: state.tp });
    return found;
  }
  const splitButton = (fields) => element("button", { type: "button", onclick: () => Page.change(fields) },
    Object.entries(fields).filter(([, value]) => value).map(([name, value]) => `--${name} ${value}`).join(" "));
  const fieldsOf = (text) => Object.fromEntries([...text.matchAll(/--(tp|ep|dp) (\d+)/g)].map((match) => [match[1], match[2]]));

  function failed(error, state) {
    const found = error.id.startsWith("plan.") && (state.tp || state.ep) ? nearest(state) : [];
    return [...Page.errorBox(error),
      ...(found.length ? [element("h2", {}, "Nearest possible splits"), element("p", { class: "picks" }, found.map(splitButton))] : [])];
  }

  function verdict(plan, backend) {
    const where = plan.split.ranks === 1 ? `one ${plan.device}` : `each of ${plan.split.ranks} x ${plan.device}`;
    if (backend.impossible) return [`${backend.backend} cannot load this split: ${backend.impossible.message}.`, false];
    const share = plan.device_bytes ? `, ${(100 * backend.bytes.rank / plan.device_bytes).toFixed(1)} % of its memory` : "";
    const fits = backend.fits === false ? "do not fit on" : "take";
    return [backend.fits === false ? `The MoE weights of ${plan.model} do not fit: ${bytes(backend.bytes.rank)} on ${where}${share}.`
      : `The MoE weights of ${plan.model} ${fits} ${bytes(backend.bytes.rank)} on ${where}${share}, with ${backend.backend}.`, backend.fits !== false];
  }

  function show(plan) {
    const chosen = plan.backends.find((row) => row.chosen) ?? plan.backends.find((row) => !row.refused && !row.impossible);
    const [text, isGood] = chosen ? verdict(plan, chosen) : [`No backend runs it: ${plan.no_choice}.`, false];
    const running = plan.backends.filter((row) => !row.refused && !row.impossible);
    const impossible = plan.backends.filter((row) => !row.refused && row.impossible);
    const ways = [...new Set([...plan.splits_that_fit, ...impossible.flatMap((row) => row.impossible.nearest ?? [])])];
    return [
      element("p", { class: "verdict" + (isGood ? "" : " no") }, text),
      chosen && !chosen.impossible ? element("p", { class: "soft" },
        `Padding costs ${percent(chosen.memory_ratio - 1)} memory and ${percent(chosen.work_ratio - 1)} work; ${bytes(chosen.bytes.all_ranks)} on all ranks.`) : null,
      ways.length ? element("h2", {}, isGood ? "Splits for other backends" : "Nearest possible splits") : null,
      ways.length ? element("p", { class: "picks" }, ways.map((way) => splitButton(fieldsOf(way)))) : null,
      ...(chosen && !chosen.impossible ? rankStrips(plan, chosen) : []),
      running.length ? element("h2", {}, `Backends that run, on one ${plan.device} of ${bytes(plan.device_bytes)}`) : null,
      running.length ? table(["Backend", "Memory of a rank", "#Per rank", "#Sizes", "#Work", "#Memory"], running.map((row) => ({ chosen: row.chosen, cells: [
        named(row.backend), memoryBar(plan, row), element("span", { class: row.fits === false ? "no-text" : null }, bytes(row.bytes.rank), row.fits === false ? " does not fit" : ""),
        `${row.after.hidden} x ${row.after.intermediate}`, percent(row.work_ratio - 1), percent(row.memory_ratio - 1)] }))) : null,
      running.length ? key("weights") : null,
      impossible.length ? element("h2", {}, "Impossible with this split") : null,
      impossible.length ? table(["Backend", "Reason"], impossible.map((row) => [named(row.backend), `${row.impossible.message}: expected ${row.impossible.expected}, found ${row.impossible.found}`]), { class: "stack" }) : null,
      plan.notes.length ? element("h2", {}, "Notes") : null,
      element("ul", { class: "plain" }, plan.notes.map((note) => element("li", {}, Page.sentence(note)))),
      element("details", {}, element("summary", {}, "Tensors, and the whole answer as JSON"),
        chosen?.buffers ? table(["Tensor", "Type", "Shape", "#Bytes"], chosen.buffers.map((buffer) => [element("code", {}, buffer.name), buffer.dtype, buffer.shape.join(" x "), bytes(buffer.bytes)])) : "",
        element("pre", {}, JSON.stringify(plan, null, 2))),
    ].filter(Boolean);
  }

  return { question, show, failed };
})();
