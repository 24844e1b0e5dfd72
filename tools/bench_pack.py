#!/usr/bin/env python3
"""Measure how fast experts are laid out for each backend, and keep what docs/bench.md says of it.

  tools/bench_pack.py PROGRAM --name NAME --threads N   measure: bench/results/NAME-pack-N-threads-DATE.json, then tabulate
  tools/bench_pack.py --table                           only tabulate, from bench/results
  tools/bench_pack.py --check                           say whether the table is that of bench/results
"""
import argparse
import datetime
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "bench.md"
MARK = "<!-- pack table -->"
COLUMNS = [  # heading, record
    ("Neoverse, 1", "neoverse-v1-pack-1-thread"),
    ("Neoverse, 2", "neoverse-v1-pack-2-threads"),
    ("Xeon, 1", "xeon-amx-pack-1-thread"),
    ("Xeon, 8", "xeon-amx-pack-8-threads"),
]


def measure(arguments: argparse.Namespace) -> None:
    command = [arguments.program, "bench", "pack", "--json", "--threads", str(arguments.threads)]
    report = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    stem = f"{arguments.name}-pack-{arguments.threads}-thread{'s' if arguments.threads > 1 else ''}"
    for old in RESULTS.glob(f"{stem}-????-??-??.json"):
        old.unlink()
    date = datetime.date.today().isoformat()
    (RESULTS / f"{stem}-{date}.json").write_text(json.dumps(report, indent=2) + "\n")


def rows_of(stem: str) -> dict[tuple[str, str], dict]:
    path = next(RESULTS.glob(f"{stem}-????-??-??.json"))
    return {(row["layout"], row["generation"]): row for row in json.loads(path.read_text())["results"]}


def table() -> str:
    records = [rows_of(stem) for _, stem in COLUMNS]
    lines = [f"| layout | generation | bar | {' | '.join(name for name, _ in COLUMNS)} | times map (Neoverse) |",
             f"|---|---|--:|{'--:|' * len(COLUMNS)}--:|"]
    for key, first in records[0].items():
        bar = 0.25 if first["recodes"] else 0.5
        cells = []
        for row in (rows.get(key) for rows in records):
            share = row["share_of_memcpy"] if row else 0
            cells.append(f"{share:.2f} ({row['gb_per_s']:.1f}){' missed' if share < bar else ''}" if row else "-")
        lines.append(f"| {key[0]} | {key[1] or '-'} | {bar:.2f} | {' | '.join(cells)} | {first['times_map']:.0f} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("program", nargs="?", help="fp4moe, built for release")
    parser.add_argument("--name", help="of this machine, in the records")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="measure nothing, rewrite the table")
    parser.add_argument("--check", action="store_true", help="change nothing")
    arguments = parser.parse_args()
    if not (arguments.table or arguments.check) and not (arguments.program and arguments.name):
        parser.error("name the program and the machine, or say --table or --check")
    if not (arguments.table or arguments.check):
        measure(arguments)
    text = PAGE.read_text()
    before, _, after = text.split(MARK)
    result = f"{before}{MARK}\n{table()}\n{MARK}{after}"
    if arguments.check:
        if result != text:
            print("docs/bench.md: its table of packing is not that of bench/results; run tools/bench_pack.py --table", file=sys.stderr)
        return 0 if result == text else 1
    PAGE.write_text(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
