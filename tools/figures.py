#!/usr/bin/env python3
"""Draws the figures of docs/images: fp4moe beside its peers, modules and walks of ARCHITECTURE.md, CUDA kernels; and from what the
program says, layouts and the oracle's decision.

    tools/figures.py [--program FP4MOE]            writes them, the last two only with the program
    tools/figures.py [--program FP4MOE] --check    says whether they are what would be written
"""
from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from pathlib import Path

import kernel_figures
import modules_figure
import program_figures
import walk_figure
from drawing import Drawing

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / "bench" / "peers"
RECORDS = {"h200": PEERS / "one-run-2026-11-18.json", "xeon": PEERS / "xeon-2026-11-19.json"}
IMAGES = ROOT / "docs" / "images"

# Readable on white and on black, and told apart without color by their dashes.
LINES = {
    "triton_kernels_us": ("#2a78d6", ""),
    "marlin_us": ("#d1495b", "6 3"),
    "humming_us": ("#7b5ea7", "2 3"),
    "ik_llama_cpp_us": ("#2a78d6", ""),
    "vllm_cpu_us": ("#d1495b", "6 3"),
    "llama_cpp_us": ("#7b5ea7", "2 3"),
}
WIDTH, HEIGHT = 960, 330
PANEL_WIDTH, PANEL_HEIGHT, TOP, GAP, LEFT = 200, 190, 62, 31, 40
TOP_RATIO = 4.0  # a peer that is slower still is drawn at the upper edge


def measured() -> dict:
    """What the newest record of each machine says about it."""
    return {machine: json.loads(path.read_text())[machine] for machine, path in RECORDS.items()}


def ratios(model: dict, peer: str) -> list[tuple[int, float]]:
    """(tokens, time of the peer over time of fp4moe), each pair from one run."""
    points = [point for points in model.values() for point in points if peer in point]
    return [(point["tokens"], point[peer] / point["fp4moe_us"]) for point in points]


def x_of(tokens: int, last: int) -> float:
    return math.log2(tokens) / math.log2(last) * PANEL_WIDTH


def y_of(ratio: float) -> float:
    return PANEL_HEIGHT * (1 - min(ratio, TOP_RATIO) / TOP_RATIO)


def panel(title: str, device: str, model: dict, peers: list[str]) -> list[str]:
    series = {peer: ratios(model, peer) for peer in peers}
    last = max(tokens for points in series.values() for tokens, _ in points)
    out = [f'<text class="title" x="0" y="-26">{title}</text>', f'<text x="0" y="-11">{device}</text>']
    for ratio in range(int(TOP_RATIO) + 1):
        y = y_of(ratio)
        out.append(f'<line class="{"base" if ratio == 1 else "grid"}" x1="0" x2="{PANEL_WIDTH}" y1="{y:g}" y2="{y:g}"/>')
        out.append(f'<text x="-5" y="{y + 4:g}" text-anchor="end">{ratio}</text>')
    for tokens in (1, 8, 64, 512, 4096):
        if tokens <= last:
            out.append(f'<text x="{x_of(tokens, last):.1f}" y="{PANEL_HEIGHT + 15}" text-anchor="middle">{tokens}</text>')
    for peer, points in series.items():
        color, dash = LINES[peer]
        line = " ".join(f"{x_of(tokens, last):.1f},{y_of(ratio):.1f}" for tokens, ratio in points)
        out.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2" stroke-dasharray="{dash}"/>')
        for tokens, ratio in points:
            out.append(f'<circle cx="{x_of(tokens, last):.1f}" cy="{y_of(ratio):.1f}" r="2.5" fill="{color}">'
                       f"<title>{tokens} tokens: {ratio:.2f} times</title></circle>")
    return out


def legend(machine: str, peers: dict[str, str], x: float, y: float) -> list[str]:
    out = [f'<text x="{x}" y="{y}">{machine}</text>']
    x += 45
    for peer, name in peers.items():
        color, dash = LINES[peer]
        out.append(f'<line x1="{x}" x2="{x + 26}" y1="{y - 4}" y2="{y - 4}" stroke="{color}" stroke-width="2" stroke-dasharray="{dash}"/>')
        out.append(f'<text x="{x + 31}" y="{y}">{name}</text>')
        x += 45 + 6.1 * len(name)
    return out


def svg() -> str:
    record = measured()
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="name">',
           '<title id="name">How many times faster fp4moe runs a MoE layer than each peer, by number of tokens</title>',
           "<style>text { font: 11px sans-serif; fill: #333 } .title { font-weight: bold; font-size: 13px }",
           ".grid { stroke: #8884 } .base { stroke: #333; stroke-width: 1.5 }",
           "@media (prefers-color-scheme: dark) { text { fill: #ddd } .base { stroke: #ddd } }</style>",
           f'<text class="title" x="{LEFT}" y="16">Times faster than the peer, whole MXFP4 layer (1 = as fast)</text>']
    number = 0
    for machine in ("h200", "xeon"):
        part = record[machine]
        for name, model in part["models"].items():
            x = LEFT + number * (PANEL_WIDTH + GAP)
            out.append(f'<g transform="translate({x} {TOP})">')
            out += panel(name, part["device"], model, list(part["peers"]))
            out.append("</g>")
            number += 1
    y = TOP + PANEL_HEIGHT + 34
    out.append(f'<text x="{LEFT}" y="{y}">tokens in the call; each ratio is of two medians of one run, sustained; 4 stands for 4 and more</text>')
    out += legend("H200:", record["h200"]["peers"], LEFT, y + 20)
    out += legend("Xeon:", record["xeon"]["peers"], LEFT, y + 38)
    out.append("</svg>")
    return "\n".join(out) + "\n"


GLANCE_LEFT, GLANCE_RIGHT, GLANCE_LAST = 250, 560, 4.0


def glance() -> str:
    """One bar a peer: the least to the largest of all its ratios, and the median."""
    record = measured()
    rows = []
    for machine in ("h200", "xeon"):
        part = record[machine]
        for peer, name in part["peers"].items():
            found = [ratio for model in part["models"].values() for _, ratio in ratios(model, peer)]
            rows.append((machine, name, min(found), statistics.median(found), max(found)))
        models = ", ".join(part["models"])
        rows.append((machine, f"{part['device']}: {models}", 0.0, 0.0, 0.0))
    drawing = Drawing(720, 288, "Times faster than each peer: from the least to the largest ratio of all measured numbers of tokens, and the median", shown=600)

    def x_of(ratio: float) -> float:
        return GLANCE_LEFT + (GLANCE_RIGHT - GLANCE_LEFT) * min(ratio, GLANCE_LAST) / GLANCE_LAST

    drawing.text(12, 22, "fp4moe is so many times faster", "title")
    for tick in range(int(GLANCE_LAST) + 1):
        drawing.text(x_of(tick), 274, "as fast" if tick == 1 else f"{tick}×", "small mid")
    y = 36
    for machine in ("h200", "xeon"):
        *peers, head = [row for row in rows if row[0] == machine]
        drawing.text(12, y + 16, head[1], "small")
        y += 24
        for tick in range(int(GLANCE_LAST) + 1):
            drawing.line((x_of(tick), y), (x_of(tick), y + 28 * len(peers)), kind="line" if tick == 1 else "grid")
        for _, name, least, middle, largest in peers:
            drawing.text(GLANCE_LEFT - 12, y + 17, name, "end")
            drawing.box(x_of(least), y + 4, x_of(largest) - x_of(least), 18, "blue" if machine == "h200" else "violet")
            if middle < GLANCE_LAST:
                drawing.line((x_of(middle), y + 4), (x_of(middle), y + 22))
            cut = "" if largest <= GLANCE_LAST else " →"
            drawing.text(x_of(largest) + 8, y + 17, f"{least:.1f} to {largest:.1f}{cut}", "bold")
            y += 28
        y += 6
    return str(drawing)


def figures(program: str | None) -> dict[str, str]:
    own = {"peers.svg": svg(), "peers-glance.svg": glance(), "modules.svg": modules_figure.svg(), "walks.svg": walk_figure.svg()}
    own |= {name: draw() for name, draw in kernel_figures.FIGURES.items()}
    return own | (program_figures.draw(program) if program else {})


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--program")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    drawn = {IMAGES / name: text for name, text in figures(options.program).items()}
    if not options.check:
        for path, text in drawn.items():
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        return 0
    stale = [path for path, text in drawn.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        print(f"{path.relative_to(ROOT)} is stale: run tools/figures.py{' --program FP4MOE' if options.program else ''}", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
