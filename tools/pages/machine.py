"""docs/machine.md: what every described device gets, asked of `fp4moe explain`."""
from __future__ import annotations

import json
import subprocess
from collections import defaultdict

# A model stands for all of its kind; the policy is the newest of vLLM for it.
MODELS = (("gpt-oss-20b", "gpt-oss: MXFP4, biases, SwiGLU with a clamp"),
          ("deepseek-v4-flash", "DeepSeek-V4 and other MXFP4"),
          ("qwen3-30b-a3b", "Qwen3: NVFP4, softmax routing"),
          ("deepseek-v3", "DeepSeek-V3 and Kimi: NVFP4, grouped sigmoid routing"))

# What computes a layer that our own rules gave to a backend.
ENGINES = {"CPU": "`cpu`, on the CPU", "NATIVE_SM90": "`cuda`, on the GPU", "NATIVE_SM80": "`cuda`, on the GPU"}

HEAD = """\
# Which backend runs on my machine

For the machine before you, ask it: the answers below are those of described devices with their usual packages.

```sh
fp4moe doctor                                                     # what is here, and what is odd about it
fp4moe explain --model gpt-oss-20b                                # what this library runs here, and why not something else
fp4moe explain --model gpt-oss-20b --device h100 --vllm 0.33.0    # what that release of vLLM gives an H100
```

```python
import fp4moe

choice = fp4moe.explain(model="gpt-oss-20b", device="h100", policy="latest")
print(choice.backend, choice.refusals)
```

| column | says |
|---|---|
| vLLM chooses | what the policy's rules select without variables |
| would run, too | what a flag or variable gives; `fp4moe explain` says which |
| here | what this library computes with by itself (policy `native`), and with which engine |

Any backend's numbers can be had on any machine: `fp4moe run --backend NAME` rounds where that backend rounds ([run](run.md)).
Speed: [cpu](cpu.md), [cuda](cuda.md). Every policy: [matrix](matrix.md). Every device: [devices](devices.md).

| engine | computes | needs |
|---|---|---|
| `cpu` | from FP4 weights, with kernels for NEON, AVX2, AVX-512 and AMX, or portable ones | any CPU |
| `cuda` | from FP4 weights, with tensor cores | an NVIDIA GPU since Ampere (compute capability 8.0 and newer), its driver, and a build with `make cuda` |
| `reference` | every backend's numerics with float64 sums, slowly | any CPU |
"""

FOOT = "\nWritten by tools/make_docs.py from `fp4moe explain`.\n"


class Explain:
    def __init__(self, program: str) -> None:
        self.program = program

    def __call__(self, *words: str) -> dict:
        done = subprocess.run([self.program, "explain", "--json", *words], capture_output=True, text=True, env={})
        if done.returncode not in (0, 4):
            raise SystemExit(done.stderr.strip())
        return json.loads(done.stdout)


def names(backends: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in backends) or "-"


def reasons(record: dict) -> list[tuple[str, str]]:
    """What the backends that the walk preferred ask for in vain: the first requirement of each, which is
    one of hardware where there is such a one."""
    found: dict[str, str] = {}
    for kernel in record["candidates"]:
        if kernel["backend"] == record["backend"]:
            break
        if kernel["refusals"] and kernel["backend"] not in record["would_run"]:
            found.setdefault(kernel["backend"], kernel["refusals"][0]["requirement"])
    return list(found.items())


def choices(theirs: dict[str, dict], ours: dict[str, dict]) -> list[str]:
    groups: dict[tuple, list[str]] = defaultdict(list)
    for device, record in theirs.items():
        refused = record["refused_before"]
        others = [name for name in record["would_run"] if name != record["backend"] and not refused]
        chosen = f"`{record['backend']}`" if record["served"] else f"nothing: {refused[0]}" if refused else "nothing"
        own = ours[device]["backend"]
        groups[record["device"]["platform"], chosen, names(others), f"`{own}`: {ENGINES[own]}"].append(device)
    return [f"| {', '.join(devices)} | {' | '.join(key[1:])} |" for key, devices in groups.items()]


def refusals(ask: Explain, model: str, devices: list[str]) -> list[str]:
    """Requirements that are not met, each with the backends that have it and the devices that lack it."""
    missing: dict[tuple[str, str], list[str]] = defaultdict(list)
    for device in devices:
        for why in reasons(ask("--model", model, "--policy", "latest", "--device", device)):
            missing[why].append(device)
    together: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (backend, requirement), without in missing.items():
        together[requirement, ", ".join(without)].append(backend)
    return sorted(f"| {names(sorted(backends))} | {requirement} | {without} |"
                  for (requirement, without), backends in together.items())


def body(ask: Explain, model: str) -> tuple[str, str]:
    """The policy, and what it and ours decide for every device."""
    theirs = {r["device"]["name"]: r for r in ask("--model", model, "--policy", "latest", "--all-devices")["devices"]}
    ours = {r["device"]["name"]: r
            for r in ask("--model", model, "--policy", "native", "--all-devices")["devices"]}
    text = "\n".join(["| device | vLLM chooses | would run, too | here |", "|---|---|---|---|", *choices(theirs, ours),
                      "\nWhy not something that the policy prefers:\n",
                      "| backend | condition | refused on |", "|---|---|---|",
                      *refusals(ask, model, list(theirs))])
    return next(iter(theirs.values()))["policy"], text


def page(program: str) -> str:
    ask = Explain(program)
    sections: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)  # models with the same answers
    for model, title in MODELS:
        sections[body(ask, model)].append((model, title))
    out = [HEAD]
    for (policy, text), models in sections.items():
        out.append(f"\n## {'; '.join(title for _, title in models)}\n")
        out.append(f"Model {names([model for model, _ in models])}, policy `{policy}`.\n\n{text}")
    return "\n".join(out) + "\n" + FOOT
