"""fp4moe inside Hugging Face transformers: FP4 checkpoints run in FP4, on a CPU.

    import fp4moe.transformers
    model = AutoModelForCausalLM.from_pretrained(path, experts_implementation="fp4moe")

Importing this registers the quantizer and the experts implementation `fp4moe`; no checkpoint is
treated differently until it is asked for, by that argument, by
`quantization_config=Fp4MoeConfig()`, or once for all by `register(replace_mxfp4=True)`.
"""

from __future__ import annotations

from fp4moe.transformers.config import Fp4MoeConfig
from fp4moe.transformers.experts import Fp4MoeExperts
from fp4moe.transformers.quantize import quantize_experts
from fp4moe.transformers.quantizer import Fp4MoeQuantizer
from fp4moe.transformers.registration import register

__all__ = ["Fp4MoeConfig", "Fp4MoeExperts", "Fp4MoeQuantizer", "quantize_experts", "register"]

register()
