"""Figures of what the program says: every layout as tiles, and one decision of the oracle."""
from __future__ import annotations

import json
import subprocess

from drawing import Drawing

ROWS, COLUMNS, CELL, LINE = 16, 32, 28, 15  # the corner of w2 that is drawn; the size of an element
LANE_BYTES, LANES = 16, 32
QUESTION = ["explain", "gpt-oss-20b", "--device", "h100", "--vllm", "0.33.0"]
MAX_REFUSED = 6  # kernels drawn before and after the chosen one


def ask(program: str, *words: str) -> dict:
    return json.loads(subprocess.run([program, *words, "--json"], check=True, capture_output=True, text=True).stdout)


def lanes(part: dict) -> list[list[int]]:
    """By row and column: the lane that holds the element where each lane of a warp loads 16 bytes after the other."""
    slots = 2 if part["element"] == "nibble" else 1
    return [[(part["begin"] + row + column) // slots // LANE_BYTES for column in part["column_offsets"][:COLUMNS]] for row in part["row_offsets"][:ROWS]]


def color(load: int) -> str:
    return f"hsl({load % LANES * 360 // LANES} 65% {82 - 9 * (load // LANES % 4)}%)"


def tiles(layout: str, generations: list[tuple[str, list[list[int]]]]) -> str:
    block = 42 + ROWS * LINE
    drawing = Drawing(COLUMNS * CELL + 44, 8 + block * len(generations), f"{layout}: the lane that loads each code of rows 0 to {ROWS - 1}, columns 0 to {COLUMNS - 1}")
    for i, (name, loads) in enumerate(generations):
        top = 6 + block * i
        drawing.text(34, top + 14, name or layout, "bold")
        for column in range(0, COLUMNS, 4):
            drawing.text(36 + column * CELL, top + 29, f"{column}", "small")
        ways: dict[int, list[str]] = {}
        words = []
        for row, cells in enumerate(loads):
            y = top + 34 + row * LINE
            if row % 4 == 0:
                drawing.text(28, y + 12, f"{row}", "small end")
            begin = 0
            for column in range(1, COLUMNS + 1):
                if column < COLUMNS and cells[column] == cells[begin]:
                    continue
                x, width = 34 + begin * CELL, (column - begin) * CELL
                ways.setdefault(cells[begin], []).append(f"M{x} {y}h{width}v{LINE}h-{width}z")
                words.append(f'<text x="{x + width // 2}" y="{y + 11}">{cells[begin] % LANES}</text>')
                begin = column
        drawing.raw("".join(f'<path d="{"".join(way)}" fill="{color(load)}" stroke="#fff8"/>' for load, way in ways.items()))
        drawing.raw('<g class="tiny">' + "".join(words) + "</g>")
    return str(drawing)


def layout_figures(program: str) -> dict[str, str]:
    found: dict[str, list[tuple[str, list[list[int]]]]] = {}
    for layout in ask(program, "list", "layouts")["rows"]:
        found[layout["name"]] = []
    for name in found:
        for one in ask(program, "layouts", name, "--places", "w2:256x256")["layouts"]:
            loads = lanes(one["places"]["codes"])
            if loads not in [drawn for _, drawn in found[name]]:
                found[name].append((one["generation"], loads))
    return {f"layouts/{name}.svg": tiles(name, generations) for name, generations in found.items()}


def decision(program: str) -> str:
    """The list of the policy from top to bottom: the first kernel that nothing refuses is taken."""
    record = ask(program, *QUESTION)
    kernels: list[tuple[str, str]] = []  # (backend, what refuses its kernels), one row a backend
    chosen = 0
    for candidate in record["candidates"]:
        why = "; ".join(f"{refusal['requirement']}; {refusal['fact']}" for refusal in candidate["refusals"][:1])
        if candidate["backend"] not in [name for name, _ in kernels]:
            kernels.append((candidate["backend"], why))
        if candidate["backend"] == record["backend"] and not why:
            chosen = [name for name, _ in kernels].index(record["backend"])
            kernels[chosen] = (record["backend"], "")
    shown = kernels[max(0, chosen - MAX_REFUSED):chosen + 4]
    drawing = Drawing(960, 96 + 46 * len(shown), record["summary"])
    drawing.box(14, 12, 290, 44, "gray", "fp4moe " + " ".join(QUESTION[:2]), " ".join(QUESTION[2:]))
    drawing.text(322, 30, record["summary"], "title")
    drawing.text(322, 48, "The policy's list, from top to bottom. The first kernel that nothing refuses is taken.", "small")
    for i, (name, why) in enumerate(shown):
        y = 78 + 46 * i
        taken = name == record["backend"]
        after = kernels.index((name, why)) > chosen
        drawing.box(14, y, 290, 32, "yes" if taken else "gray" if after else "no", name)
        drawing.line((304, y + 16), (338, y + 16), arrow=True)
        drawing.text(344, y + 20, "taken" if taken else f"no: {why}" if why else "would run: ask for it by name", "bold" if taken else "")
        if i + 1 < len(shown):
            drawing.line((159, y + 32), (159, y + 45), arrow=not after and not taken)
    if len(kernels) > chosen + 4:
        drawing.text(14, 90 + 46 * len(shown), f"and {len(kernels) - chosen - 4} more", "small")
    return str(drawing)


def draw(program: str) -> dict[str, str]:
    return layout_figures(program) | {"oracle.svg": decision(program)}
