"""Tokens of models in vLLM, one after the other, each with the logarithms of the likeliest five's probabilities;
prints a line of JSON for each.

    generate.py '[{"model": FOLDER, "options": {...of LLM}}]'

With FP4MOE_TEST_HIDES_AMX, vLLM sees a CPU without AMX, for which it has no FP4 experts.
"""

from __future__ import annotations

import gc
import json
import os
import sys

PROMPTS = [[5, 17, 99, 3], [200, 42, 7, 7, 81, 120, 33]]


def tokens(model: str, options: dict) -> tuple[list[list[int]], list[list[dict[int, float]]]]:
    from vllm import LLM, SamplingParams

    shared = {"max_model_len": 64, "max_num_seqs": 4, "block_size": 32}
    llm = LLM(model=model, kv_cache_memory_bytes=1 << 26, **{**shared, **options})
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, detokenize=False, logprobs=5)
    result = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], params)
    outputs = [one.outputs[0] for one in result]
    likely = [[{t: found.logprob for t, found in at.items()} for at in one.logprobs] for one in outputs]
    return [list(one.token_ids) for one in outputs], likely


def hide_amx() -> None:
    """In this process; workers that vLLM spawns see the CPU as it is."""
    import torch

    torch.cpu._is_amx_tile_supported = lambda: False


def main() -> None:
    if os.environ.get("FP4MOE_TEST_HIDES_AMX"):
        hide_amx()
    for task in json.loads(sys.argv[1]):
        found, likely = tokens(task["model"], task.get("options", {}))
        told = {"model": task["model"], "tokens": found, "likely": likely}
        print("TOKENS " + json.dumps(told), flush=True)
        gc.collect()


if __name__ == "__main__":
    main()
