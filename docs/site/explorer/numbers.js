// Numbers: codes of one number by every rule, and a block with its scale.
"use strict";

Page.views.numbers = (() => {
  const { element, table } = Page;
  const FIELDS = { e2m1: [1, 2, 1], e8m0: [0, 8, 0], e4m3fn: [1, 4, 3], e5m2: [1, 5, 2], e4m3fnuz: [1, 4, 3] };  // sign, exponent, mantissa bits
  const TITLES = { e2m1: "E2M1", e8m0: "E8M0", e4m3fn: "E4M3FN", e5m2: "E5M2", e4m3fnuz: "E4M3FNUZ" };
  const E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6];
  let picked = 0;

  function question(state) {
    const numbers = state.numbers.split(/[\s,;]+/).filter(Boolean);
    if (numbers.length === 0) return { missing: "Type 1 to 32 numbers, e.g. 0.7 or 1e-3 or inf." };
    const words = numbers.join(",");
    return { words: ["numbers", "--json", ...(words.startsWith("-") ? ["--"] : []), words] };
  }

  const short = (value) => (typeof value === "string" ? value : Number(value.toPrecision(6)).toString());
  function bits(format, code) {
    const [sign, exponent, mantissa] = FIELDS[format], count = sign + exponent + mantissa;
    const text = code.toString(2).padStart(count, "0");
    const field = (name, from, length) => (length ? element("b", { class: name }, text.slice(from, from + length)) : "");
    return element("span", { class: "mono bits", "aria-label": text }, field("s", 0, sign), field("e", sign, exponent), field("m", sign + exponent, mantissa));
  }

  // The line of E2M1 with the number and the codes that rules give it.
  function numberLine(number) {
    const name = "http://www.w3.org/2000/svg", codes = number.codes.filter((row) => row.format === "e2m1");
    const svg = document.createElementNS(name, "svg");
    svg.setAttribute("viewBox", "0 0 640 62");
    svg.setAttribute("class", "line");
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", `${short(number.value)} among the values of E2M1: ${codes.map((row) => `${row.rule} gives ${short(row.value)}`).join(", ")}`);
    const x = (value) => 320 + 48 * Math.max(-6.4, Math.min(6.4, value));
    const add = (kind, attributes, text) => {
      const made = document.createElementNS(name, kind);
      for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
      if (text) made.textContent = text;
      svg.append(made);
    };
    add("path", { d: "M8 34H632" });
    for (const value of [...E2M1, ...E2M1.slice(1).map((each) => -each)]) {
      add("path", { d: `M${x(value)} 28V40`, class: "tick" });
      add("text", { x: x(value), y: 55 }, String(value));
    }
    for (const row of codes) add("circle", { cx: x(row.value), cy: 34, r: 6, class: "hit" });
    if (typeof number.value === "number") add("path", { d: `M${x(number.value)} 26l-6 -12h12z`, class: "asked", style: "stroke:none;fill:var(--bad)" });
    return svg;
  }

  function sentenceOf(number) {
    const codes = number.codes.filter((row) => row.format === "e2m1"), values = [...new Set(codes.map((row) => short(row.value)))];
    return values.length === 1 ? `${short(number.value)} becomes ${values[0]} in FP4 (E2M1), by every rule.`
      : `${short(number.value)} is a tie in FP4 (E2M1): ${values[0]} where ties go to even, ${values[1]} where they go away from zero.`;
  }

  function codesTable(number) {
    return table(["Format", "Rule", "Code", "#Hex", "#Value", "#Error"], number.codes.map((row) => [element("b", {}, TITLES[row.format]), element("code", {}, row.rule),
      bits(row.format, row.code), row.code.toString(16).padStart(2, "0"), short(row.value),
      typeof row.value === "number" && typeof number.value === "number" ? short(row.value - number.value) : ""]));
  }

  function blocksTable(answer) {
    const best = {};
    for (const block of answer.blocks)
      if (typeof block.worst_error === "number") best[block.format] = Math.min(best[block.format] ?? Infinity, block.worst_error);
    return table(["Rule", "Scale", "#Worst error", "Values", "Used by"], answer.blocks.map((block) => ({
      chosen: block.worst_error === best[block.format],
      cells: [element("code", {}, block.rule),
        element("span", {}, block.scales.map((code, i) => `${code.toString(16).padStart(2, "0")} = ${short(block.scale_values[i])}`).join(", "),
          block.global_scale === null ? "" : ` / ${short(block.global_scale)}`),
        short(block.worst_error), element("span", { class: "mono" }, block.values.map(short).join("  ")), element("span", { class: "soft" }, block.used_by)] })), { class: "stack" });
  }

  function show(answer) {
    picked = Math.min(picked, answer.numbers.length - 1);
    const number = answer.numbers[picked];
    return [
      element("p", { class: "verdict" }, sentenceOf(number)),
      answer.numbers.length > 1 ? element("p", { class: "picks", role: "group", "aria-label": "The number to look at" }, answer.numbers.map((each, i) =>
        element("button", { type: "button", "aria-pressed": String(i === picked), onclick: () => { picked = i; Page.update(); } }, short(each.value)))) : null,
      numberLine(number),
      element("p", { class: "soft" }, `float32 0x${number.float32}. Bits: `, element("span", { class: "bits" }, element("b", { class: "s" }, "sign "), element("b", { class: "e" }, "exponent "), element("b", { class: "m" }, "mantissa"))),
      codesTable(number),
      element("h2", {}, `As a block of ${answer.numbers.length}: the scale and the rounded values by every rule`),
      element("p", { class: "soft" }, "Marked: the least worst error of its format. MXFP4 and MXFP8 share a power of two among 32, NVFP4 an E4M3FN scale among 16."),
      blocksTable(answer),
    ].filter(Boolean);
  }

  // Examples.
  function random(seed) {
    return () => { seed = (seed * 1664525 + 1013904223) >>> 0; return seed / 2 ** 32; };
  }
  const EXAMPLES = {
    ties: "0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5",
    tiny: "1e-3, 3e-4, -7e-4, 2e-39, 0",
    get normal() {
      const next = random(7);
      return Array.from({ length: 32 }, () => (next() + next() + next() + next() - 2).toFixed(3)).join(", ");
    },
    get outlier() { return EXAMPLES.normal.replace(/^[^,]+/, "60"); },
  };

  return { question, show, fillWith: (name) => Page.change({ numbers: EXAMPLES[name] }) };
})();
