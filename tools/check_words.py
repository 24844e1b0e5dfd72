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
    r"\bby turns\b|\b(?:rows|columns|and up)\b.{0,12}\btake turns\b": "interleaved",
    r"\bthe processor\b": "CPU",
    r"\blets? go\b": "release",
    r"\bkEights\b|\bturn_rows\b": "kVectors, transpose_rows",
    r"\b[aA] (?:assignment|offset|unassigned)": "an",
    r"\bbystander": "passthrough",
    r"\bdealt out\b": "sharded",
    r"\bkSpring|\b[sS]pring(?:_|\()|[A-Za-z]*Era\b": "PolicyDate, a month with its year",
    r"\bcannot be so\b": "a plain head: invalid value, too many ...",
    r"\b(?:Expert|Rows|Projection|Tile)Rooms?\b|\bmake_room\b": "buffers, reserve",
    r"\bProduct(?:Call|Kernel|Rows|Weights|Tokens)\b": "Gemm...",
    r"(?i)neighbour|honour|favour|colour|behaviour|licence|centre|\bgrey|spelt": "neighbor, honor, favor, color, behavior, license, center, gray, spelled",
}
# Only in sources that are shipped.
SHIPPED = {
    r"\bmultiply_(?:one|two|few|many|held|rows?|columns|tiles?|k_block|stage|share|half|work|first|second|panel|low)(?![a-z])|(?<!checked)_multiply\b": "gemm_..., mma_..., gemm1, gemm2, lora_low",
    r"\bkLeast": "kMin",
    r"\bplace_of\b(?!\()|\brow_place\b|\bplace_step\b": "offset: offset_of, row_offset, to_step",
    r"\bwish(?:es)?\b|\bera\b": "request, option, interrupt; PolicyDate",
    r"\b(?:[Nn]o|[Ss]ome|[Ee]very)body\b": "the thread, rank, user or file that is meant; untrusted; unassigned",
    r"(?<![-\"])\b[Pp]rocessors?\b": "CPU",
    r"^\s*//+ (?:What|Whether|Of) (?=[a-z])": "the thing itself: a noun, or 'True if'",
}
# Only in pages.
PAGES = {
    r"\bmended\b": "fixed",
    r"(?i)\bmultiprocessor": "SM",
    r"\d times faster\b": "as fast",
    r"(?<![/.])\bwitness(?:es)?\b(?![/.])": "independent implementation",
    r"(?<![-\"])\b[Pp]rocessors\b": "CPUs",
}
# The dictionary itself, what was published under the old words, and what other programs wrote.
LEFT = ("CONTRIBUTING.md", "CHANGELOG.md", "docs/cuda-experiments.md", "tools/check_words.py", "testdata/", "bench/", "tests/fuzz/corpus/",
        "include/", "docs/c-api-reference.md")


def suspects(root: Path):
    """Files in which any pattern is found, by git's own faster search; all where git has none."""
    patterns = [word for pattern in (*REPLACED, *SHIPPED, *PAGES) for word in ("-e", pattern)]
    found = subprocess.run(["git", "grep", "-lP", *patterns], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return (found.stdout if found.returncode < 2 else subprocess.check_output(["git", "ls-files"], cwd=root, text=True)).split()


def findings(root: Path):
    for name in suspects(root):
        path = root / name
        if name.startswith(LEFT) or not name.endswith((".cpp", ".hpp", ".cu", ".cuh", ".py", ".md", ".toml")) or not path.is_file():
            continue
        more = PAGES if name.endswith(".md") else {}
        is_shipped = name.startswith(("src/", "python/src/")) and not re.search(r"_test\.cpp$", name)
        before = ""
        for number, line in enumerate(path.read_text().splitlines(), 1):
            in_comment, before = before.lstrip().startswith("//"), line
            for pattern, word in [*REPLACED.items(), *more.items(), *(SHIPPED.items() if is_shipped else ())]:
                found = re.search(pattern, line)
                if found and not (in_comment and pattern.startswith("^")):
                    yield f"{name}:{number}: '{found[0].strip()}': write {word}"


if __name__ == "__main__":
    wrong = list(findings(ROOT))
    print("\n".join(wrong) or f"none of {len(REPLACED) + len(SHIPPED) + len(PAGES)} rows of replaced words is left")
    sys.exit(1 if wrong else 0)
