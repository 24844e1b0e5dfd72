"""``python -m fp4moe.vllm.plugin``: compare the installed vLLM with what the plug-in takes from it."""

from __future__ import annotations

import sys

from fp4moe.vllm.plugin import contract


def main() -> int:
    """One line for each difference; 0 where there is none."""
    version = contract.installed_version()
    if version is None:
        print("no vLLM is installed: pip install vllm, or tools/vllm/env.sh for a CPU")
        return 7
    broken = contract.check()
    for sentence in broken:
        print(sentence)
    fits = "does not fit" if broken else f"fits: {len(contract.NEEDS)} names and signatures agree"
    print(f"vLLM {version}: the plug-in {fits}")
    return 5 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
