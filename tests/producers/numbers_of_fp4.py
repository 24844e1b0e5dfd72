"""Numbers of FP4 checkpoints by the formats' definitions, and what an expert makes of tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def e4m3(codes: np.ndarray) -> np.ndarray:
    """Values of FP8 E4M3 codes."""
    exponent, mantissa = (codes >> 3 & 15).astype(int), (codes & 7).astype(float)
    normal = np.ldexp(1 + mantissa / 8, exponent - 7)
    value = np.where(exponent == 0, np.ldexp(mantissa / 8, -6), normal)
    return np.where(codes & 128, -value, value)


def decode(codes: np.ndarray, scales: np.ndarray, is_e4m3: bool, factor: float) -> np.ndarray:
    """[rows, k] of values from [rows, k / 2] codes and [rows, blocks] scales."""
    pairs = np.stack((codes & 15, codes >> 4), -1).reshape(codes.shape[0], -1)
    steps = e4m3(scales) if is_e4m3 else np.ldexp(1.0, scales.astype(int) - 127)
    return E2M1[pairs] * np.repeat(steps, pairs.shape[1] // scales.shape[1], 1) * factor


def bf16(values: np.ndarray) -> np.ndarray:
    """The nearest numbers towards zero that BF16 has, as float32."""
    return (values.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)


def bf16_bytes(values: np.ndarray) -> bytes:
    """BF16 as a file has it."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()


def activated(gate: np.ndarray, up: np.ndarray, activation: str) -> np.ndarray:
    """What goes into the down projection; one without a gate squares what is positive."""
    if activation == "swigluoai":
        return gated(gate, up, "gpt_oss")
    if activation == "relu2":
        return np.asarray(np.maximum(up, 0) ** 2)
    if activation == "gelu_tanh":
        inner = np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)
        return np.asarray(gate * (1 + np.tanh(inner)) / 2 * up)
    return gated(gate, up, "")


@dataclass
class Rule:
    """How a router chooses two experts of a token's logits."""

    score: str = "softmax"
    normalizes: bool = True
    scale: float = 1.0

    def choose(self, logits: np.ndarray, bias: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Experts, best first, and their weights."""
        if self.score == "sigmoid":
            scores = 1 / (1 + np.exp(-logits))
        else:
            scores = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        keys = scores if bias is None else scores + bias
        ids = np.argsort(-keys, 1)[:, :2]
        weights = np.take_along_axis(scores, ids, 1)
        if self.normalizes:
            weights = weights / weights.sum(1, keepdims=True)
        return ids, weights * self.scale


def gated(gate: np.ndarray, up: np.ndarray, model: str) -> np.ndarray:
    """What goes into the down projection."""
    if model == "gpt_oss":
        gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
        return np.asarray(gate / (1 + np.exp(-1.702 * gate)) * (up + 1))
    return np.asarray(gate / (1 + np.exp(-gate)) * up)


def mixed(outputs: list[np.ndarray], ids: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The weighted sum of every token's experts; `outputs` holds one [tokens, hidden] for each."""
    return np.array(
        [
            sum(w * outputs[expert][token] for expert, w in zip(chosen, given))
            for token, (chosen, given) in enumerate(zip(ids, weights))
        ]
    )
