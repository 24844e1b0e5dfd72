"""A gpt-oss checkpoint in Hugging Face transformers, its experts in FP4 on a CPU.

    python examples/transformers_generate.py [CHECKPOINT ["A prompt"]]

Without a checkpoint a small random one is made; without a prompt tokens are numbers.
"""

from __future__ import annotations

import sys
import tempfile

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import fp4moe.transformers  # makes experts_implementation="fp4moe" known

with tempfile.TemporaryDirectory() as folder:
    path = sys.argv[1] if len(sys.argv) > 1 else f"{folder}/tiny"
    if path.startswith(folder):
        sizes = {"hidden": 256, "intermediate": 256, "experts": 8, "layers": 2}
        fp4moe.synth(path, model="gpt-oss-20b", **sizes)

    model = AutoModelForCausalLM.from_pretrained(path, experts_implementation="fp4moe")
    print(model.model.layers[0].mlp.experts)

    tokenizer = AutoTokenizer.from_pretrained(path) if len(sys.argv) > 2 else None
    ids = tokenizer(sys.argv[2], return_tensors="pt").input_ids if tokenizer else torch.arange(3)
    ids = ids.view(1, -1)
    mask = torch.ones_like(ids)
    result = model.generate(ids, attention_mask=mask, max_new_tokens=16, do_sample=False)
    print(tokenizer.decode(result[0]) if tokenizer else result[0].tolist())
