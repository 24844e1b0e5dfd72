#!/usr/bin/env python3
"""docs/from-vllm.md held against the symbols it names: C++ headers, Python modules, enumerations,
environment variables, options of the command line. Exit 1 where they differ."""
import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADERS = ROOT / "src/fp4moe/vllm"
PACKAGE = ROOT / "python/fp4moe/vllm"
PUBLIC = ("mxfp4.hpp", "nvfp4.hpp")  # every function of theirs has a row
MODULES = ("oracle/mxfp4.py", "oracle/nvfp4.py", "method.py")


def rows(page, first):
    """The cells of the first table whose first column is called so."""
    found = re.search(rf"^\| {re.escape(first)} \|.*\n\|[-| ]+\|\n((?:\|.*\n)+)", page, re.M)
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in found[1].splitlines()] if found else []


def codes(cell):
    return re.findall(r"`([^`]+)`", cell)


def members(header, enum):
    body = re.search(rf"enum class {enum} [^{{]*\{{(.*?)\}};", (HEADERS / header).read_text(), re.S)[1]
    return re.findall(r"^\s*([A-Z0-9_]+),", body, re.M)


def python_members(module, enum):
    tree = ast.parse((PACKAGE / module).read_text())
    found = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == enum)
    return [node.targets[0].id for node in found.body if isinstance(node, ast.Assign)]


def python_names(modules):
    """Public names of the modules' own, and of their classes."""
    own, all_names = set(), set()
    for file in PACKAGE.rglob("*.py"):
        tree = ast.parse(file.read_text())
        for node in tree.body:
            names = []
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                names = [node.name]
            elif isinstance(node, ast.Assign):
                names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            all_names |= set(names)
            if isinstance(node, ast.ClassDef):
                all_names |= {n.name for n in ast.walk(node) if isinstance(n, ast.FunctionDef)}
                all_names |= {n.target.id for n in node.body if isinstance(n, ast.AnnAssign)}
            if file.relative_to(PACKAGE).as_posix() in modules and isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                own |= {name for name in names if not name.startswith("_")}
    return own, all_names


def problems(page):
    header_text = "\n".join(file.read_text() for file in sorted(HEADERS.glob("*.hpp")))
    header_text += (ROOT / "src/fp4moe/oracle/parallel.hpp").read_text()
    options = (ROOT / "docs/commands.md").read_text()
    own, python = python_names(MODULES)
    functions = rows(page, "vLLM")
    cpp_named, python_named = set(), set()
    for cells in functions:
        for name in codes(cells[1]):
            cpp_named.add(name.split("::")[-1])
            if not re.search(rf"\b{re.escape(name.split('::')[-1])}\b", header_text):
                yield f"C++ has no {name}"
        for name in codes(cells[2]):
            python_named.add(name)
            if name not in python:
                yield f"Python has no {name}"
        for text in codes(cells[3]):
            for option in re.findall(r"--[a-z0-9-]+", text):
                if f"`{option}" not in options:
                    yield f"no command has {option}"
    for header in PUBLIC:
        for name in re.findall(r"^(?:constexpr )?[A-Z]\w+(?:<.*>)? (\w+)\(|^[A-Za-z:]+<[^\n]*> (\w+)\(",
                               (HEADERS / header).read_text(), re.M):
            function = name[0] or name[1]
            if function not in cpp_named and f"`{function}`" not in page:
                yield f"{header}: {function} has no row"
    for name in sorted(own - python_named):
        if f"`{name}`" not in page:
            yield f"Python's {name} has no row"
    for header, module, enum in (("mxfp4.hpp", "oracle/mxfp4.py", "Mxfp4MoeBackend"),
                                 ("nvfp4.hpp", "oracle/nvfp4.py", "NvFp4MoeBackend")):
        there = members(header, enum)
        if python_members(module, enum) != there:
            yield f"{enum}: C++ and Python have different members"
        told = [codes(cells[0])[0] for cells in rows(page, f"`{enum}`")]
        for name in sorted(set(there) ^ set(told)):
            yield f"{enum}: {name} is {'no row' if name in there else 'no member'}"
    variables = set(re.findall(r'"(VLLM_[A-Z0-9_]+)"', (ROOT / "src/fp4moe/platform/environment.cpp").read_text()))
    told = {codes(cells[0])[0] for cells in rows(page, "variable")}
    for name in sorted(variables ^ told):
        yield f"variable {name} {'has no row' if name in variables else 'is not read here'}"
    config = (HEADERS / "moe_config.hpp").read_text()
    for cells in rows(page, "flag of `vllm serve`"):
        for option in codes(cells[3]):
            if f"`{option}" not in options:
                yield f"no command has {option}"
        for name in codes(cells[1]) + codes(cells[2]):
            if not re.search(rf"\b{re.escape(name.split('::')[-1])}\b", config) or name.split("::")[-1] not in python:
                yield f"the configuration has no {name}"
    keys = rows(page.split("## Quantization keys")[1], "vLLM")
    words = (ROOT / "src/fp4moe/oracle/words.hpp").read_text() + (ROOT / "src/fp4moe/formats/weight_format.hpp").read_text()
    told = set()
    for cells in keys:
        told |= set(codes(cells[1]))
        for word in codes(cells[2]):
            if f'"{word}"' not in words:
                yield f"no quantization key is called {word}"
    for name in set(re.findall(r"^inline constexpr \w+ (k\w+) =", config, re.M)) ^ told:
        yield f"quantization key {name} {'has no name in C++' if name in told else 'has no row'}"


if __name__ == "__main__":
    text = (ROOT / "docs/from-vllm.md").read_text()
    wrong = list(problems(text))
    count = len(rows(text, "vLLM"))
    print("\n".join(wrong) or f"{count} functions, every name of docs/from-vllm.md is there")
    sys.exit(1 if wrong or count < 30 else 0)
