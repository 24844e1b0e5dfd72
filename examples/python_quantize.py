"""Quantizes random weights to both formats and says how far they move.

python examples/python_quantize.py
"""

import numpy as np

import fp4moe

weights = np.random.default_rng(1).standard_normal((128, 1024), np.float32)
for format in ("mxfp4", "nvfp4"):
    q = fp4moe.quantize(weights, format)
    error = np.linalg.norm(q.dequantize() - weights) / np.linalg.norm(weights)
    print(f"{format}: {8 * q.nbytes / weights.size} bits per weight, relative error {error:.3f}")
