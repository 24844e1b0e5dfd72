"""Tokens of models in vLLM, one after the other, each with the log probabilities of the likeliest five.

    generate.py '[{"model": FOLDER, "options": {...of LLM}}]' FILE

FILE gets a line of JSON for each: {"tokens": ..., "likely": ...}, or {"refusal": ...} where vLLM raised. The log
has the word RESULT behind each.
With FP4MOE_TEST_HIDES_AMX, vLLM sees a CPU without AMX, for which it has no FP4 experts.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from typing import Any

PROMPTS = [[5, 17, 99, 3], [200, 42, 7, 7, 81, 120, 33]]


def generate(model: str, options: dict[str, Any]) -> dict[str, Any]:
    from vllm import LLM, SamplingParams

    shared = {"max_model_len": 64, "max_num_seqs": 4, "block_size": 32, "kv_cache_memory_bytes": 1 << 22}
    llm = LLM(model=model, **{**shared, **options})
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, detokenize=False, logprobs=5)
    result = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], params, use_tqdm=False)
    outputs = [one.outputs[0] for one in result]
    likely = [[{t: found.logprob for t, found in at.items()} for at in one.logprobs] for one in outputs]
    return {"tokens": [list(one.token_ids) for one in outputs], "likely": likely}


def hide_amx() -> None:
    """In this process; workers that vLLM spawns see the CPU as it is."""
    import torch

    torch.cpu._is_amx_tile_supported = lambda: False


def main() -> None:
    if os.environ.get("FP4MOE_TEST_HIDES_AMX"):
        hide_amx()
    import vllm  # noqa: F401

    gc.freeze()  # vLLM collects garbage for each model; modules are none
    for task in json.loads(sys.argv[1]):
        try:
            found = generate(task["model"], task["options"])
        except Exception:
            found = {"refusal": traceback.format_exc()}
        with open(sys.argv[2], "a") as file:  # workers write to the log, too, in the middle of a line
            file.write(json.dumps(found) + "\n")
        print("\nRESULT", flush=True)
        gc.collect()


if __name__ == "__main__":
    main()
