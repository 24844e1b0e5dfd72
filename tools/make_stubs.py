#!/usr/bin/env python3
"""Writes stubs in which the verbs of the Python package name every keyword with its type.

    tools/make_stubs.py BUILT_FOLDER

BUILT_FOLDER holds the compiled module _core and gets commands.pyi and selection.pyi. The words are those
of the command line's options, as `fp4moe help --json` tells them.
"""
from __future__ import annotations

import ast
import sys
import types
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).resolve().parent.parent / "python/fp4moe"
MODULES = ("commands.py", "selection.py")

TEXTS = {"word": "str", "path": "Path", "number": "Path | float", "rank": "int | str | tuple[int, int]"}
LISTS = {"word": "Sequence[str]", "path": "Path | Sequence[Path]", "number": "str | int | Sequence[str] | Sequence[int]",
         "pair": "Mapping[str, str] | Sequence[str]"}
TYPES = {"flag": "bool", "integer": "int", "bytes": "int | str", "number": "float"}


def literal(words: list[str]) -> str:
    return f"Literal[{', '.join(map(repr, words))}]"


def type_of(option: dict[str, Any]) -> str:
    """The type of a keyword's value, but for None."""
    if option["choices"]:
        return literal(option["choices"])
    if option["implied"] is not None:
        return f"bool | {TYPES[option['type']]}"
    if option["type"] == "text":
        return TEXTS[option["form"]]
    return LISTS[option["form"]] if option["type"] == "list" else TYPES[option["type"]]


def verb_of(function: ast.FunctionDef) -> str | None:
    """The verb that a function of the package runs: the text that it calls the command line with."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("_checked", "commands.call"):
            first = node.args[0]
            return first.value if isinstance(first, ast.Constant) else None
    return None


def expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


class Stub(ast.NodeTransformer):
    """Bodies go, docstrings stay, **words become keywords."""

    def __init__(self, package: Any) -> None:
        self.package = package

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        verb = verb_of(node)
        if verb and node.args.kwarg and node.args.kwarg.arg == "words":
            self.spell_out(node.args, verb)
        keeps = node.body[:1] if ast.get_docstring(node) else []
        node.body = [*keeps, ast.Expr(ast.Constant(...))]
        return node

    def spell_out(self, arguments: ast.arguments, verb: str) -> None:
        words = self.package.commands.options(verb)
        named = {argument.arg: argument for argument in arguments.args + arguments.kwonlyargs}
        for name, argument in named.items():
            if name in words and words[name]["choices"]:
                argument.annotation = expression(literal(words[name]["choices"]))
        if subcommands := self.package._core.options(verb)["subcommands"]:
            arguments.args[0].annotation = expression(literal([each["name"] for each in subcommands]))
        hidden = self.package.selection.NOT_ONE if verb == "explain" else ()
        for name, option in sorted(words.items()):
            if name not in named and name not in hidden:
                arguments.kwonlyargs.append(ast.arg(name, expression(f"{type_of(option)} | None")))
                arguments.kw_defaults.append(ast.Constant(None))
        arguments.kwarg = None


def load(built: Path) -> Any:
    """The package, with what is compiled from one folder and what is not from the sources; its own
    __init__ would import more than is built yet."""
    package = types.ModuleType("fp4moe")
    package.__path__ = [str(built), str(SOURCES)]
    sys.modules["fp4moe"] = package
    import fp4moe.commands
    import fp4moe.selection

    return package


def stub(module: str, package: Any) -> str:
    tree = ast.parse((SOURCES / module).read_text())
    tree.body = [node for node in tree.body if not getattr(node, "name", "").startswith("_")]
    tree = Stub(package).visit(tree)
    imports = "from collections.abc import Mapping, Sequence\nfrom typing import Literal\n"
    if module != "commands.py":
        imports += "from fp4moe.commands import Path\n"
    tree.body[2:2] = ast.parse(imports).body  # behind the docstring and __future__
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def main() -> None:
    sys.dont_write_bytecode = True
    built = Path(sys.argv[1]).resolve()
    package = load(built)
    for module in MODULES:
        (built / module).with_suffix(".pyi").write_text(stub(module, package))


if __name__ == "__main__":
    main()
