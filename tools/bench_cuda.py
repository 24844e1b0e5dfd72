#!/usr/bin/env python3
"""Measure whole MoE layers on this machine's GPU, and keep what docs/cuda-results.md says of them.

  tools/bench_cuda.py PROGRAM [--out FOLDER]   measure into FOLDER (bench/results), print the table
  tools/bench_cuda.py --table [FOLDER]         only print the table, beside the peers of bench/peers
  tools/bench_cuda.py PROGRAM --draw           only draw docs/images and tabulate, from bench/results
  tools/bench_cuda.py --check                  say whether docs/cuda-results.md shows bench/results
"""
import argparse
import datetime
import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
PEERS = ROOT / "bench" / "peers" / "h200.json"
IMAGES = ROOT / "docs" / "images"
PAGE = ROOT / "docs" / "cuda-results.md"
MARK = "<!-- layers -->"
ALL = "1,2,4,8,16,32,64,128,256,512,1024,2048,4096,8192"
SOME = "1,8,16,64,256,1024,4096"
FEW = "1,4,16,64,256"
RUNS = [
    # name, model, format, routing, activations, tokens
    ("layers", "gpt-oss-120b", "mxfp4", "uniform", "none", ALL),
    ("layers", "gpt-oss-20b", "mxfp4", "uniform", "none", ALL),
    ("layers", "qwen3-30b-a3b", "mxfp4", "uniform", "none", ALL),
    ("layers", "gpt-oss-120b", "nvfp4", "uniform", "none", SOME),
    ("layers", "qwen3-30b-a3b", "nvfp4", "uniform", "none", SOME),
    ("skewed", "gpt-oss-120b", "mxfp4", "skewed", "none", SOME),
    ("skewed", "gpt-oss-20b", "mxfp4", "skewed", "none", SOME),
    ("schemes", "gpt-oss-120b", "mxfp4", "uniform", "none,mxfp8,mxfp4,fp8", FEW),
    ("schemes", "qwen3-30b-a3b", "nvfp4", "uniform", "none,nvfp4", FEW),
]


def measure(program: str, arguments: argparse.Namespace) -> None:
    folder = Path(arguments.out)
    folder.mkdir(parents=True, exist_ok=True)
    date = datetime.date.today().isoformat()
    for name, model, form, routing, activations, tokens in RUNS:
        if arguments.model and model != arguments.model or arguments.only and name != arguments.only:
            continue
        command = [program, "bench", "layer", "--json", "--engine", "cuda", "--model", model,
                   "--format", form, "--routing", routing, "--activations", activations,
                   "--tokens", tokens, "--seconds", str(arguments.seconds)]
        print(" ".join(command), file=sys.stderr)
        time.sleep(arguments.pause)
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            print(f"{model} {form}: status {done.returncode}, left out", file=sys.stderr)
            continue
        stem = f"h200-cuda-{name}-{model}-{form}"
        for old in folder.glob(f"{stem}-????-??-??.json"):
            old.unlink()
        report = json.loads(done.stdout)
        (folder / f"{stem}-{date}.json").write_text(json.dumps(report, indent=2) + "\n")


def reports(folder: Path) -> list[tuple[Path, dict]]:
    found = [(path, json.loads(path.read_text())) for path in folder.glob("h200-cuda-*.json")]
    order = {f"h200-cuda-{run[0]}-{run[1]}-{run[2]}": i for i, run in enumerate(RUNS)}
    return sorted(found, key=lambda item: order.get(item[0].name[:-16], len(RUNS)))


def kind_of(path: Path) -> str:
    return path.name.split("-")[2]


def peers_of(model: str, form: str) -> dict[int, dict]:
    known = json.loads(PEERS.read_text())
    rows = known["models"].get(model, []) if form == known["format"] else []
    return {row["tokens"]: row for row in rows}


def head(path: Path, report: dict) -> str:
    first, ceilings, device = report["results"][0], report["ceilings"], report["device"]
    worst = max(row["rel_error"] for row in report["results"])
    return (f"**{first['model']}, {first['format']}, {first['routing']} routing**; {device['name']},"
            f" driver {device['driver']}; {first['layers']} layers in rotation; ceilings of the same run:"
            f" read {ceilings['read_gb_per_s']:.0f} GB/s, bf16"
            f" {ceilings['bf16_gflop_per_s'] / 1000:.0f} TFLOP/s; error up to {worst:.1e}")


def layers_table(report: dict) -> list[str]:
    first = report["results"][0]
    peers = peers_of(first["model"], first["format"] if first["routing"] == "uniform" else "")
    lines = ["| tokens | experts | us | times the floor | GB/s | TFLOP/s |"
             + (" must | stretch | best peer, us | times faster |" if peers else ""),
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


def section(folder: Path, for_page: bool) -> str:
    lines = []
    for path, report in reports(folder):
        title = head(path, report)
        lines.append(f"{title} ([record](../bench/results/{path.name}))" if for_page else title)
        lines.append("")
        if for_page and kind_of(path) == "layers":
            lines += [f"![time per layer](images/{image_of(path)})", ""]
        lines += schemes_table(report) if kind_of(path) == "schemes" else layers_table(report)
        lines.append("")
    return "\n".join(lines).rstrip()


def image_of(path: Path) -> str:
    return path.name[:-16] + ".svg"


def draw(program: str) -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    for path, _ in reports(RESULTS):
        if kind_of(path) == "layers":
            subprocess.run([program, "bench", "plot", str(path), "--out", str(IMAGES / image_of(path))],
                           check=True, stdout=subprocess.DEVNULL)


def with_tables(page: str) -> str:
    begin, _, end = page.split(MARK)
    result = section(RESULTS, True)
    return f"{begin}{MARK}\n{result}{chr(10) if result else ''}{MARK}{end}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("program", nargs="?", help="fp4moe, built for release with CUDA")
    parser.add_argument("--out", default=str(RESULTS), help="folder of the reports")
    parser.add_argument("--model", help="only this one")
    parser.add_argument("--only", choices=["layers", "skewed", "schemes"])
    parser.add_argument("--seconds", type=float, default=8, help="for each report")
    parser.add_argument("--pause", type=float, default=3,
                        help="seconds before each report: a GPU that is hot is slower")
    parser.add_argument("--table", action="store_true", help="measure nothing, print")
    parser.add_argument("--draw", action="store_true", help="measure nothing, rewrite the page")
    parser.add_argument("--check", action="store_true", help="change nothing")
    arguments = parser.parse_args()
    if arguments.table:
        print(section(Path(arguments.program or arguments.out), False))
        return 0
    page = PAGE.read_text()
    if arguments.check:
        if with_tables(page) == page:
            return 0
        print(f"{PAGE} does not show bench/results: run tools/bench_cuda.py PROGRAM --draw")
        return 1
    if not arguments.program:
        parser.error("which fp4moe?")
    if arguments.draw:
        draw(arguments.program)
        PAGE.write_text(with_tables(page))
        return 0
    measure(arguments.program, arguments)
    print(section(Path(arguments.out), False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
