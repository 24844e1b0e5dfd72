"""Runs the first MoE layer of a checkpoint on four tokens.

python examples/python_layer.py [CHECKPOINT]
"""

import sys

import numpy as np

import fp4moe

if len(sys.argv) < 2:  # none at hand: a small random one
    fp4moe.synth("tiny", model="gpt-oss-20b", experts=8, layers=1, hidden=256, intermediate=256)

with fp4moe.Layer.open(sys.argv[1] if len(sys.argv) > 1 else "tiny", 0) as layer:
    x = np.random.default_rng(1).standard_normal((4, layer.hidden), np.float32)
    logits = np.random.default_rng(2).standard_normal((4, layer.experts), np.float32)
    y = layer(x, logits)  # routed, computed from FP4 weights, summed; nothing is copied
    print(layer.info()["backend"], y.shape, y.dtype, y[0, :3])
