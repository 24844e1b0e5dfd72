#!/usr/bin/env python3
"""Finds words that CONTRIBUTING's dictionary has replaced; each row names what to write instead."""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPLACED = {
    r"\bkMost|\bmost_[a-z]": "kMax, max_",
    r"\btwins?\b|[a-z]Twin": "reference",
    r"(?<![\"`.\w])[a-z_]*(?:quanti|normali|initiali|seriali|optimi|recogni|speciali|vectori|summari)s(?:e|ed|es|er|ing|ation)\b": "-ize",
    r"\bsync_some\b|\bcopy_later|\blet_next_begin\b|\bgive_registers\b": "PTX's names",
    r"\bby turns\b": "interleaved",
    r"\bthe processor\b": "CPU",
    r"\bbystander": "passthrough",
    r"\bdealt out\b": "sharded",
    r"\bkSpring|\bEra\b": "PolicyDate, a month with its year",
    r"\bcannot be so\b": "a plain head: invalid value, too many ...",
    r"\b(?:Expert|Rows|Projection|Tile)Rooms?\b|\bmake_room\b": "buffers, reserve",
    r"\bProduct(?:Call|Kernel|Rows|Weights|Tokens)\b": "Gemm...",
}
# The dictionary itself, what was published under the old words, and what other programs wrote.
LEFT = ("CONTRIBUTING.md", "CHANGELOG.md", "docs/cuda-experiments.md", "tools/check_words.py", "testdata/", "bench/", "tests/fuzz/corpus/",
        "include/", "docs/c-api-reference.md")


def findings(root: Path):
    for name in subprocess.check_output(["git", "ls-files"], cwd=root, text=True).split():
        path = root / name
        if name.startswith(LEFT) or not name.endswith((".cpp", ".hpp", ".cu", ".cuh", ".py", ".md", ".toml")) or not path.is_file():
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for pattern, word in REPLACED.items():
                found = re.search(pattern, line)
                if found:
                    yield f"{name}:{number}: '{found[0]}': write {word}"


if __name__ == "__main__":
    wrong = list(findings(ROOT))
    print("\n".join(wrong) or f"none of {len(REPLACED)} rows of replaced words is left")
    sys.exit(1 if wrong else 0)
