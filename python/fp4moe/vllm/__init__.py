"""vLLM's MXFP4 and NVFP4 MoE functions by their own names, without vLLM.

``fp4moe.vllm.oracle.mxfp4`` and ``fp4moe.vllm.oracle.nvfp4`` choose backends and convert weights in
memory; ``fp4moe.vllm.method`` runs a layer. vLLM itself is not imported.
"""
