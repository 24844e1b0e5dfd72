"""Tokens of models in vLLM, one after the other; prints a line of JSON for each.

    generate.py '[{"model": FOLDER, "options": {...of LLM}}]'
"""

from __future__ import annotations

import gc
import json
import sys

PROMPTS = [[5, 17, 99, 3], [200, 42, 7, 7, 81, 120, 33]]


def tokens(model: str, options: dict) -> list[list[int]]:
    from vllm import LLM, SamplingParams

    shared = {"dtype": "bfloat16", "max_model_len": 64, "max_num_seqs": 4, "block_size": 32}
    llm = LLM(model=model, kv_cache_memory_bytes=1 << 26, **{**shared, **options})
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, detokenize=False)
    result = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], params)
    return [list(one.outputs[0].token_ids) for one in result]


def main() -> None:
    for task in json.loads(sys.argv[1]):
        found = tokens(task["model"], task.get("options", {}))
        print("TOKENS " + json.dumps({"model": task["model"], "tokens": found}), flush=True)
        gc.collect()


if __name__ == "__main__":
    main()
