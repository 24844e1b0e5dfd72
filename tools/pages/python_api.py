"""docs/python.md: the public names of the Python package, from their signatures and docstrings.

Sources are read, not imported, but for the stub of the compiled part.
Blocks marked `python` are run by a test; signatures and examples out of docstrings are marked `py`.
"""
from __future__ import annotations

import ast
import inspect
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = ROOT / "python/fp4moe"


@dataclass
class Section:
    title: str
    about: str
    prefix: str  # what stands before a name where it is used
    files: tuple[str, ...]
    names: tuple[str, ...] = ()  # empty: every public one
    exports: str = ""  # or those of a package's __all__


SECTIONS = (
    Section("Models and layers", "Checkpoints opened, and their MoE layers ready to run.", "fp4moe.", ("_core.pyi",),
            ("Model", "Layer", "Adapters")),
    Section("Which backend", "Selections as values ([oracle](oracle.md)).", "fp4moe.", ("selection.py", "verbs.py"),
            ("Change", "Refusal", "Selection", "explain")),
    Section("Arrays to FP4 and back", "Bit for bit as checkpoints have them ([mxfp4](formats/mxfp4.md), "
            "[nvfp4](formats/nvfp4.md)).", "fp4moe.", ("quantize.py",), ("quantize", "dequantize", "Quantized")),
    Section("Number formats", "`fp4moe.formats.e2m1`, `.e8m0`, `.e4m3fn` (or `.e4m3`), `.e5m2` and `.bf16` are a "
            "`Format` each.", "fp4moe.formats.", ("formats.py",)),
    Section("Verbs", "The command line's verbs in this process: the same words, with underscores, and their JSON as typed "
            "dictionaries (`fp4moe.results`). None leaves an option out. A true flag is `True`, a rank of a group a pair `(0, 8)`, several values a list. "
            "`progress(title, done, total)` is called while work goes on. `Path` is `str | os.PathLike[str]`.", "fp4moe.", ("verbs.py", "commands.py")),
    Section("The command line", "`fp4moe` and `python -m fp4moe` are the program itself.", "fp4moe.cli.", ("cli.py",)),
    Section("Errors", "Every id: [errors](errors.md).", "fp4moe.", ("errors.py",),
            ("Error", "FailedError", "UsageError", "InvalidInputError", "UnsupportedError", "MismatchError",
             "ResourceExhaustedError", "UnavailableError")),
    Section("vLLM's oracle", "Its functions by name, on tensors of torch or numpy, without vLLM ([from vLLM](from-vllm.md)).",
            "fp4moe.vllm.oracle.", ("vllm/oracle/config.py", "vllm/oracle/kernels.py"), exports="vllm/oracle/__init__.py"),
    Section("vLLM's oracle: MXFP4", "", "fp4moe.vllm.oracle.mxfp4.", ("vllm/oracle/mxfp4.py",)),
    Section("vLLM's oracle: NVFP4", "", "fp4moe.vllm.oracle.nvfp4.", ("vllm/oracle/nvfp4.py",)),
    Section("vLLM's layer methods", "A layer from weights in memory.", "fp4moe.vllm.method.", ("vllm/method.py",)),
    Section("torch", "`pip install .[torch]`; imports torch.", "fp4moe.torch.", ("torch/moe.py", "torch/ops.py"),
            exports="torch/__init__.py"),
    Section("transformers", "`pip install .[transformers]`; importing it registers the quantizer and the experts "
            "implementation.", "fp4moe.transformers.",
            ("transformers/config.py", "transformers/experts.py", "transformers/quantize.py",
             "transformers/quantizer.py", "transformers/registration.py"), exports="transformers/__init__.py"),
)

HEAD = """\
# Python

```sh
pip install .                    # or a wheel of `make python`; needs numpy alone
pip install '.[transformers]'    # with torch and transformers
```

```python
import numpy as np
import fp4moe

fp4moe.synth("tiny", model="gpt-oss-20b", experts=8, layers=1, hidden=256, intermediate=256)
layer = fp4moe.Layer.open("tiny", 0)                     # a checkpoint of any dialect, or a converted folder
x = np.ones((4, layer.hidden), np.float32)
logits = np.zeros((4, layer.experts), np.float32)
y = layer(x, logits)                                     # routed, computed from FP4 weights, summed
print(layer.info()["backend"], y.shape, fp4moe.explain(model="gpt-oss-20b", device="h100").backend)
```

Arrays are numpy's (float32, float16, float64, `ml_dtypes.bfloat16`) or torch's on the CPU; results are of the kind and type of `x`. Nothing is copied, and other threads run meanwhile. Wrong Python
types are a `TypeError`; everything else that fails is an `fp4moe.Error` with a stable `id` ([errors](errors.md)). From checkpoint to tokens: [tutorial](tutorial.md).
"""
FOOT = "\nWritten by tools/make_docs.py from python/fp4moe.\n"


def is_public(node: ast.stmt) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_")


def signature(function: ast.FunctionDef, prefix: str) -> str:
    arguments = ast.unparse(function.args)
    arguments = re.sub(r"^(self|cls)(, /)?(, )?", "", arguments)
    returns = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    return f"{prefix}{function.name}({arguments}){returns}"


def words_of(node: ast.AST) -> str:
    return inspect.cleandoc(ast.get_docstring(node) or "")


def decorators(function: ast.FunctionDef) -> set[str]:
    return {ast.unparse(decorator).split("(")[0].split(".")[-1] for decorator in function.decorator_list}


def in_table(text: str) -> str:
    """A pipe in a cell ends it, in code, too."""
    return text.replace("|", "\\|")


def one_line(text: str) -> str:
    return in_table(" ".join(text.split("\n\n")[0].split()).replace("``", "`"))


def members(owner: ast.ClassDef, lines: list[str]) -> list[str]:
    """A row for each; a field's words are the comment behind it."""
    rows: dict[str, str] = {}
    for node in owner.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and not node.target.id.startswith("_"):
            said = lines[node.end_lineno - 1].partition("  # ")[2]
            rows[node.target.id] = f"| `{in_table(f'{node.target.id}: {ast.unparse(node.annotation)}')}` | {one_line(said)} |"
        if not isinstance(node, ast.FunctionDef) or decorators(node) & {"setter", "overload"}:
            continue
        if node.name.startswith("_") and node.name not in ("__call__", "__init__"):
            continue
        if node.name == "__init__" and (len(node.args.args) < 2 or not words_of(node)):
            continue
        if decorators(node) & {"property", "cached_property"}:
            kind = f": {ast.unparse(node.returns)}" if node.returns else ""
            rows[node.name] = f"| `{in_table(node.name + kind)}` | {one_line(words_of(node))} |"
        else:
            shown = signature(node, "").replace("__call__(", f"{owner.name.lower()}(", 1)
            shown = shown.replace("__init__(", owner.name + "(", 1)
            rows[node.name] = f"| `{in_table(shown)}` | {one_line(words_of(node))} |"
    return ["| member | |", "|---|---|", *rows.values()] if rows else []


def adopt_from_private_bases(module: ast.Module) -> None:
    """What a public class inherits from a private one of its module is part of its page."""
    private = {node.name: node for node in module.body if isinstance(node, ast.ClassDef) and not is_public(node)}
    for node in module.body:
        if isinstance(node, ast.ClassDef) and is_public(node):
            own = {member.name for member in node.body if isinstance(member, ast.FunctionDef)}
            for base in filter(None, (private.get(ast.unparse(base)) for base in node.bases)):
                node.body += [member for member in base.body
                              if isinstance(member, ast.FunctionDef) and member.name not in own and is_public(member)]


def describe_class(node: ast.ClassDef, prefix: str, lines: list[str]) -> str:
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    table = "\n".join(members(node, lines))
    return "\n\n".join(filter(None, (f"### `{prefix}{node.name}`", f"`class {node.name}({bases})`" if bases else "",
                                     prose(words_of(node)), table)))


def prose(text: str) -> str:
    """Docstrings mark code with two ticks and indent examples."""
    parts = []
    for paragraph in text.replace("``", "`").split("\n\n"):
        is_code = all(line.startswith("    ") or not line for line in paragraph.splitlines())
        parts.append(f"```py\n{inspect.cleandoc(paragraph)}\n```" if is_code and paragraph else paragraph)
    return "\n\n".join(parts)


def wrapped(shown: str) -> str:
    """A long signature, a line of keywords at a time."""
    if len(shown) <= 110:
        return shown
    head, _, rest = shown.partition("(")
    inside, _, result = rest.rpartition(") ->")
    # A parameter stays on its line: its spaces, and those between brackets, are none to break at.
    joined = re.sub(r"(?<!,) | (?=[^\[]*\])", "\u00a0", inside)
    lines = textwrap.fill(joined, 106, initial_indent="    ", subsequent_indent="    ", break_long_words=False,
                          break_on_hyphens=False).replace("\u00a0", " ")
    return f"{head}(\n{lines}\n) ->{result}"


def describe_function(node: ast.FunctionDef, section: Section) -> str:
    shown = wrapped(signature(node, section.prefix))
    return f"### `{section.prefix}{node.name}`\n\n```py\n{shown}\n```\n\n{prose(words_of(node))}"


# Public for other modules of the package, not for its users.
INNER = {("commands.py", "call"), ("commands.py", "checked"), ("commands.py", "options"), ("verbs.py", "explain")}


def exported(file: str) -> tuple[str, ...]:
    for node in ast.parse((PACKAGE / file).read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return tuple(ast.literal_eval(node.value))
    raise SystemExit(f"{file} has no __all__")


def page(stub: Path | None) -> str:
    import fp4moe._core

    stub = stub or Path(fp4moe._core.__file__).with_name("_core.pyi")
    out = [HEAD]
    for section in SECTIONS:
        out.append(f"\n## {section.title}\n\n{section.about}")
        names = exported(section.exports) if section.exports else section.names
        for file in section.files:
            text = (stub if file == "_core.pyi" else PACKAGE / file).read_text()
            lines = text.splitlines()
            tree = ast.parse(text)
            adopt_from_private_bases(tree)
            for node in filter(is_public, tree.body):
                if node.name not in names if names else (file, node.name) in INNER:
                    continue
                is_class = isinstance(node, ast.ClassDef)
                result = describe_class(node, section.prefix, lines) if is_class else describe_function(node, section)
                out.append("\n" + result)
    return "\n".join(out) + "\n" + FOOT
