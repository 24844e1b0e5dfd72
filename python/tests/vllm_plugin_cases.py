"""What the plug-in's methods compute, on stand-ins of vLLM's classes; for a CPU and for a GPU."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import torch
import vllm_standins as standins
from conftest import synth
from vllm_standins import Activation, Experts, NvFp4Experts, Routed

standins.install()

import fp4moe  # noqa: E402
from fp4moe import cli  # noqa: E402
from fp4moe.vllm.plugin import folder  # noqa: E402
from fp4moe.vllm.plugin.methods import Target, make_method  # noqa: E402
from fp4moe.vllm.plugin.mode import PluginRequest  # noqa: E402

NVFP4 = Target(standins.TheirMethod, "nvfp4", {"use_a16": True})
TARGET = Target(standins.TheirMethod, "mxfp4", {"weight_dtype": "mxfp4"})
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
HIDDEN, INTERMEDIATE = 256, 128


def values(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    pairs = torch.stack((codes & 15, codes >> 4), -1).long().cpu()
    blocks = E2M1[pairs].flatten(-2).reshape(*scales.shape, 32)
    return (blocks * torch.exp2(scales.cpu().float() - 127)[..., None]).flatten(-2).double()


def expected(layer: Experts, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """By the definition, in float64."""
    w13 = values(layer.w13_weight, layer.w13_weight_scale)
    w2 = values(layer.w2_weight, layer.w2_weight_scale)
    b13, b2 = getattr(layer, "w13_bias", None), getattr(layer, "w2_bias", None)
    out = torch.zeros(x.shape, dtype=torch.float64)
    for token in range(x.shape[0]):
        for choice, expert in enumerate(ids[token].tolist()):
            both = w13[expert] @ x[token].cpu().double()
            both = both if b13 is None else both + b13[expert].cpu().double()
            if layer.activation is Activation.SWIGLUOAI:
                gate, up = both[0::2].clamp(max=7.0), both[1::2].clamp(-7.0, 7.0)
                hidden = gate * torch.sigmoid(1.702 * gate) * (up + 1)
            else:
                gate, up = both.chunk(2)
                hidden = torch.nn.functional.silu(gate) * up
            result = w2[expert] @ hidden
            result = result if b2 is None else result + b2[expert].cpu().double()
            out[token] += weights[token, choice].cpu().double() * result
    return out


def inputs(tokens: int, experts: int, top_k: int, device: str, seed: int = 3) -> tuple[Any, Any, Any]:
    result = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, HIDDEN, generator=result).bfloat16()
    ids = torch.stack([torch.randperm(experts, generator=result)[:top_k] for _ in range(tokens)])
    weights = torch.rand(tokens, top_k, generator=result)
    return x.to(device), weights.to(device), ids.to(torch.int32).to(device)


def processed(layer: Experts, top_k: int, *, batched: bool = False) -> Any:
    moe = standins.moe_config(layer, layer.activation, top_k, batched=batched)
    method = make_method(moe, TARGET, PluginRequest())
    method.process_weights_after_loading(layer)
    return method


def apply(method: Any, layer: Experts, x: Any, weights: Any, ids: Any) -> torch.Tensor:
    result: torch.Tensor = method.apply(layer, x, weights, ids, None, None)
    return result


def check(found: torch.Tensor, wanted: torch.Tensor) -> None:
    apart = (found.cpu().double() - wanted).norm() / wanted.norm()
    assert apart < 0.01, float(apart)


def check_layer(device: str, activation: Activation, bias: bool) -> None:
    layer = Experts(6, HIDDEN, INTERMEDIATE, activation, device, seed=1, bias=bias)
    x, weights, ids = inputs(9, 6, 3, device)
    wanted = expected(layer, x, weights, ids)
    method = processed(layer, 3)
    assert type(method).__name__ == "TheirMethod"  # loaders decide by it
    assert all(parameter.numel() == 0 for parameter in layer.parameters())  # one copy is left
    check(apply(method, layer, x, weights, ids), wanted)


def check_weights_on_the_input(device: str) -> None:
    layer = Experts(6, HIDDEN, INTERMEDIATE, Activation.SILU, device)
    x, weights, ids = inputs(5, 6, 1, device)
    wanted = expected(layer, x, torch.ones_like(weights), ids)
    layer.apply_router_weight_on_input = True  # prepare() multiplies, the stand-in does not
    check(apply(processed(layer, 1), layer, x, weights, ids), wanted)


def check_expert_maps(device: str) -> None:
    """Ranks with any experts: their parts sum up to the whole, also with fewer than top_k each."""
    layer = Experts(6, HIDDEN, INTERMEDIATE, Activation.SWIGLUOAI, device)
    x, weights, ids = inputs(8, 6, 4, device)
    wanted = expected(layer, x, weights, ids)
    total = torch.zeros_like(wanted)
    for seed, chosen in enumerate([[5, 0], [1, 4, 2], [3]], start=10):
        part = layer.part(chosen, seed)
        total += apply(processed(part, 4), part, x, weights, ids).cpu().double()
    check(total, wanted)


def check_no_expert(device: str) -> None:
    layer = Experts(6, HIDDEN, INTERMEDIATE, Activation.SILU, device)
    part = layer.part([0, 1], 20)
    x, weights, ids = inputs(4, 6, 2, device)
    ids = torch.full_like(ids, -1)
    assert not apply(processed(part, 2), part, x, weights, ids).any()


def check_batches(device: str) -> None:
    layer = Experts(6, HIDDEN, INTERMEDIATE, Activation.SILU, device)
    x, weights, ids = inputs(7, 6, 2, device)
    wanted = expected(layer, x, weights, ids)
    check(apply(processed(layer, 2, batched=True), layer, x, weights, ids), wanted)


def check_reload(device: str) -> None:
    """Other weights into the same layer, as vLLM loads them again."""
    layer = Experts(6, HIDDEN, INTERMEDIATE, Activation.SILU, device, seed=1)
    method = processed(layer, 2)
    first = method.fp4moe_layer
    other = Experts(6, HIDDEN, INTERMEDIATE, Activation.SILU, device, seed=2)
    x, weights, ids = inputs(4, 6, 2, device)
    wanted = expected(other, x, weights, ids)
    for name, parameter in other.named_parameters():
        getattr(layer, name).data = parameter.data.clone()
    method.process_weights_after_loading(layer)
    assert method.fp4moe_layer is first
    check(apply(method, layer, x, weights, ids), wanted)


def check_tensor_parallel(device: str, activation: Activation) -> None:
    """The parts of two tensor-parallel ranks sum up to the whole."""
    layer = Experts(6, HIDDEN, 2 * INTERMEDIATE, activation, device, bias=True)
    x, weights, ids = inputs(9, 6, 3, device)
    wanted = expected(layer, x, weights, ids)
    total = torch.zeros_like(wanted)
    for part in layer.halves():
        total += apply(processed(part, 3), part, x, weights, ids).cpu().double()
    check(total, wanted)


def nvfp4(device: str, is_packed: bool) -> tuple[Any, NvFp4Experts, Any, torch.Tensor]:
    """A method with its layer, the tokens of a call, and what comes of them by the definition."""
    layer = NvFp4Experts(6, HIDDEN, INTERMEDIATE, device, is_packed=is_packed)
    x, weights, ids = inputs(9, 6, 3, device)
    matrices = []
    for name in ("w13", "w2"):
        codes = getattr(layer, f"{name}_weight{'_packed' if is_packed else ''}").cpu()
        scales = getattr(layer, f"{name}_weight_scale").float().cpu()
        factor = getattr(layer, f"{name}_weight_{'global_scale' if is_packed else 'scale_2'}").cpu()
        factor = factor.reshape(factor.shape[0], -1)[:, 0]
        pairs = torch.stack((codes & 15, codes >> 4), -1).long()
        blocks = E2M1[pairs].flatten(-2).reshape(*scales.shape, 16) * scales[..., None]
        factor = 1 / factor if is_packed else factor
        matrices.append((blocks.flatten(-2) * factor[:, None, None]).double())
    wanted = torch.zeros(x.shape, dtype=torch.float64)
    for token in range(x.shape[0]):
        for choice, expert in enumerate(ids[token].tolist()):
            gate, up = (matrices[0][expert] @ x[token].cpu().double()).chunk(2)
            result = matrices[1][expert] @ (torch.nn.functional.silu(gate) * up)
            wanted[token] += weights[token, choice].cpu().double() * result
    moe = standins.sized_config(Activation.SILU, 3, 6, HIDDEN, INTERMEDIATE)
    method = make_method(moe, NVFP4, PluginRequest())
    method.process_weights_after_loading(layer)
    return method, layer, (x, weights, ids), wanted


def check_nvfp4(device: str, is_packed: bool) -> None:
    method, layer, given, wanted = nvfp4(device, is_packed)
    check(apply(method, layer, *given), wanted)


EXPERTS, TOP_K = 8, 4  # of the folders


class Folders:
    """A checkpoint of one gpt-oss layer, the folders that this machine makes of it, and its values."""

    def __init__(self, place: Path) -> None:
        shape = ("--experts", EXPERTS, "--hidden", HIDDEN, "--intermediate", 2 * INTERMEDIATE)
        self.place = place
        self.source = synth(place / "source", "--model", "gpt-oss-20b", "--layers", 1, *shape)
        ranks = {"one": [], "tp": ["--tp", "2"], "ep": ["--ep", "2"]}
        ranks["round"] = ["--ep", "2", "--placement", "round-robin"]
        for name, words in ranks.items():
            outcome = cli.call(["convert", str(self.source), *words, "-o", str(place / name)])
            assert outcome.status == 0, outcome.err
        options = {"engine": "reference", "numerics": "exact"}
        self.exact = fp4moe.Layer.open(self.source, 0, weights="mapped", backend="CPU", **options)

    def expected(self, x: Any, weights: Any, ids: Any) -> torch.Tensor:
        given = (x.float().cpu(), ids.cpu(), weights.cpu())
        result: torch.Tensor = self.exact.apply(*given)
        return result.double()

    def opened(
        self, name: str, device: str, tp: tuple[int, int] = (0, 1), ep: tuple[int, int] = (0, 1),
        placement: str = "linear",
    ) -> tuple[Any, Routed]:  # fmt: skip
        """The method and the module of one rank."""
        label = f"{name}.{tp[0]}.{ep[0]}.model.layers.0.mlp.experts"
        layer = Routed(Activation.SWIGLUOAI, EXPERTS, label)
        layer.expert_map_manager = types.SimpleNamespace(placement_strategy=placement)
        if ep[1] > 1:
            each = EXPERTS // ep[1]
            linear = range(ep[0] * each, (ep[0] + 1) * each)
            own = range(ep[0], EXPERTS, ep[1]) if placement == "round_robin" else linear
            layer.has_only(list(own), device)
        sizes = (TOP_K, EXPERTS, HIDDEN, 2 * INTERMEDIATE)
        layer.moe_config = standins.sized_config(Activation.SWIGLUOAI, *sizes, tp=tp, ep=ep)
        path = str(self.place / name)
        method = folder.choose_folder(layer, label, lambda: TARGET, path, standins.TheirMethod)
        method.create_weights(layer)
        assert not list(layer.parameters())
        method.process_weights_after_loading(layer)
        return method, layer


def check_folder(device: str, folders: Folders) -> None:
    given = inputs(9, EXPERTS, TOP_K, device)
    method, layer = folders.opened("one", device)
    assert "the folder is in layout" in method.fp4moe_layer.info()["why"]
    assert method.fp4moe_layer.info()["engine"] == device
    check(apply(method, layer, *given), folders.expected(*given))


def check_folders_of_ranks(device: str, folders: Folders, split: str) -> None:
    """Each rank maps its own; the parts sum up, and no rank takes another's."""
    given = inputs(9, EXPERTS, TOP_K, device)
    wanted = folders.expected(*given)
    total = torch.zeros_like(wanted)
    for rank in range(2):
        words: dict[str, Any] = {"ep" if split == "round" else split: (rank, 2)}
        if split == "round":
            words["placement"] = "round_robin"
        method, layer = folders.opened(split, device, **words)
        total += apply(method, layer, *given).cpu().double()
    check(total, wanted)
