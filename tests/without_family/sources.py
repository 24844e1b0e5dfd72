#!/usr/bin/env python3
"""The sources of a tree whose folder backends/marlin/ is deleted, and its lines in the lists.

    sources.py SOURCE_FOLDER DESTINATION

Writes the backends and the golden operations that are left, and prints nothing. Fails where another line still
names the family's code.
"""
import re
import shutil
import sys
from pathlib import Path

LEFT = re.compile(r'backends/marlin|\bmarlin::|marlin_operations|"(?:BATCHED_)?MARLIN"')


def edited_policies(text: str) -> str:
    text = re.sub(r" *policy\.lora = \{.*?\};\n", "", text, flags=re.S)  # the first oracles' adapters: Marlin or Triton
    text = re.sub(r"\s*policy\.steps = \{\s*\{\.variable = Variable::test_force_fp8_marlin.*?\}\};", "", text, flags=re.S)
    text = re.sub(r"\s*\{\.variable = Variable::mxfp4_use_marlin,.*?\.like_a_name = true\},", "", text, flags=re.S)
    text = re.sub(r'"(?:BATCHED_)?MARLIN"(?:,\s*)?', "", text)
    return re.sub(r'\s*named\("marlin", rows\(\{\}\)\),', "", text)


def lines_without(text: str, name: str) -> str:
    return "".join(line for line in text.splitlines(True) if name not in line)


def families_header(template: str, folder: Path) -> str:
    declarations, lists = "", {"backend": "", "layout": ""}
    signatures = {"backend": "std::span<const oracle::Backend> backends()", "layout": "std::vector<layout::Layout> layouts()"}
    for file, signature in signatures.items():
        for member in sorted(folder.glob(f"*/{file}.cpp")):
            declarations += f"namespace {member.parent.name} {{\n{signature};\n}}\n"
            lists[file] += f"{member.parent.name}::{file}s, "
    template = template.replace("@declarations@", declarations)
    return template.replace("@backend_entries@", lists["backend"]).replace("@layout_entries@", lists["layout"])


def write(source: Path, to: Path) -> None:
    backends, golden = to / "src/fp4moe/backends", to / "tests/golden"
    shutil.rmtree(to, ignore_errors=True)
    ignored = shutil.ignore_patterns("*_test.cpp", "marlin")
    shutil.copytree(source / "src/fp4moe/backends", backends, ignore=ignored)
    shutil.copytree(source / "tests/golden/operations", golden / "operations", ignore=shutil.ignore_patterns("marlin.cpp"))
    shutil.copy(source / "tests/golden/layout_operations.cpp", golden)
    for name, edit in {
        backends / "policies.cpp": edited_policies,
        backends / "layouts.cpp": lambda text: lines_without(text, '"marlin.nvfp4"'),
        golden / "layout_operations.cpp": lambda text: lines_without(text, "marlin_operations"),
        golden / "operations/operations.hpp": lambda text: lines_without(text, "marlin_operations"),
    }.items():
        name.write_text(edit(name.read_text()))
    header = to / "generated/fp4moe/backends/families.hpp"
    header.parent.mkdir(parents=True)
    header.write_text(families_header((backends / "families.hpp.in").read_text(), backends))
    for path in sorted(to.rglob("*.[ch]pp")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            found = LEFT.search(line.split("//")[0])
            if found:
                sys.exit(f"{path.relative_to(to)}:{number}: still names '{found[0]}'")


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
