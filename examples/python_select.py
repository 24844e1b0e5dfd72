"""Says which backend a model gets on some machines, and why not another.

python examples/python_select.py [MODEL]
"""

import sys

import fp4moe

model = sys.argv[1] if len(sys.argv) > 1 else "gpt-oss-120b"
for device in ("t4", "h100", "b200", "mi355x", "cpu-arm"):
    try:
        choice = fp4moe.explain(model=model, device=device, policy="2026-08-22")
        print(f"{device}: {choice.backend}; would run, too: {', '.join(choice.would_run[1:])}")
    except fp4moe.UnsupportedError as why:
        print(f"{device}: nothing, for example because of {why.record.refusals[0]}")
print("here:", fp4moe.explain(model=model).backend)
