# SPDX-License-Identifier: Apache-2.0
"""The group `model` of compare.py: blocks of transformers, their arrays, and a few rows of each by its formula in double.

GPT-2, ViT   x ← x + attention(norm₁(x)),  x ← x + W_down F(W_up norm₂(x))
LLaMA        the same with RMSNorm, rotary positions, grouped heads, and SiLU(W_gate h) ∘ W_up h for F(W_up h)
BERT         x ← norm₁(x + attention(x)),  x ← norm₂(x + W_down F(W_up x))
"""

import math

import numpy as np

import cases
from cases import as_float32

STAGES = ("attention", "products", "activation", "norm")


class Block(cases.Case):
    """A block; its arrays are x (B, L, E) and weights as PyTorch stores them, (out, in)."""

    def __init__(self, kind, scalar, batch, length, model, heads, hidden, kv_heads=0, name=""):
        super().__init__(
            "model", "block", scalar, "causal" if kind in ("GPT-2", "LLaMA") else "full",
            batch=batch, length=length, model=model, heads=heads, hidden=hidden, kv_heads=kv_heads or heads,
        )  # fmt: skip
        self.block, self.called, self.dim = kind, name or kind, model // heads
        self.norms_first = kind != "BERT"
        self.rotary = self.gated = kind == "LLaMA"
        self.biased = kind != "LLaMA"
        self.eps = 1e-6 if kind == "LLaMA" else 1e-5

    @property
    def words(self):
        return "%s, E %d, %d × %d" % (self.called, self.model, self.batch, self.length)

    @property
    def unit(self):
        return "GFLOP/s"

    @property
    def on_matrix_unit(self):
        return self.scalar == "bfloat16"

    def work(self, visible_pairs):
        pairs = self.batch * visible_pairs(self.pattern, self.length, self.length)
        matrices = sum(math.prod(s) for n, s in self.array_shapes().items() if n.startswith("w_"))
        return 1e-9 * (2.0 * self.batch * self.length * matrices + 4.0 * pairs * self.model)

    def array_shapes(self):
        model, hidden, keys = self.model, self.hidden, self.dim * self.kv_heads
        shapes = {
            "x": (self.batch, self.length, model), "w_qkv": (model + 2 * keys, model), "w_out": (model, model),
            "w_up": (hidden, model), "w_down": (model, hidden), "norm1": (model,), "norm2": (model,),
        }  # fmt: skip
        if self.gated:
            shapes["w_gate"] = (hidden, model)
        if self.biased:
            shapes.update({"b_" + n[2:]: s[:1] for n, s in shapes.items() if n.startswith("w_")})
            shapes.update(norm1_bias=(model,), norm2_bias=(model,))
        return shapes

    def data(self):
        draw, arrays = np.random.default_rng(7), {}
        for name, shape in self.array_shapes().items():
            array = draw.standard_normal(shape, np.float32)
            if name.startswith("w_"):
                array /= np.float32(shape[1] ** 0.5)
            elif name != "x":
                array = np.float32(name in ("norm1", "norm2")) + np.float32(0.1) * array
            arrays[name] = cases.rounded_to_bfloat16(array) if self.scalar == "bfloat16" else array
        return arrays

    def expected(self, data):
        """Rows of all sequences one after another: some of the first sequence and some of the last."""
        w = {n: as_float32(a).astype(np.float64) for n, a in data.items()}
        rows = np.unique(np.append(np.random.default_rng(11).integers(0, self.length, 5), self.length - 1))
        sequences = sorted({0, self.batch - 1})
        values = [self.rows_of(w["x"][b], rows, w) for b in sequences]
        return np.concatenate([b * self.length + rows for b in sequences]), np.concatenate(values)

    def rows_of(self, x, rows, w):
        normed = self.norm(x, w, "norm1") if self.norms_first else x
        y = x[rows] + self.attention(normed, rows, w) @ w["w_out"].T + w.get("b_out", 0)
        if not self.norms_first:
            y = self.norm(y, w, "norm1")
        h = self.norm(y, w, "norm2") if self.norms_first else y
        up = h @ w["w_up"].T + w.get("b_up", 0)
        up = silu(h @ w["w_gate"].T) * up if self.gated else (gelu_tanh if self.block == "GPT-2" else gelu)(up)
        y = y + up @ w["w_down"].T + w.get("b_down", 0)
        return y if self.norms_first else self.norm(y, w, "norm2")

    def norm(self, x, w, name):
        if name + "_bias" in w:
            x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * w[name] + w.get(name + "_bias", 0)

    def attention(self, x, rows, w):
        keys = self.dim * self.kv_heads
        projected = np.split(x @ w["w_qkv"].T + w.get("b_qkv", 0), [self.model, self.model + keys], axis=1)
        q, k, v = (y.reshape(self.length, -1, self.dim).transpose(1, 0, 2) for y in projected)  # (H, L, D)
        if self.rotary:
            q, k = (turned(y, *rotations(self.length, self.dim)) for y in (q, k))
        k, v = (y.repeat(self.heads // self.kv_heads, 0) for y in (k, v))
        s = q[:, rows] @ k.transpose(0, 2, 1) / self.dim**0.5
        s = np.where(cases.visible(self, rows[:, None], np.arange(self.length)[None, :]), s, -np.inf)
        return (cases.softmax(s) @ v).transpose(1, 0, 2).reshape(len(rows), -1)


def all_cases():
    for scalar in ("float32", "bfloat16"):
        yield Block("GPT-2", scalar, 1, 512, 768, 12, 3072)
        yield Block("ViT", scalar, 8, 197, 768, 12, 3072, name="ViT-B")
        yield Block("LLaMA", scalar, 1, 512, 2048, 32, 5632, kv_heads=4)
        yield Block("BERT", scalar, 8, 128, 768, 12, 3072)
        yield Block("BERT", scalar, 32, 128, 384, 12, 1536, name="MiniLM")
        yield Block("BERT", scalar, 1, 8, 384, 12, 1536, name="MiniLM")


# ---- functions ----


def rotations(length, dim):
    """cos, sin (L, D / 2) of position · 10000^(−2i/D)."""
    angles = np.arange(length)[:, None] * 10000.0 ** (-2.0 * np.arange(dim // 2) / dim)
    return np.cos(angles), np.sin(angles)


def turned(x, cos, sin):
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def silu(x):
    return x / (1 + np.exp(-x))


def gelu(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
