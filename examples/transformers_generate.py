"""A gpt-oss checkpoint in Hugging Face transformers, its experts in FP4 on a processor.

    python examples/transformers_generate.py [CHECKPOINT "A prompt"]

Without arguments a small random model is made, which has no tokenizer and speaks in numbers.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import fp4moe.transformers  # makes experts_implementation="fp4moe" known

with tempfile.TemporaryDirectory() as folder:
    path, prompt = sys.argv[1:3] if len(sys.argv) > 2 else (str(Path(folder) / "tiny"), "")
    if not prompt:
        sizes = {"hidden": 256, "intermediate": 256, "experts": 8, "layers": 2}
        fp4moe.synth(path, model="gpt-oss-20b", **sizes)

    model = AutoModelForCausalLM.from_pretrained(path, experts_implementation="fp4moe")
    print(model.model.layers[0].mlp.experts)

    if prompt:
        tokenizer = AutoTokenizer.from_pretrained(path)
        ids = tokenizer(prompt, return_tensors="pt").input_ids
    else:
        ids = torch.tensor([[1, 2, 3]])
    mask = torch.ones_like(ids)
    made = model.generate(ids, attention_mask=mask, max_new_tokens=16, do_sample=False)
    print(tokenizer.decode(made[0]) if prompt else made[0].tolist())
