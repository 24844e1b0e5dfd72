#!/usr/bin/env python3
"""Measure whole MoE layers on this machine, and keep what docs/bench.md says of them.

  tools/bench_layer.py PROGRAM          measure: bench/results/NAME-layer-*.json, then draw and tabulate
  tools/bench_layer.py PROGRAM --draw   only draw docs/images/*.svg and tabulate, from bench/results
  tools/bench_layer.py --check          say whether the tables are those of bench/results
"""
import argparse
import datetime
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
IMAGES = ROOT / "docs" / "images"
PAGE = ROOT / "docs" / "bench.md"
MARK = "<!-- layer -->"
RUNS = [
    # model, format, tokens
    ("gpt-oss-20b", "mxfp4", "1,4,16,64,256,512"),
    ("gpt-oss-20b", "nvfp4", "1,4,16,64,256,512"),
    ("gpt-oss-120b", "mxfp4", "1,4,16,64,256,512"),
    ("qwen3-30b-a3b", "mxfp4", "1,4,16,64,256,512"),
    ("qwen3-30b-a3b", "nvfp4", "1,4,16,64,256,512"),
    ("deepseek-v3", "nvfp4", "1,4,16,64,256"),
    ("nemotron-3-nano", "nvfp4", "1,4,16,64,256,512"),
]


def slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def measure(program: str, arguments: argparse.Namespace) -> None:
    date = datetime.date.today().isoformat()
    for model, form, tokens in RUNS:
        if arguments.model and model != arguments.model:
            continue
        command = [program, "bench", "layer", "--json", "--model", model, "--format", form,
                   "--tokens", tokens, "--engine", "cpu", "--numerics", "exact,fast",
                   "--seconds", str(arguments.seconds)]
        if arguments.threads:
            command += ["--threads", str(arguments.threads)]
        print(" ".join(command), file=sys.stderr)
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:  # one layer of the largest models does not fit everywhere
            print(f"{model} {form}: status {done.returncode}, left out", file=sys.stderr)
            continue
        report = json.loads(done.stdout)
        name = arguments.name or slug(report["machine"]["model"])
        threads = report["results"][0]["threads"]
        for old in RESULTS.glob(f"{name}-layer-{model}-{form}-{threads}-threads-*.json"):
            old.unlink()
        path = RESULTS / f"{name}-layer-{model}-{form}-{threads}-threads-{date}.json"
        path.write_text(json.dumps(report, indent=2) + "\n")


def reports() -> list[tuple[Path, dict]]:
    return [(path, json.loads(path.read_text())) for path in sorted(RESULTS.glob("*-layer-*.json"))]


def machine_of(path: Path) -> str:
    return path.name.split("-layer-")[0]


def image_of(path: Path) -> str:
    return re.sub(r"-\d{4}-\d\d-\d\d\.json$", ".svg", path.name)


def draw(program: str) -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    for path, _ in reports():
        subprocess.run([program, "bench", "plot", str(path), "--out", str(IMAGES / image_of(path))],
                       check=True, stdout=subprocess.DEVNULL)


def cell(row: dict | None) -> str:
    return f"{row['us_median']:.0f} ({row['ratio_to_floor']:.2f})" if row else ""


def table(path: Path, report: dict) -> list[str]:
    rows = report["results"]
    first, ceilings = rows[0], report["ceilings"]
    errors = {name: max(r["rel_error"] for r in rows if r["numerics"] == name)
              for name in {r["numerics"] for r in rows}}
    said = ", ".join(f"{name} {errors[name]:.1e}" for name in sorted(errors))
    lines = [
        f"**{first['model']}, {first['format']}**, {machine_of(path)}, {first['threads']} threads,"
        f" `{first['kernel'].rsplit('/', 1)[0]}`; read {ceilings['read_gb_per_s']:.0f} GB/s,"
        f" int8 {ceilings['int8_gop_per_s']:.0f} Gop/s; error {said}"
        f" ([record](../bench/results/{path.name}))",
        "",
        f"![time per layer](images/{image_of(path)})",
        "",
        "| tokens | experts | exact, us (times the floor) | GB/s | GFLOP/s |"
        " fast, us (times the floor) | GB/s | GFLOP/s |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for tokens in sorted({r["tokens"] for r in rows}):
        by = {r["numerics"]: r for r in rows if r["tokens"] == tokens}
        line = f"| {tokens} | {next(iter(by.values()))['active_experts']:.1f} |"
        for name in ("exact", "fast"):
            row = by.get(name)
            rates = (f"{row['gb_per_s']:.1f}", f"{row['gflop_per_s']:.0f}") if row else ("", "")
            line += f" {cell(row)} | {rates[0]} | {rates[1]} |"
        lines.append(line)
    return lines + [""]


def section() -> str:
    lines = []
    for path, report in reports():
        lines += table(path, report)
    return "\n".join(lines).rstrip()


def with_tables(page: str) -> str:
    begin, _, end = page.split(MARK)
    return f"{begin}{MARK}\n{section()}\n{MARK}{end}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("program", nargs="?", help="fp4moe, built for release")
    parser.add_argument("--name", help="of the machine, in file names (default: its model)")
    parser.add_argument("--model", help="only this one")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--seconds", type=float, default=60, help="for each report")
    parser.add_argument("--draw", action="store_true", help="measure nothing")
    parser.add_argument("--check", action="store_true", help="change nothing")
    arguments = parser.parse_args()
    page = PAGE.read_text()
    if arguments.check:
        if with_tables(page) == page:
            return 0
        print(f"{PAGE} does not show bench/results: run tools/bench_layer.py PROGRAM --draw")
        return 1
    if not arguments.program:
        parser.error("which fp4moe?")
    if not arguments.draw:
        measure(arguments.program, arguments)
    draw(arguments.program)
    PAGE.write_text(with_tables(page))
    return 0


if __name__ == "__main__":
    sys.exit(main())
