"""A MoE layer of an FP4 checkpoint as a module of torch: python torch_layer.py CHECKPOINT"""

import sys

import torch

import fp4moe.torch

moe = fp4moe.torch.MoE.open(sys.argv[1], 0, router=True)
x = torch.randn(2, 4, moe.layer.hidden, dtype=torch.bfloat16)
with torch.inference_mode():
    y = moe(x)
    graph = torch.compile(moe, fullgraph=True, backend="eager")
    assert torch.equal(graph(x), y)
print(f"{moe.layer}: {tuple(x.shape)} -> {tuple(y.shape)} {y.dtype}")
