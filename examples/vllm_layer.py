"""A layer's whole life by the names of vLLM's oracle, from weights in memory.

The backend is the one that vLLM takes on an H100; its numbers are computed here.
"""

import types

import numpy as np

from fp4moe.vllm.method import Mxfp4MoEMethod
from fp4moe.vllm.oracle import Context, FusedMoEConfig

config = FusedMoEConfig(
    num_experts=8, num_local_experts=8, experts_per_token=2, hidden_dim=128,
    intermediate_size_per_partition=96, has_bias=True, context=Context(device="h100"),
)
method = Mxfp4MoEMethod(config)  # select_mxfp4_moe_backend
layer = types.SimpleNamespace()  # a torch.nn.Module gets parameters of torch
method.create_weights(layer)  # w13_weight, w13_weight_scale, w13_bias, w2_weight, ...
rng = np.random.default_rng(1)
layer.w13_weight[:] = rng.integers(0, 256, layer.w13_weight.shape)  # what a loader does
layer.w2_weight[:] = rng.integers(0, 256, layer.w2_weight.shape)
layer.w13_weight_scale[:] = layer.w2_weight_scale[:] = 120
method.process_weights_after_loading(layer)  # again after the weights changed

x = rng.standard_normal((4, 128), np.float32)
logits = rng.standard_normal((4, 8), np.float32)
if method.is_monolithic:
    y = method.apply_monolithic(layer, x, logits)
else:
    y = method.apply(layer, x, np.full((4, 2), 0.5, np.float32), np.array([[0, 1]] * 4, np.int32))
print(method.mxfp4_backend.value, method.experts_cls.name, y.shape, y[0, :3])
