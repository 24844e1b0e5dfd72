"""Runs layers with the program and with PyTorch, on the same weights and tokens.

transformers' own GptOss modules (router, experts, both together) and plain loops over experts in
torch compute what `fp4moe run` computes. Weights are dequantized here from the checkpoint's bytes by
the formats' definitions; activations of W4A4 and W4A8 kernels are quantized here by their rules.
FP4MOE_CLI names the program.
"""
import dataclasses
import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import GptOssConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts, GptOssMLP, GptOssTopKRouter

CLI = os.environ["FP4MOE_CLI"]
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
TOKENS = 13
EXACT = 1e-5  # of the largest value: outputs are float32, torch computes in float64
torch.set_num_threads(2)
torch.set_grad_enabled(False)


# The program

def fp4moe(*arguments, status=0):
    done = subprocess.run([CLI, *map(str, arguments), "--json"], capture_output=True, text=True)
    assert done.returncode == status, done.stdout + done.stderr
    return json.loads(done.stdout)


def synth(folder: Path, model, *arguments):
    fp4moe("synth", "--model", model, "--seed", 5, *arguments, "-o", folder)
    return folder


def edit(folder: Path, config=None, tensors=None):
    """The checkpoint with other words in its configuration and further tensors."""
    if config:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | config))
    if tensors:
        file = folder / "model.safetensors"
        save_file(load_file(file) | tensors, file)
    return folder


def run(folder: Path, tensors, *arguments):
    """What `fp4moe run` makes of the tensors, in float64, and its report on the layer."""
    given, out = folder.parent / "given.safetensors", folder.parent / "out.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, given)
    engine = ("--engine", "reference") if "exact" in arguments else ()  # the one in float64
    report = fp4moe("run", folder, "--input", given, "-o", out, *engine, *arguments)["layers"][0]
    output = load_file(out)["output"]
    out.unlink()
    assert output.dtype == (torch.float32 if report["numerics"] == "exact" else torch.bfloat16)
    return output.double(), report


def assert_near(actual, expected, of_largest=EXACT, cosine=1 - 1e-9):
    largest = expected.abs().max()
    assert torch.isfinite(actual).all() and largest > 0
    assert (actual - expected).abs().max() / largest <= of_largest
    assert F.cosine_similarity(actual.flatten(), expected.flatten(), dim=0) >= cosine


def assert_within(actual, expected, report):
    assert_near(actual, expected, report["allowed"]["rel_error"], report["allowed"]["cosine"])


def tokens(hidden, count=TOKENS, seed=0):
    return torch.randn(count, hidden, generator=torch.Generator().manual_seed(seed)).bfloat16()


# Numbers, by the formats' definitions

def e2m1(codes):
    """Two codes to a byte, the even element in the low nibble; the fourth bit is the sign."""
    codes = torch.stack([codes & 15, codes >> 4], dim=-1).flatten(-2).long()
    return E2M1[codes & 7] * torch.where(codes >= 8, -1.0, 1.0)


def mxfp4(blocks, scales):
    return e2m1(blocks) * torch.exp2(scales.double() - 127).repeat_interleave(32, -1)


def nvfp4(codes, scales, scale_2):
    return e2m1(codes) * scales.double().repeat_interleave(16, -1) * scale_2


def nearest_e2m1(values):
    """To the nearest code, ties to the even one, at most 6."""
    size = values.abs().clamp(max=6)
    above = torch.searchsorted(E2M1, size).clamp(1, 7)
    middle = (E2M1[above - 1] + E2M1[above]) / 2
    up = (size > middle) | ((size == middle) & (above % 2 == 0))
    return torch.where(up, E2M1[above], E2M1[above - 1]) * values.sign()


def through_nvfp4(values, input_scale):
    blocks = values.unflatten(-1, (-1, 16))
    largest = blocks.abs().amax(-1, keepdim=True)
    scale = (largest / 6 / input_scale).clamp(max=448).float().to(torch.float8_e4m3fn).double()
    codes = nearest_e2m1(torch.where(scale > 0, blocks / (scale * input_scale), 0.0))
    return (codes * scale * input_scale).flatten(-2)


def through_mxfp8(values):
    blocks = values.unflatten(-1, (-1, 32))
    largest = blocks.abs().amax(-1, keepdim=True).clamp(min=2.0**-126)
    scale = torch.exp2(torch.ceil(torch.log2(largest / 448)).clamp(-127, 127))
    return ((blocks / scale).float().to(torch.float8_e4m3fn).double() * scale).flatten(-2)


def bf16(values):
    return values.float().bfloat16().double()


def unrounded(values):
    return values


@dataclasses.dataclass
class Rounds:
    """What is rounded: both products, the activation between them, the router's weight, and the
    weighted result. `apart`: each product is rounded once more before its bias comes in."""
    first: object = unrounded
    middle: object = unrounded
    second: object = unrounded
    weight: object = unrounded
    weighted: object = unrounded
    apart: bool = False

    def biased(self, product, bias, rounds):
        return rounds((bf16(product) if self.apart else product) + bias)


GROUPED = Rounds(first=bf16, second=bf16)
TRTLLM = Rounds(middle=bf16, second=bf16, weight=bf16)
W4A16 = {"MARLIN": Rounds(bf16, bf16, bf16, bf16, bf16, apart=True),
         "BATCHED_MARLIN": Rounds(bf16, bf16, bf16, bf16, bf16, apart=True),
         "TRITON": Rounds(middle=bf16, weight=bf16, weighted=bf16),
         "TRITON_UNFUSED": Rounds(first=bf16, middle=bf16, weighted=bf16),
         "FLASHINFER_TRTLLM_MXFP4_BF16": TRTLLM,
         "FLASHINFER_CUTLASS_MXFP4_BF16": Rounds(first=bf16, middle=bf16, second=bf16),
         "EMULATION": Rounds(), "CPU": Rounds()}
W4A8 = {"FLASHINFER_CUTLASS_MXFP4_MXFP8": GROUPED, "FLASHINFER_TRTLLM_MXFP4_MXFP8": TRTLLM}


# gpt-oss: transformers' own modules

class GptOss:
    def __init__(self, folder, experts=8, hidden=192, intermediate=160):
        self.folder = synth(folder, "gpt-oss-20b", "--experts", experts, "--hidden", hidden,
                            "--intermediate", intermediate)
        self.x = tokens(hidden)
        read = load_file(self.folder / "model.safetensors")
        mine = {name.removeprefix("model.layers.0.mlp."): tensor for name, tensor in read.items()}
        config = GptOssConfig(num_local_experts=experts, hidden_size=hidden, num_experts_per_tok=4,
                              intermediate_size=intermediate)
        config._experts_implementation = "eager"
        self.block = GptOssMLP(config).double()
        assert isinstance(self.block.experts, GptOssExperts)
        assert isinstance(self.block.router, GptOssTopKRouter)
        state = {name: mine[name].double() for name in ("router.weight", "router.bias")}
        for name in ("gate_up_proj", "down_proj"):
            weights = mxfp4(mine[f"experts.{name}_blocks"].flatten(-2),
                            mine[f"experts.{name}_scales"])
            state[f"experts.{name}"] = weights.transpose(1, 2)
            state[f"experts.{name}_bias"] = mine[f"experts.{name}_bias"].double()
        self.block.load_state_dict(state)

    def whole(self, x=None):
        return self.block((self.x if x is None else x).double()[None])[0][0]

    def staged(self, rounds, quantize=unrounded):
        """The same with what a kernel rounds, and the inputs of both products quantized."""
        experts = self.block.experts
        _, weights, ids = self.block.router(self.x.double())
        out = torch.zeros_like(self.x.double())
        for e in range(experts.num_experts):
            token, k = torch.where(ids == e)
            x = quantize(self.x[token].double())
            first = rounds.biased(x @ experts.gate_up_proj[e], experts.gate_up_proj_bias[e],
                                  rounds.first)
            h = quantize(rounds.middle(experts._apply_gate(first)))
            second = rounds.biased(h @ experts.down_proj[e], experts.down_proj_bias[e],
                                   rounds.second)
            part = rounds.weighted(second * rounds.weight(weights[token, k, None]))
            out.index_add_(0, token, part)
        return bf16(out)


@pytest.fixture(scope="module")
def gpt_oss(tmp_path_factory):
    return GptOss(tmp_path_factory.mktemp("gpt-oss") / "model")


def test_exact_numerics_are_those_of_transformers_block(gpt_oss):
    output, report = run(gpt_oss.folder, {"hidden_states": gpt_oss.x}, "--numerics", "exact")
    assert report["routing"] == "the model's router" and report["top_k"] == 4
    assert_near(output, gpt_oss.whole())


@pytest.mark.parametrize("dialect", ["openai", "gguf", "quark", "compressed-tensors"])
def test_every_dialect_has_the_same_router_and_experts(gpt_oss, tmp_path, dialect):
    path = tmp_path / ("model.gguf" if dialect == "gguf" else "model")
    synth(path, "gpt-oss-20b", "--experts", 8, "--hidden", 192, "--intermediate", 160,
          "--dialect", dialect)
    output, report = run(path, {"hidden_states": gpt_oss.x}, "--numerics", "exact")
    assert report["routing"] == "the model's router"
    assert_near(output, gpt_oss.whole())


def test_given_experts_are_those_of_transformers_experts(gpt_oss):
    generator = torch.Generator().manual_seed(7)
    ids = torch.stack([torch.randperm(8, generator=generator)[:4] for _ in range(TOKENS)])
    weights = torch.rand(TOKENS, 4, generator=generator)
    expected = gpt_oss.block.experts(gpt_oss.x.double(), ids, weights.double())
    for kind in (torch.int32, torch.int64):
        output, report = run(gpt_oss.folder, {"hidden_states": gpt_oss.x, "topk_ids": ids.to(kind),
                                              "topk_weights": weights}, "--numerics", "exact")
        assert report["routing"] == "given experts"
        assert_near(output, expected)


def test_the_router_is_transformers_router(gpt_oss):
    """Its experts and weights, or its logits, give what the program's own router gives."""
    logits, weights, ids = gpt_oss.block.router(gpt_oss.x.double())
    given = {"hidden_states": gpt_oss.x}
    own, _ = run(gpt_oss.folder, given, "--numerics", "exact")
    chosen, _ = run(gpt_oss.folder, given | {"topk_ids": ids, "topk_weights": weights.float()},
                    "--numerics", "exact")
    from_logits, report = run(gpt_oss.folder, given | {"router_logits": logits.float()},
                              "--numerics", "exact")
    assert report["routing"] == "given logits"
    assert_near(chosen, own, of_largest=1e-6)
    assert_near(from_logits, own, of_largest=1e-6)


def test_the_router_agrees_on_many_tokens(gpt_oss):
    x = tokens(192, count=500, seed=1)
    output, _ = run(gpt_oss.folder, {"hidden_states": x}, "--numerics", "exact")
    assert_near(output, gpt_oss.whole(x))


@pytest.mark.parametrize("backend", [*W4A16, *W4A8])
def test_backends_round_where_they_say(gpt_oss, backend):
    output, report = run(gpt_oss.folder, {"hidden_states": gpt_oss.x}, "--backend", backend)
    assert report["backend"] == backend
    assert_within(output, gpt_oss.whole(), report)
    assert report["activations"] == ("mxfp8" if backend in W4A8 else "bf16")
    if backend in W4A8:
        assert_near(output, gpt_oss.staged(W4A8[backend], through_mxfp8), 1e-2, 0.99999)
    else:
        assert_near(output, gpt_oss.staged(W4A16[backend]), 4e-3, 0.999999)


def test_a_layer_of_the_real_width_and_a_quarter_of_the_depth(tmp_path):
    model = GptOss(tmp_path / "model", experts=4, hidden=2880, intermediate=736)
    output, _ = run(model.folder, {"hidden_states": model.x}, "--numerics", "exact")
    assert_near(output, model.whole())


@pytest.mark.parametrize("how", [("--tp", 2), ("--ep", 2), ("--ep", 3, "--placement", "round_robin"),
                                 ("--ep", 4, "--exchange", "gather"),
                                 ("--ep", 4, "--exchange", "all_to_all"),
                                 ("--ep", 2, "--exchange", "all_to_all_batched")])
def test_ranks_give_what_transformers_gives(gpt_oss, how):
    output, report = run(gpt_oss.folder, {"hidden_states": gpt_oss.x}, "--backend", "CPU", *how)
    assert_within(output, gpt_oss.whole(), report)


# NVFP4: a loop over experts

class PerExpert:
    """Experts of ModelOpt or compressed-tensors, with the router and the input scales."""

    def __init__(self, folder, prefix, experts):
        read = load_file(folder / "model.safetensors")
        self.mine = {name.removeprefix(prefix): tensor for name, tensor in read.items()}
        self.folder, self.experts = folder, experts
        self.router = self.mine["gate.weight"].double()
        self.is_gated = "experts.0.gate_proj.weight_scale" in self.mine
        self.first = ("gate_proj", "up_proj") if self.is_gated else ("up_proj",)
        self.weights = {(e, name): self.matrix(f"experts.{e}.{name}.")
                        for e in range(experts) for name in (*self.first, "down_proj")}

    def matrix(self, name):
        scales = self.mine[name + "weight_scale"]
        if name + "weight_packed" in self.mine:  # its global scale is the other's reciprocal
            return nvfp4(self.mine[name + "weight_packed"], scales,
                         1 / self.mine[name + "weight_global_scale"].double())
        return nvfp4(self.mine[name + "weight"], scales,
                     self.mine[name + "weight_scale_2"].double())

    def input_scale(self, expert, projection):
        name = f"experts.{expert}.{projection}.input_"
        if name + "scale" in self.mine:
            return self.mine[name + "scale"].double()
        return 1 / self.mine[name + "global_scale"].double()[0]

    def input_scales(self, per_expert):
        """Of x and of the activation's output, for each expert; or the largest for all."""
        every = range(self.experts)
        first = torch.stack([max(self.input_scale(e, name) for name in self.first) for e in every])
        second = torch.stack([self.input_scale(e, "down_proj") for e in every])
        if per_expert:
            return first, second
        return first.max().expand_as(first), second.max().expand_as(second)

    def logits(self, x):
        return x.double() @ self.router.T

    def activated(self, e, x, rounds=unrounded):
        up = rounds(x @ self.weights[e, "up_proj"].T)
        if not self.is_gated:
            return F.relu(up).square()
        return F.silu(rounds(x @ self.weights[e, "gate_proj"].T)) * up

    def __call__(self, x, ids, weights):
        out = torch.zeros_like(x.double())
        for e in range(self.experts):
            token, k = torch.where(ids == e)
            y = self.activated(e, x[token].double()) @ self.weights[e, "down_proj"].T
            out.index_add_(0, token, y * weights[token, k, None].double())
        return out

    def w4a4(self, x, ids, weights, rounds, per_expert=False):
        """The inputs of both products in NVFP4, and what the kernels round."""
        first, second = self.input_scales(per_expert)
        out = torch.zeros_like(x.double())
        for e in range(self.experts):
            token, k = torch.where(ids == e)
            h = self.activated(e, through_nvfp4(x[token].double(), first[e]), rounds.first)
            y = through_nvfp4(rounds.middle(h), second[e]) @ self.weights[e, "down_proj"].T
            out.index_add_(0, token, rounds.second(y) * rounds.weight(weights[token, k, None]))
        return bf16(out)

    def emulated(self, x, ids, weights):
        """vLLM's emulation: weights, inputs and every step in bf16."""
        first, second = self.input_scales(per_expert=False)
        out = torch.zeros_like(x.double())
        for e in range(self.experts):
            token, k = torch.where(ids == e)
            gate, up, down = (bf16(self.weights[e, name]).T for name in (*self.first, "down_proj"))
            given = bf16(through_nvfp4(x[token].double(), first[e]))
            h = bf16(bf16(F.silu(bf16(given @ gate))) * bf16(given @ up))
            y = bf16(through_nvfp4(h, second[e])) @ down
            out.index_add_(0, token, bf16(y * weights[token, k, None]))
        return bf16(out)


W4A4 = {"FLASHINFER_CUTLASS": GROUPED, "FLASHINFER_CUTEDSL": GROUPED, "VLLM_CUTLASS": GROUPED,
        "FLASHINFER_TRTLLM": TRTLLM, "EMULATION": Rounds()}


def softmax_routing(logits, top_k, renormalize=True):
    weights, ids = torch.topk(torch.softmax(logits, -1), top_k)
    return ids, weights / weights.sum(-1, keepdim=True) if renormalize else weights


def sigmoid_routing(logits, top_k, bias, groups=1, chosen=1, scale=1.0):
    scores = torch.sigmoid(logits)
    keys = (scores + bias).unflatten(-1, (groups, -1))
    best = keys.topk(2).values.sum(-1).topk(chosen).indices
    kept = torch.zeros(keys.shape[:2], dtype=torch.bool).scatter_(1, best, True)
    ids = torch.topk(keys.masked_fill(~kept[..., None], -torch.inf).flatten(-2), top_k).indices
    weights = scores.gather(-1, ids)
    return ids, weights / (weights.sum(-1, keepdim=True) + 1e-20) * scale


def qwen3(folder, dialect="modelopt", **config):
    synth(folder, "qwen3-30b-a3b", "--experts", 8, "--hidden", 256, "--intermediate", 192,
          "--dialect", dialect)
    edit(folder, {"num_experts_per_tok": 3, "norm_topk_prob": True} | config)
    model = PerExpert(folder, "model.layers.0.mlp.", 8)
    assert model.is_gated
    return model


def assert_torch_agrees(model, x, routing, backend):
    """`backend` None: exactly; else within its numerics, and close where activations are NVFP4."""
    expected = model(x, *routing)
    if backend is None:
        output, _ = run(model.folder, {"hidden_states": x}, "--numerics", "exact")
        assert_near(output, expected)
        return
    output, report = run(model.folder, {"hidden_states": x}, "--backend", backend)
    assert_within(output, expected, report)
    assert report["activations"] == ("nvfp4" if backend in W4A4 else "bf16")
    if backend in W4A4:
        # A 4-bit activation on a border may fall to either side; sums in float64 fall as torch's.
        output, _ = run(model.folder, {"hidden_states": x}, "--backend", backend,
                        "--engine", "reference")
        quantized = model.w4a4(x, *routing, W4A4[backend], per_expert=backend == "VLLM_CUTLASS")
        assert_near(output, quantized, 1e-2, 0.99999)


@pytest.mark.parametrize("dialect", ["modelopt", "compressed-tensors"])
@pytest.mark.parametrize("backend", [None, "MARLIN", "CPU", "FLASHINFER_TRTLLM",
                                     "FLASHINFER_CUTLASS", "FLASHINFER_CUTEDSL", "VLLM_CUTLASS",
                                     "EMULATION"])
def test_qwen3_is_a_loop_over_experts(tmp_path, dialect, backend):
    model, x = qwen3(tmp_path / "model", dialect), tokens(256)
    assert_torch_agrees(model, x, softmax_routing(model.logits(x), 3), backend)


def test_emulation_of_a_date_rounds_every_step(tmp_path):
    model, x = qwen3(tmp_path / "model"), tokens(256)
    output, report = run(model.folder, {"hidden_states": x}, "--backend", "EMULATION",
                         "--policy", "2026-08-22")
    assert report["numerics"] == "nvfp4_emulation"
    expected = model.emulated(x, *softmax_routing(model.logits(x), 3))
    assert_near(output, expected, 1e-2, 0.99999)


def test_qwen3_renormalizes_only_when_the_configuration_says_so(tmp_path):
    model, x = qwen3(tmp_path / "model", norm_topk_prob=False), tokens(256)
    assert_torch_agrees(model, x, softmax_routing(model.logits(x), 3, renormalize=False), None)


@pytest.mark.parametrize("backend", [None, "MARLIN", "FLASHINFER_TRTLLM", "FLASHINFER_CUTLASS"])
def test_deepseek_v3_is_sigmoid_bias_groups_and_scaling(tmp_path, backend):
    folder = synth(tmp_path / "model", "deepseek-v3", "--experts", 16, "--hidden", 256,
                   "--intermediate", 128)
    bias = torch.randn(16, generator=torch.Generator().manual_seed(9))  # negative keys, too
    edit(folder, {"num_experts_per_tok": 4, "n_group": 4, "topk_group": 2, "norm_topk_prob": True,
                  "routed_scaling_factor": 2.5, "scoring_func": "sigmoid"},
         {"model.layers.3.mlp.gate.e_score_correction_bias": bias})
    model, x = PerExpert(folder, "model.layers.3.mlp.", 16), tokens(256, count=40)
    routing = sigmoid_routing(model.logits(x), 4, bias.double(), groups=4, chosen=2, scale=2.5)
    ungrouped = sigmoid_routing(model.logits(x), 4, bias.double(), scale=2.5)
    assert (routing[0].sort().values != ungrouped[0].sort().values).any()
    assert_torch_agrees(model, x, routing, backend)


@pytest.mark.parametrize("backend", [None, "MARLIN", "FLASHINFER_CUTLASS"])
def test_nemotron_has_no_gate(tmp_path, backend):
    folder = synth(tmp_path / "model", "nemotron-3-nano", "--experts", 8, "--hidden", 256,
                   "--intermediate", 128)
    bias = torch.rand(8, generator=torch.Generator().manual_seed(9))
    edit(folder, {"num_experts_per_tok": 3, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
                  "routed_scaling_factor": 2.5},
         {"backbone.layers.1.mixer.gate.e_score_correction_bias": bias})
    # Half as large: the square stays in the range of the checkpoint's input scales.
    model, x = PerExpert(folder, "backbone.layers.1.mixer.", 8), tokens(256) / 2
    assert not model.is_gated
    routing = sigmoid_routing(model.logits(x), 3, bias.double(), scale=2.5)
    assert_torch_agrees(model, x, routing, backend)


@pytest.mark.parametrize("layout", ["native_sm90.nvfp4", "native_sm80.nvfp4"])
def test_a_converted_folder_gives_what_torch_gives(tmp_path, layout):
    model, x = qwen3(tmp_path / "model"), tokens(256)
    converted = tmp_path / "converted"
    fp4moe("convert", model.folder, "--layout", layout, "-o", converted)
    output, _ = run(converted, {"hidden_states": x}, "--numerics", "exact")
    assert_near(output, model(x, *softmax_routing(model.logits(x), 3)))
