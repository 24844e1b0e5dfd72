"""PEFT makes adapters of experts; `fp4moe merge` must add what PEFT adds.

The experts are all zero, so that a merged checkpoint holds the adapter's change alone: dequantized,
it must be PEFT's own get_delta_weight within FP4's rounding, and far from every other reading of
the same factors. Skipped where torch or peft is not installed. FP4MOE_CLI names the program.
"""
import json
import os
import subprocess

import numpy as np
import pytest

try:
    import peft
    import torch
    from safetensors import torch as files
except ImportError:
    pytest.skip("needs torch, transformers and peft", allow_module_level=True)

CLI = os.environ["FP4MOE_CLI"]
EXPERTS, HIDDEN, INNER, RANK = 3, 64, 96, 4
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float64)


def run(*arguments):
    done = subprocess.run([CLI, *map(str, arguments), "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


class FusedExperts(torch.nn.Module):
    """Parameters as transformers declares them; gpt-oss has inputs before outputs."""

    def __init__(self, transposed):
        super().__init__()
        self.is_transposed = transposed
        w13, w2 = (EXPERTS, 2 * INNER, HIDDEN), (EXPERTS, HIDDEN, INNER)
        if transposed:
            w13, w2 = (EXPERTS, HIDDEN, 2 * INNER), (EXPERTS, INNER, HIDDEN)
        self.gate_up_proj = torch.nn.Parameter(torch.zeros(w13))
        self.down_proj = torch.nn.Parameter(torch.zeros(w2))


class LinearExpert(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj = torch.nn.Linear(HIDDEN, INNER, bias=False)
        self.up_proj = torch.nn.Linear(HIDDEN, INNER, bias=False)
        self.down_proj = torch.nn.Linear(INNER, HIDDEN, bias=False)


class Model(torch.nn.Module):
    """model.layers.0.mlp.experts, as in every Hugging Face model."""

    def __init__(self, experts):
        super().__init__()
        mlp = torch.nn.Module()
        mlp.experts = experts
        layer = torch.nn.Module()
        layer.mlp = mlp
        self.model = torch.nn.Module()
        self.model.layers = torch.nn.ModuleList([layer])


def randomize(model):
    generator = torch.Generator().manual_seed(5)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3


def zero_checkpoint(folder, *arguments):
    """A synthetic checkpoint whose codes are all zero."""
    run("synth", *arguments, "--experts", EXPERTS, "--hidden", HIDDEN, "--intermediate", INNER,
        "--layers", 1, "--experts-only", "-o", folder)
    path = folder / "model.safetensors"
    tensors = files.load_file(path)
    for name in tensors:
        if name.endswith(("_blocks", "weight_packed")):
            tensors[name] = torch.zeros_like(tensors[name])
    files.save_file(tensors, path, metadata={"format": "pt"})
    return folder


def dequantize(codes, scales):
    """[..., rows, k] from two codes to a byte and E8M0 scales for 32."""
    codes, scales = codes.numpy(), scales.view(torch.uint8).numpy()
    codes = codes.reshape(*scales.shape[:-1], -1)
    values = np.stack([E2M1[codes & 15], E2M1[codes >> 4]], -1).reshape(*scales.shape, 32)
    values = values * np.exp2(scales.astype(np.float64) - 127)[..., None]
    return values.reshape(*scales.shape[:-1], -1)


def error(got, expected):
    return float(np.sqrt(np.mean((got - expected) ** 2) / np.mean(expected**2)))


@pytest.mark.parametrize("rslora", [False, True])
def test_wrapped_parameters_of_gpt_oss(tmp_path, rslora):
    config = peft.LoraConfig(r=RANK, lora_alpha=8, target_modules=[], use_rslora=rslora,
                             target_parameters=["experts.gate_up_proj", "experts.down_proj"])
    model = peft.get_peft_model(Model(FusedExperts(transposed=True)), config)
    randomize(model)
    model.save_pretrained(tmp_path / "adapter")
    outer = model.base_model.model.model.layers[0].mlp.experts
    by_name = {w.parameter_name: w.get_delta_weight("default").detach().double().numpy()
               for w in (outer, outer.base_layer)}

    source = zero_checkpoint(tmp_path / "source", "--model", "gpt-oss-20b")
    run("merge", source, tmp_path / "adapter", "-o", tmp_path / "merged")
    tensors = files.load_file(tmp_path / "merged" / "model.safetensors")
    stem = "model.layers.0.mlp.experts."
    for name, delta in by_name.items():
        got = dequantize(tensors[f"{stem}{name}_blocks"], tensors[f"{stem}{name}_scales"])
        expected = delta.transpose(0, 2, 1)  # outputs before inputs, as the blocks have them
        assert got.shape == expected.shape
        assert error(got, expected) < 0.15
        assert error(got[::-1], expected) > 1  # no other order of experts fits


@pytest.mark.parametrize("fused", [False, True])
def test_experts_of_other_models(tmp_path, fused):
    if fused:  # transformers 5: [experts, outputs, inputs], gates before ups
        experts = FusedExperts(transposed=False)
        config = peft.LoraConfig(r=RANK, lora_alpha=8, target_modules=[],
                                 target_parameters=["experts.gate_up_proj", "experts.down_proj"])
    else:
        experts = torch.nn.ModuleList([LinearExpert() for _ in range(EXPERTS)])
        config = peft.LoraConfig(r=RANK, lora_alpha=8, rank_pattern={"down_proj": 2},
                                 alpha_pattern={"up_proj": 3},
                                 target_modules=["gate_proj", "up_proj", "down_proj"])
    model = peft.get_peft_model(Model(experts), config)
    randomize(model)
    model.save_pretrained(tmp_path / "adapter")
    wrapped = model.base_model.model.model.layers[0].mlp.experts

    def delta(module):
        return module.get_delta_weight("default").detach().double().numpy()

    expected = {}
    for e in range(EXPERTS):
        if fused:
            by_name = {w.parameter_name: delta(w)[e] for w in (wrapped, wrapped.base_layer)}
            gate, up = np.split(by_name["gate_up_proj"], 2)
            expected |= {(e, "gate_proj"): gate, (e, "up_proj"): up,
                         (e, "down_proj"): by_name["down_proj"]}
        else:
            expected |= {(e, name): delta(getattr(wrapped[e], name))
                         for name in ("gate_proj", "up_proj", "down_proj")}

    source = zero_checkpoint(tmp_path / "source", "--model", "qwen3-30b-a3b", "--dialect",
                             "compressed-tensors", "--format", "mxfp4")
    run("merge", source, tmp_path / "adapter", "-o", tmp_path / "merged")
    tensors = files.load_file(tmp_path / "merged" / "model.safetensors")
    for (e, name), exact in expected.items():
        stem = f"model.layers.0.mlp.experts.{e}.{name}."
        got = dequantize(tensors[stem + "weight_packed"], tensors[stem + "weight_scale"])
        assert got.shape == exact.shape
        assert error(got, exact) < 0.15
