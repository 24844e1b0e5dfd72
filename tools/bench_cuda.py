#!/usr/bin/env python3
"""Measure whole MoE layers on this machine's GPU, and keep what docs/cuda-results.md says of them.

  tools/bench_cuda.py PROGRAM [--out FOLDER]   measure into FOLDER (bench/results), print the tables
  tools/bench_cuda.py --table [FOLDER]         only print the tables, beside the peers of bench/peers
  tools/bench_cuda.py --write                  only write the page's tables, from bench/results
  tools/bench_cuda.py PROGRAM --draw           the same, and draw docs/images
  tools/bench_cuda.py --check                  say whether docs/cuda-results.md shows bench/results
"""
import argparse
import datetime
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
PEERS = ROOT / "bench" / "peers"
IMAGES = ROOT / "docs" / "images"
PAGE = ROOT / "docs" / "cuda-results.md"
ALL = "1,2,4,8,16,32,64,128,256,512,1024,2048,4096,8192"
SOME = "1,8,16,64,256,1024,4096"
FEW = "1,4,16,64,256"
MANY = "256,512,1024,2048,4096,8192"
FP8 = "none,fp8_token,fp8_token_in_bf16,fp8_block,fp8_block_in_bf16"
# Seconds of work before a report (--warm-up), of the report, and of a pause before both.
PACES = {0: {"word": "burst", "seconds": 0.5, "pause": 6}, 10: {"word": "sustained", "seconds": 8, "pause": 0}}
RUNS = [
    # name, model, format, routing, activations, tokens, warm-up
    ("cuda-layers", "gpt-oss-120b", "mxfp4", "uniform", "none", ALL, 0),
    ("cuda-layers", "gpt-oss-20b", "mxfp4", "uniform", "none", ALL, 0),
    ("cuda-layers", "qwen3-30b-a3b", "mxfp4", "uniform", "none", ALL, 0),
    ("cuda-layers", "gpt-oss-120b", "nvfp4", "uniform", "none", SOME, 0),
    ("cuda-layers", "qwen3-30b-a3b", "nvfp4", "uniform", "none", SOME, 0),
    ("cuda-skewed", "gpt-oss-120b", "mxfp4", "skewed", "none", SOME, 0),
    ("cuda-skewed", "gpt-oss-20b", "mxfp4", "skewed", "none", SOME, 0),
    ("cuda-schemes", "gpt-oss-120b", "mxfp4", "uniform", "none,mxfp8,mxfp4,fp8", FEW, 0),
    ("cuda-schemes", "qwen3-30b-a3b", "nvfp4", "uniform", "none,nvfp4", FEW, 0),
    ("sustained", "gpt-oss-120b", "mxfp4", "uniform", "none", ALL, 10),
    ("sustained", "gpt-oss-20b", "mxfp4", "uniform", "none", ALL, 10),
    ("sustained", "qwen3-30b-a3b", "mxfp4", "uniform", "none", ALL, 10),
    ("fp8", "gpt-oss-120b", "mxfp4", "uniform", FP8, MANY, 10),
    ("fp8", "gpt-oss-20b", "mxfp4", "uniform", FP8, MANY, 10),
    ("fp8", "qwen3-30b-a3b", "mxfp4", "uniform", FP8, MANY, 10),
    ("sm80-layers", "gpt-oss-120b", "mxfp4", "uniform", "none", SOME, 10),
    ("sm80-layers", "gpt-oss-20b", "mxfp4", "uniform", "none", SOME, 10),
    ("sm80-layers", "qwen3-30b-a3b", "mxfp4", "uniform", "none", SOME, 10),
    ("sm80-layers", "qwen3-30b-a3b", "nvfp4", "uniform", "none", SOME, 10),
]
NAMES = {"gpt-oss-120b": "gpt-oss-120b", "gpt-oss-20b": "gpt-oss-20b", "qwen3-30b-a3b": "Qwen3-30B-A3B"}


def measure(program: str, arguments: argparse.Namespace) -> None:
    folder = Path(arguments.out)
    folder.mkdir(parents=True, exist_ok=True)
    date = datetime.date.today().isoformat()
    for name, model, form, routing, activations, tokens, warm_up in RUNS:
        if arguments.model and model != arguments.model or arguments.only and name != arguments.only:
            continue
        pace = PACES[warm_up]
        seconds = arguments.seconds if warm_up and arguments.seconds else pace["seconds"]
        command = [program, "bench", "layer", "--json", "--engine", "cuda", "--model", model,
                   "--format", form, "--routing", routing, "--activations", activations,
                   "--tokens", tokens, "--warm-up", str(warm_up), "--seconds", str(seconds)]
        print(" ".join(command), file=sys.stderr)
        time.sleep(pace["pause"])
        kernels = {"FP4MOE_CUDA_KERNELS": "sm80"} if name.startswith("sm80") else {}
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **kernels})
        if done.returncode != 0:
            print(f"{model} {form}: status {done.returncode}, left out", file=sys.stderr)
            continue
        report = json.loads(done.stdout)
        if pace_of(report) != pace["word"]:
            print(f"{model} {form}: the report is no {pace['word']} one ({pace_of(report)}), left out",
                  file=sys.stderr)
            continue
        stem = f"h200-{name}-{model}-{form}"
        for old in folder.glob(f"{stem}-????-??-??.json"):
            old.unlink()
        (folder / f"{stem}-{date}.json").write_text(json.dumps(report, indent=2) + "\n")


def pace_of(report: dict) -> str:
    """What a report says of itself. Older ones have no warm_up_s: they were measured without work before."""
    device = report["device"]
    if device.get("is_sustained"):
        return "sustained"
    warm_up = device.get("warm_up_s", 0)
    return "burst" if warm_up == 0 else f"after {warm_up:g} s of work"


def stem_of(path: Path) -> str:
    return path.name[:-len("-2026-11-18.json")]


def reports(folder: Path) -> list[tuple[Path, dict]]:
    found = [(path, json.loads(path.read_text())) for path in folder.glob("h200-*.json")]
    order = {f"h200-{run[0]}-{run[1]}-{run[2]}": i for i, run in enumerate(RUNS)}
    return sorted(found, key=lambda item: order.get(stem_of(item[0]), len(RUNS)))


def records(name: str) -> dict[tuple[str, str], tuple[Path, dict]]:
    """(model, format) -> the committed record of this name."""
    found = {stem_of(path): (path, report) for path, report in reports(RESULTS)}
    stems = {(run[1], run[2]): f"h200-{run[0]}-{run[1]}-{run[2]}" for run in RUNS if run[0] == name}
    return {key: found[stem] for key, stem in stems.items() if stem in found}


def times(report: dict, activations: str = "none") -> dict[int, float]:
    return {row["tokens"]: row["us_median"] for row in report["results"] if row["activations"] == activations}


def link(path: Path) -> str:
    return f"([record](../{path.relative_to(ROOT)}))"


def kind_of(path: Path) -> str:
    name = path.name.removeprefix("h200-")
    return next(kind for kind in ("schemes", "fp8", "skewed", "sustained", "layers") if kind in name)


def bars_of(model: str, form: str) -> dict[int, dict]:
    known = json.loads((PEERS / "h200.json").read_text())
    rows = known["models"].get(model, []) if form == known["format"] else []
    return {row["tokens"]: row for row in rows}


def peer_times(file: str, part: str, model: str, key: str) -> dict[int, float]:
    known = json.loads((PEERS / file).read_text())[part]["models"].get(model, {"points": []})
    return {row["tokens"]: row[key] for row in known["points"] if key in row}


def head(report: dict) -> str:
    first, ceilings, device = report["results"][0], report["ceilings"], report["device"]
    worst = max(row["rel_error"] for row in report["results"])
    return (f"**{first['model']}, {first['format']}, {first['routing']} routing, {pace_of(report)}**; {device['name']},"
            f" driver {device['driver']}; {first['layers']} layers in rotation; ceilings of the same run:"
            f" read {ceilings['read_gb_per_s']:.0f} GB/s, bf16"
            f" {ceilings['bf16_gflop_per_s'] / 1000:.0f} TFLOP/s; error up to {worst:.1e}")


def layers_table(report: dict) -> list[str]:
    first = report["results"][0]
    is_hopper = first["kernel"].startswith("sm90/")
    peers = bars_of(first["model"], first["format"] if first["routing"] == "uniform" and is_hopper else "")
    lines = ["| tokens | experts | us | times the floor | GB/s | TFLOP/s |"
             + (" must | stretch | best peer, us | its time over ours |" if peers else ""),
             "|--:|--:|--:|--:|--:|--:|" + ("--:|--:|--:|--:|" if peers else "")]
    for row in report["results"]:
        line = (f"| {row['tokens']} | {row['active_experts']:.1f} | {row['us_median']:.1f} |"
                f" {row['ratio_to_floor']:.2f} | {row['gb_per_s']:.0f} | {row['gflop_per_s'] / 1000:.1f} |")
        if peers:
            peer = peers.get(row["tokens"])
            if peer:
                kept = "" if row["us_median"] <= peer["must_us"] else " missed"
                line += (f" {peer['must_us']:.1f}{kept} | {peer['stretch_us']:.1f} |"
                         f" {peer['peer_us']:.1f} ({peer['peer']}) |"
                         f" {peer['peer_us'] / row['us_median']:.2f} |")
            else:
                line += " | | | |"
        lines.append(line)
    return lines


def schemes_table(report: dict) -> list[str]:
    rows = report["results"]
    names = list(dict.fromkeys(row["activations"] for row in rows))
    lines = ["| tokens | " + " | ".join(f"{name}, us" for name in names) + " | largest share of none |",
             "|--:|" + "--:|" * (len(names) + 1)]
    for tokens in dict.fromkeys(row["tokens"] for row in rows):
        by = {row["activations"]: row["us_median"] for row in rows if row["tokens"] == tokens}
        lines.append(f"| {tokens} | " + " | ".join(f"{by[name]:.1f}" for name in names)
                     + f" | {max(by.values()) / by['none']:.2f} |")
    return lines


def section(found: list[tuple[Path, dict]], for_page: bool) -> str:
    lines = []
    for path, report in found:
        lines.append(f"{head(report)} {link(path)}" if for_page else head(report))
        lines.append("")
        if for_page and kind_of(path) == "layers":
            lines += [f"![time per layer, {pace_of(report)}](images/{image_of(path)})", ""]
        lines += schemes_table(report) if kind_of(path) in ("schemes", "fp8") else layers_table(report)
        lines.append("")
    return "\n".join(lines).rstrip()


def is_own(path: Path) -> bool:
    """True for reports whose whole tables stand on the page."""
    return path.name.startswith("h200-cuda-")


def layers_part() -> str:
    return section([item for item in reports(RESULTS) if is_own(item[0])], True)


# ---- FP8 ----

SCHEMES = {"fp8_token": "FP8 per token", "fp8_block": "FP8 per block"}
MIN_BLOCK_MEAN = 96  # tokens an expert from which on FP8 per block takes FP8 tensor cores (moe/cuda/plan.cpp)


def mean_tokens(row: dict, experts: int) -> float:
    return row["tokens"] * row["top_k"] / experts


def experts_of(report: dict) -> int:
    """All experts are in use at the largest number of tokens."""
    return round(max(row["active_experts"] for row in report["results"]))


def is_slow(row: dict, report: dict) -> bool:
    return row["activations"] == "fp8_block" and mean_tokens(row, experts_of(report)) < MIN_BLOCK_MEAN


def fp8_speed_part() -> str:
    lines = ["| FP8 on FP8 tensor cores | tokens an expert | as fast as the same values multiplied in bf16 |", "|---|---|---|"]
    for scheme, name in SCHEMES.items():
        means, ratios = [], []
        for _, report in records("fp8").values():
            in_bf16 = times(report, f"{scheme}_in_bf16")
            for row in report["results"]:
                if row["activations"] == scheme and row["path"] == "fp8" and not is_slow(row, report):
                    means.append(mean_tokens(row, experts_of(report)))
                    ratios.append(in_bf16[row["tokens"]] / row["us_median"])
        lines.append(f"| {name} | {min(means):.0f} to {max(means):.0f} | {min(ratios):.2f} to {max(ratios):.2f} times |")
    return "\n".join(lines)


def fp8_part() -> str:
    tokens = MANY.split(",")
    paces = dict.fromkeys(pace_of(report) for _, report in records("fp8").values())
    lines = [f"| MXFP4, us a layer, {', '.join(paces)} | activations | {' | '.join(tokens)} |", "|---|---|" + "--:|" * len(tokens)]
    for (model, _), (path, report) in records("fp8").items():
        kinds = {"none": "bf16"}
        for scheme, name in SCHEMES.items():
            kinds |= {scheme: name, f"{scheme}_in_bf16": "the same, multiplied in bf16"}
        for kind, name in kinds.items():
            cells = []
            for row in (row for row in report["results"] if row["activations"] == kind):
                text = f"{row['us_median']:.0f}"
                text = f"**{text}**" if row["path"] == "fp8" else text
                cells.append(text + " *" if row["path"] == "fp8" and is_slow(row, report) else text)
            title = f"{NAMES[model]} {link(path)}" if kind == "none" else ""
            lines.append(f"| {title} | {name} | {' | '.join(cells)} |")
        peer = peer_times("nvfp4-fp8-2026-11-18.json", "h200_fp8", model, "humming_fp8_token_us")
        lines.append(f"|  | Humming, FP8 per token | {' | '.join(f'{peer[int(t)]:.0f}' for t in tokens)} |")
    return "\n".join(lines)


# ---- Kernels since Ampere ----

MARLIN = {"mxfp4": ("one-run-2026-11-18.json", "h200"), "nvfp4": ("nvfp4-fp8-2026-11-18.json", "h200_nvfp4")}


def short(us: float) -> str:
    return f"{us:.1f}" if us < 99.95 else f"{us:.0f}"


def sm80_part() -> str:
    tokens = [int(word) for word in SOME.split(",")]
    lines = ["| us a layer, sustained | kernels | 1 token | " + " | ".join(str(t) for t in tokens[1:]) + " |",
             "|---|---|" + "--:|" * len(tokens)]
    for (model, form), (path, report) in records("sm80-layers").items():
        assert pace_of(report) == "sustained", path
        own = times(report)
        lines.append(f"| {NAMES[model]}, {form.upper()} {link(path)} | `sm80` | {' | '.join(short(own[t]) for t in tokens)} |")
        if (model, form) in records("sustained"):
            other, hopper = records("sustained")[model, form]
            lines.append(f"| | `sm90` {link(other)} | {' | '.join(short(times(hopper)[t]) for t in tokens)} |")
        file, part = MARLIN[form]
        marlin = peer_times(file, part, model, "marlin_us")
        lines.append(f"| | Marlin | {' | '.join(f'{marlin[t]:.0f}' for t in tokens)} |")
        lines.append(f"| | Marlin / `sm80` | {' | '.join(f'{marlin[t] / own[t]:.2f}' for t in tokens)} |")
    return "\n".join(lines)


# ---- Bursts and sustained work ----


def sustained_part() -> str:
    tokens = [int(word) for word in ALL.split(",")]
    lines = ["| sustained / burst | " + " | ".join(str(t) for t in tokens) + " |", "|---|" + "--:|" * len(tokens)]
    bursts = records("cuda-layers")
    for key, (path, report) in records("sustained").items():
        warm, cold = times(report), times(bursts[key][1])
        lines.append(f"| {NAMES[key[0]]} {link(path)} | {' | '.join(f'{warm[t] / cold[t]:.2f}' for t in tokens)} |")
    return "\n".join(lines)


def bar_cell(name: str, bar: str) -> str:
    """How many points of a bar the records meet, and which: those that meet it where they are few, else the others."""
    met: dict[str, list[int]] = {}
    over: dict[str, list[int]] = {}
    excess = []
    for (model, form), (_, report) in records(name).items():
        bars, found = bars_of(model, form), times(report)
        for tokens in bars:
            ratio = found[tokens] / bars[tokens][f"{bar}_us"]
            (met if ratio <= 1 else over).setdefault(NAMES[model], []).append(tokens)
            if ratio > 1:
                excess.append(100 * (ratio - 1))
    count, missed = (sum(map(len, side.values())) for side in (met, over))
    text = f"{count} of {count + missed}"
    if 0 < count <= 3:
        return f"{text}: {points_text(met)}"
    if 0 < missed <= count:
        return f"{text}. Not {points_text(over)}: {min(excess):.0f} to {max(excess):.0f} % too slow"
    return text


def points_text(points: dict[str, list[int]]) -> str:
    return "; ".join(f"{model} at {', '.join(map(str, tokens))}" for model, tokens in points.items()) + " tokens"


def bars_part() -> str:
    lines = ["| bar | bursts meet it | sustained work meets it |", "|---|--:|---|"]
    lines += [f"| `{bar}` | {bar_cell('cuda-layers', bar)} | {bar_cell('sustained', bar)} |" for bar in ("must", "stretch")]
    return "\n".join(lines)


# ---- The page ----

PARTS = {"fp8 speed": fp8_speed_part, "fp8": fp8_part, "sm80": sm80_part, "sustained": sustained_part,
         "bars": bars_part, "layers": layers_part}


def image_of(path: Path) -> str:
    return stem_of(path) + ".svg"


def draw(program: str) -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    for path, report in reports(RESULTS):
        if kind_of(path) != "layers" or not is_own(path):
            continue
        image = IMAGES / image_of(path)
        subprocess.run([program, "bench", "plot", str(path), "--out", str(image)], check=True, stdout=subprocess.DEVNULL)
        # The program does not know of all records whether they are bursts.
        drawing, ending = image.read_text(), " routing</t"
        assert drawing.count(ending) == 2, image  # title, and the text that shows it
        image.write_text(drawing.replace(ending, f" routing, {pace_of(report)}</t"))


def with_tables(page: str) -> str:
    for name, part in PARTS.items():
        mark = f"<!-- {name} -->"
        begin, _, end = page.split(mark)
        page = f"{begin}{mark}\n{part()}\n{mark}{end}"
    return page


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("program", nargs="?", help="fp4moe, built for release with CUDA")
    parser.add_argument("--out", default=str(RESULTS), help="folder of the reports")
    parser.add_argument("--model", help="only this one")
    parser.add_argument("--only", choices=list(dict.fromkeys(run[0] for run in RUNS)))
    parser.add_argument("--seconds", type=float, help="for each sustained report (8); a burst takes 0.5")
    parser.add_argument("--table", action="store_true", help="measure nothing, print")
    parser.add_argument("--write", action="store_true", help="measure nothing, rewrite the page's tables")
    parser.add_argument("--draw", action="store_true", help="measure nothing, rewrite tables and plots")
    parser.add_argument("--check", action="store_true", help="change nothing")
    arguments = parser.parse_args()
    if arguments.table:
        print(section(reports(Path(arguments.program or arguments.out)), False))
        return 0
    page = PAGE.read_text()
    if arguments.check:
        if with_tables(page) == page:
            return 0
        print(f"{PAGE} does not show bench/results: run tools/bench_cuda.py --write")
        return 1
    if arguments.write:
        PAGE.write_text(with_tables(page))
        return 0
    if not arguments.program:
        parser.error("which fp4moe?")
    if arguments.draw:
        draw(arguments.program)
        PAGE.write_text(with_tables(page))
        return 0
    measure(arguments.program, arguments)
    print(section(reports(Path(arguments.out)), False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
