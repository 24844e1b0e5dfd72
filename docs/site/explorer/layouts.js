// Layouts: where each element of a matrix lies in the packed tensor, in every generation.
"use strict";

Page.views.layouts = (() => {
  const { element } = Page;
  const LANE_BYTES = 16, LANES = 32, PACKED_BYTES_A_ROW = 64;
  let drawn = [];  // { generation, part, scales, block, matrix: canvas, packed: canvas, byOffset: Map }
  let at = { row: 5, col: 12 };

  function question(state) {
    return { words: ["layouts", state.layout, "--places", `${state.matrix}:${state.rows}x${state.cols}`, "--json"] };
  }

  const offsetOf = (part, row, col) => part.begin + part.row_offsets[row] + part.column_offsets[col];
  const slotsInByte = (part) => (part.element === "nibble" ? 2 : 1);
  const byteOf = (part, offset) => Math.floor(offset / slotsInByte(part));
  const laneOf = (byte) => Math.floor(byte / LANE_BYTES) % LANES;
  // The hue is the lane, the lightness counts loads of the warp.
  const color = (byte) => `hsl(${laneOf(byte) * 360 / LANES} 58% ${72 - 11 * (Math.floor(byte / LANE_BYTES / LANES) % 4)}%)`;

  function wordBits(part, offset) {
    if (!part.word) return null;
    return part.word.place[offset % 8].map((place, bit) => `bit ${bit} at ${place}`).join(", ");
  }
  function placeText(part, row, col) {
    const offset = offsetOf(part, row, col), byte = byteOf(part, offset);
    const where = part.word ? `word ${Math.floor(offset / 8)} of 32 bits (${wordBits(part, offset)})`
      : `byte ${byte} (0x${byte.toString(16)})${part.element === "nibble" ? `, ${offset % 2 ? "high" : "low"} nibble` : ""}`;
    return `${where}; lane ${laneOf(byte)} of a warp that loads ${LANE_BYTES} bytes a lane`;
  }

  // Both canvases of a generation: cells of the matrix, and slots of the packed tensor in order.
  function paint(one) {
    const { part, matrix, packed } = one, slots = one.slotsARow;
    const context = matrix.getContext("2d"), other = packed.getContext("2d");
    other.clearRect(0, 0, packed.width, packed.height);
    for (let row = 0; row < part.rows; ++row)
      for (let col = 0; col < part.columns; ++col) {
        const offset = offsetOf(part, row, col);
        context.fillStyle = other.fillStyle = color(byteOf(part, offset));
        context.fillRect(col * one.cell, row * one.cell, one.cell, one.cell);
        other.fillRect(offset % slots * one.slot, Math.floor(offset / slots) * one.slot, one.slot, one.slot);
      }
    one.clean = [context.getImageData(0, 0, matrix.width, matrix.height), other.getImageData(0, 0, packed.width, packed.height)];
  }
  function mark(context, x, y, size) {
    const { width, height } = context.canvas;
    context.fillStyle = "#0008";
    context.fillRect(0, y, width, size);
    context.fillRect(x, 0, size, height);
    context.fillStyle = "#000";
    context.fillRect(x - 3, y - 3, size + 6, size + 6);
    context.fillStyle = "#fff";
    context.fillRect(x - 1, y - 1, size + 2, size + 2);
  }
  function light() {
    for (const one of drawn) {
      const [matrix, packed] = [one.matrix.getContext("2d"), one.packed.getContext("2d")];
      matrix.putImageData(one.clean[0], 0, 0);
      packed.putImageData(one.clean[1], 0, 0);
      const row = Math.min(at.row, one.part.rows - 1), col = Math.min(at.col, one.part.columns - 1);
      const offset = offsetOf(one.part, row, col);
      mark(matrix, col * one.cell, row * one.cell, one.cell);
      mark(packed, offset % one.slotsARow * one.slot, Math.floor(offset / one.slotsARow) * one.slot, one.slot);
      one.caption.textContent = placeText(one.part, row, col);
    }
    const first = drawn[0];
    if (first) document.getElementById("where").textContent = `Row ${at.row}, column ${at.col}: ${placeText(first.part, at.row, at.col)}.`
      + (first.scales ? ` Its block's scale is at byte ${byteOf(first.scales, offsetOf(first.scales, at.row, Math.floor(at.col / first.block)))} of the scales.` : "");
  }
  function move(row, col) {
    const part = drawn[0].part;
    at = { row: Math.max(0, Math.min(part.rows - 1, row)), col: Math.max(0, Math.min(part.columns - 1, col)) };
    light();
  }

  function listen(canvas, find) {
    const point = (event) => {
      const box = canvas.getBoundingClientRect();
      const found = find((event.clientX - box.left) * canvas.width / box.width, (event.clientY - box.top) * canvas.height / box.height);
      if (found) move(found.row, found.col);
    };
    canvas.addEventListener("pointermove", point);
    canvas.addEventListener("pointerdown", point);
  }
  const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], PageUp: [-8, 0], PageDown: [8, 0] };
  function onMatrixKey(event) {
    const step = STEPS[event.key];
    if (!step) return;
    event.preventDefault();
    move(at.row + step[0], at.col + step[1]);
  }
  function onPackedKey(one, event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -one.slotsARow, ArrowDown: one.slotsARow }[event.key];
    if (!step) return;
    event.preventDefault();
    const found = one.byOffset.get(offsetOf(one.part, at.row, at.col) + step);
    if (found) move(found.row, found.col);
  }

  function card(layout, state) {
    const title = layout.generation || "Where each element goes";
    const box = element("div", { class: "card" }, element("h2", { style: "margin-top:0" }, title), element("p", { class: "soft" }, layout.reads));
    const places = layout.places;
    if (places.error) {
      box.append(element("p", { class: "no-text" }, Page.sentence(`${places.error.message}: expected ${places.error.expected}, found ${places.error.found}`)));
      return box;
    }
    const part = places[state.part], slots = PACKED_BYTES_A_ROW * slotsInByte(part);
    const slotsARow = Math.min(slots, part.bytes * slotsInByte(part));
    const cell = Math.max(3, Math.min(12, Math.floor(768 / part.columns))), slot = Math.max(3, Math.min(12, Math.floor(768 / slotsARow)));
    const one = { part, slotsARow, cell, slot, block: places.block, scales: state.part === "codes" ? places.scales : null, byOffset: new Map(),
      caption: element("p", { class: "soft" }),
      matrix: element("canvas", { width: part.columns * cell, height: part.rows * cell, tabindex: 0, role: "application",
        "aria-label": `The matrix, ${part.rows} rows of ${part.columns}. Arrow keys move.`, "aria-describedby": "where" }),
      packed: element("canvas", { width: slotsARow * slot, height: Math.ceil(part.bytes * slotsInByte(part) / slotsARow) * slot, tabindex: 0, role: "application",
        "aria-label": `The packed tensor, ${part.bytes} bytes. Arrow keys move.`, "aria-describedby": "where" }) };
    for (let row = 0; row < part.rows; ++row)
      for (let col = 0; col < part.columns; ++col) one.byOffset.set(offsetOf(part, row, col), { row, col });
    listen(one.matrix, (x, y) => ({ row: Math.floor(y / cell), col: Math.floor(x / cell) }));
    listen(one.packed, (x, y) => one.byOffset.get(Math.floor(y / slot) * slotsARow + Math.floor(x / slot)));
    one.matrix.addEventListener("keydown", onMatrixKey);
    one.packed.addEventListener("keydown", (event) => onPackedKey(one, event));
    drawn.push(one);
    box.append(
      element("div", { class: "figures" },
        element("figure", {}, element("figcaption", {}, `Matrix: ${part.rows} x ${part.columns}, colored by lane`), one.matrix),
        element("figure", {}, element("figcaption", {}, `Packed: ${part.bytes} bytes, ${slotsARow / slotsInByte(part)} a line`), one.packed)),
      one.caption,
      element("p", { class: "soft" }, layout.order ? `Order of rows: ${layout.order}.` : ""),
      element("details", {}, element("summary", {}, "Formula"), element("p", { class: "mono" }, layout[state.part])));
    return box;
  }

  function show(answer, state) {
    drawn = [];
    const rows = answer.layouts;
    const result = [
      element("p", { class: "verdict" }, `${rows[0].layout} has ${rows.length === 1 ? "one generation" : `${rows.length} generations`}`
        + (rows[0].backends.length ? `, read by ${rows[0].backends.join(", ")}.` : ".")),
      rows[0].note ? element("p", { class: "soft" }, Page.sentence(rows[0].note)) : null,
      element("div", { class: "generations" }, rows.map((layout) => card(layout, state))),
    ].filter(Boolean);
    drawn.forEach(paint);
    if (drawn.length) move(at.row, at.col);
    else document.getElementById("where").textContent = "No generation takes a matrix of this size.";
    return result;
  }

  return { question, show };
})();
