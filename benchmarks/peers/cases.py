# SPDX-License-Identifier: Apache-2.0
"""What compare.py computes: the cases, their arrays, and a few rows of each result by the formula in double."""

import numpy as np


PASSES = ("backward", "both")  # of attention alone
RAGGED = ("uneven", "tokens")  # of sequences of different lengths


class Case:
    """One computation; its sizes are attributes.

    attention  queries, keys, heads, kv_heads, dim    q (1, Hq, Lq, D)  k, v (1, Hkv, Lk, D)
    short      the same: one query, as in decoding, at the end of the keys
    uneven     the same and lengths of sequences          q, k, v (ΣL, H, D), one sequence after another
    tokens     the same: one query of each sequence, at the end of its keys
    layer      model, length, heads                   x (L, E), weights with biases as PyTorch stores them
    step       the same and dropout                   forward and backward pass of such a layer, dy = x
    backward   as attention and dropout               its backward pass alone, of do (1, H, L, D)
    both       the same                               forward and backward pass
    linear     rows, inner, columns                   x (M, K)  w (N, K)  b (N)
    """

    def __init__(self, group, kind, scalar="float32", pattern="full", **sizes):
        self.group, self.kind, self.scalar, self.pattern, self.sizes = group, kind, scalar, pattern, sizes
        self.__dict__.update(sizes)

    @property
    def shape(self):
        """For the tables."""
        passes = {"backward": ", backward pass", "both": ", both passes"}
        return self.words + passes.get(self.kind, "")

    @property
    def words(self):
        if self.kind in PASSES:
            return "D %d, L %d%s" % (self.dim, self.keys, ", dropout %g" % self.dropout if self.dropout else "")
        if self.kind == "attention":
            return "D %d, L %d" % (self.dim, self.keys)
        if self.kind == "short":
            return "%d/%d heads, D %d, %d keys" % (self.heads, self.kv_heads, self.dim, self.keys)
        if self.kind in RAGGED:
            sizes = (len(self.lengths), min(self.lengths), max(self.lengths), self.heads, self.kv_heads, self.dim)
            return "%d × %d to %d, %d/%d heads, D %d" % sizes
        if self.kind in ("layer", "step"):
            dropped = ", dropout %g" % self.dropout if self.kind == "step" and self.dropout else ""
            return "E %d, L %d%s" % (self.model, self.length, dropped)
        return "%d × %d × %d" % (self.rows, self.inner, self.columns)

    @property
    def name(self):
        return "%s/%s/%s/%s" % (self.kind, self.scalar, self.words.replace(" ", ""), self.pattern.replace(" ", "_"))

    @property
    def unit(self):
        return "GB/s" if self.kind in ("short", "tokens") else "GFLOP/s"

    @property
    def query_offsets(self):
        """Where the rows of q of each sequence begin, and where all end."""
        return offsets([1] * len(self.lengths) if self.kind == "tokens" else self.lengths)

    @property
    def key_offsets(self):
        return offsets(self.lengths)

    @property
    def on_matrix_unit(self):
        """Whether ours runs on Systolic. Few queries do not: memory is their limit, and Cpu reads bfloat16 as well."""
        return self.scalar == "bfloat16" and self.unit == "GFLOP/s"

    def work(self, visible_pairs):
        """1e9 FLOP of visible work, or 1e9 bytes of keys and values; visible_pairs(pattern, queries, keys)."""
        if self.kind in PASSES:
            pairs = visible_pairs(self.pattern, self.queries, self.keys)
            return 1e-9 * (10 if self.kind == "backward" else 14) * pairs * self.heads * self.dim
        if self.kind == "attention":
            return 4e-9 * visible_pairs(self.pattern, self.queries, self.keys) * self.heads * self.dim
        if self.kind == "uneven":
            pairs = sum(visible_pairs(self.pattern, length, length) for length in self.lengths)
            return 4e-9 * pairs * self.heads * self.dim
        if self.unit == "GB/s":
            return 2e-9 * self.keys * self.kv_heads * self.dim * (2 if self.scalar == "bfloat16" else 4)
        if self.kind == "layer":
            pairs = visible_pairs(self.pattern, self.length, self.length)
            return 1e-9 * (8.0 * self.length * self.model**2 + 4 * pairs * self.model)
        if self.kind == "step":
            pairs = visible_pairs(self.pattern, self.length, self.length)
            return 1e-9 * (24.0 * self.length * self.model**2 + 14 * pairs * self.model)
        return 2e-9 * self.rows * self.inner * self.columns

    def data(self):
        """The arrays by name."""
        return Data(self)

    def expected(self, data):
        """(rows, values): a few rows of the result by their numbers along the second last axis; or (None, arrays) that
        are compared whole, gradients among them."""
        return expected(self, data)


def all_cases():
    plain = ("full", "causal")

    def attention(group, length, dim, pattern, scalar="float32"):
        return Case(group, "attention", scalar, pattern, queries=length, keys=length, heads=2, kv_heads=2, dim=dim)

    for length in (512, 1024, 2048, 4096, 8192):
        for dim in (64, 128):
            yield from (attention("attention", length, dim, mask) for mask in plain)
    for pattern in ("window 256", "padding", "softcap", "block-sparse", "functor"):
        yield attention("masks", 2048, 64, pattern)
    for length in (512, 2048, 4096):
        for dim in (64, 128):
            yield from (attention("bfloat16", length, dim, mask, "bfloat16") for mask in plain)
    for scalar in ("float32", "bfloat16"):
        for keys in (1024, 4096, 32768):
            yield Case("short", "short", scalar, queries=1, keys=keys, heads=32, kv_heads=8, dim=128)
    # The lengths of uneven_bench.cpp. The tokens have fewer heads: PyTorch's padded keys take 1 GiB so.
    prompts = (51, 69, 89, 684, 253, 34, 138, 169, 17, 2048, 313, 1016, 506, 111, 393, 206)
    texts = (640, 128, 1024, 320, 896, 64, 512, 1536, 256, 32768, 448, 192, 384, 768, 832, 192)

    def ragged(kind, lengths, scalar, pattern, queries, heads, kv_heads, dim):
        sizes = {"lengths": lengths, "queries": queries, "keys": sum(lengths)}
        return Case("uneven", kind, scalar, pattern, **sizes, heads=heads, kv_heads=kv_heads, dim=dim)

    for scalar in ("float32", "bfloat16"):
        for mask in plain:
            yield ragged("uneven", prompts, scalar, mask, sum(prompts), 2, 2, 64)
        yield ragged("tokens", texts, scalar, "full", len(texts), 8, 2, 128)
    for group, scalar in (("layer", "float32"), ("bfloat16", "bfloat16")):
        for model, length in ((512, 512), (1024, 2048)):
            for mask in plain:
                yield Case(group, "layer", scalar, mask, model=model, length=length, heads=model // 64)
    for length in (512, 2048):
        for mask in plain:
            for dropout in (0, 0.1):
                yield Case("training", "step", "float32", mask, model=512, length=length, heads=8, dropout=dropout)
    for length in (512, 2048, 4096):
        for dim in (64, 128):
            sizes = {"queries": length, "keys": length, "heads": 2, "kv_heads": 2, "dim": dim}
            for mask in plain:
                for kind in PASSES:
                    yield Case("backward", kind, "float32", mask, dropout=0, **sizes)
                yield Case("backward", "both", "float32", mask, dropout=0.1, **sizes)
                if length >= 2048:
                    yield Case("bfloat16", "backward", "bfloat16", mask, dropout=0, **sizes)
    for rows, inner, columns in ((1, 1024, 1024), (16, 1024, 1024), (1024, 512, 512), (1024, 2048, 2048)):
        yield Case("linear", "linear", rows=rows, inner=inner, columns=columns)
    for rows, inner, columns in ((512, 512, 512), (1024, 2048, 2048)):
        yield Case("bfloat16", "linear", "bfloat16", rows=rows, inner=inner, columns=columns)


def visible(case, q, k):
    """The pairs that a pattern shows, as in patterns.hpp; q and k are positions and may be arrays or tensors."""
    if case.pattern == "causal":
        return k <= q
    if case.pattern == "window 256":
        return (k <= q) & (q - k <= 255)
    if case.pattern == "padding":
        return k < 1500 * case.keys // 2048
    if case.pattern == "functor":
        return ((q + k) & 15) != 0
    if case.pattern == "block-sparse":
        i, j = q // 64, k // 64
        return (j <= i) & ((j == 0) | (i - j <= 1) | ((i - j) % 4 == 0))
    return (q >= 0) & (k >= 0)


# ---- arrays ----


def rounded_to_bfloat16(x):
    """float32 → the upper halves of the nearest bfloat16, as uint16."""
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def as_float32(x):
    return (x.astype(np.uint32) << 16).view(np.float32) if x.dtype == np.uint16 else x


LIKE = {"short": "attention", "backward": "attention", "both": "attention", "step": "layer", "tokens": "uneven"}


class Data(dict):
    """The arrays of a case by name, the same memory for all who take part."""

    def __init__(self, case):
        draw = np.random.default_rng(7)
        sizes = {
            "attention": lambda c: {
                "q": (1, c.heads, c.queries, c.dim),
                "k": (1, c.kv_heads, c.keys, c.dim),
                "v": (1, c.kv_heads, c.keys, c.dim),
                **({"do": (1, c.heads, c.queries, c.dim)} if c.kind in PASSES else {}),
            },
            "uneven": lambda c: {
                "q": (c.queries, c.heads, c.dim),
                "k": (c.keys, c.kv_heads, c.dim),
                "v": (c.keys, c.kv_heads, c.dim),
            },
            "layer": lambda c: {
                "x": (c.length, c.model),
                "w_in": (3 * c.model, c.model),
                "b_in": (3 * c.model,),
                "w_out": (c.model, c.model),
                "b_out": (c.model,),
            },
            "linear": lambda c: {"x": (c.rows, c.inner), "w": (c.columns, c.inner), "b": (c.columns,)},
        }
        for name, shape in sizes[LIKE.get(case.kind, case.kind)](case).items():
            array = draw.standard_normal(shape, np.float32)
            if name[0] == "w":
                array /= np.float32(shape[1] ** 0.5)
            self[name] = rounded_to_bfloat16(array) if case.scalar == "bfloat16" else array


# ---- the formula ----


def offsets(lengths):
    """Where each of these begins, and where all end."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def expected_of_sequences(case, data):
    """(rows, values (1, H, rows, D)): the last row of every sequence, and a few others."""
    q, k, v = (as_float32(data[n]) for n in "qkv")
    queries, keys = case.query_offsets, case.key_offsets
    rows = np.unique(np.append(np.random.default_rng(11).integers(0, case.queries, 7), queries[1:] - 1))
    values = []
    for row in rows:
        b = np.searchsorted(queries, row, "right") - 1
        position = row - queries[b + 1] + case.lengths[b]
        own = slice(keys[b], keys[b + 1])
        k_own, v_own = (x[own].repeat(case.heads // case.kv_heads, 1).astype(np.float64) for x in (k, v))
        s = np.einsum("hd,jhd->hj", q[row], k_own) / case.dim**0.5
        s = np.where(visible(case, position, np.arange(case.lengths[b])), s, -np.inf)
        values.append(np.einsum("hj,jhd->hd", softmax(s), v_own))
    return rows, np.stack(values, axis=1)[None]


def softmax(s):
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def gradients(case, q, k, v, d_out):
    """o, dq, dk, dv of (H, L, D) in double, some queries at a time: dP = dO Vᵀ, dS = P ∘ (dP − rows' Σ P ∘ dP)."""
    o, dq, dk, dv = (np.zeros_like(x) for x in (q, q, k, v))
    scale = q.shape[-1] ** -0.5
    for begin in range(0, q.shape[1], 512):
        rows = np.arange(begin, min(begin + 512, q.shape[1]))
        s = scale * q[:, rows] @ k.transpose(0, 2, 1)
        p = softmax(np.where(visible(case, rows[:, None], np.arange(k.shape[1])[None, :]), s, -np.inf))
        dp = d_out[:, rows] @ v.transpose(0, 2, 1)
        ds = scale * p * (dp - (p * dp).sum(-1, keepdims=True))
        o[:, rows] = p @ v
        dq[:, rows] = ds @ k
        dk += ds.transpose(0, 2, 1) @ q[:, rows]
        dv += p.transpose(0, 2, 1) @ d_out[:, rows]
    return o, dq, dk, dv


def expected_gradients(case, data):
    """dq, dk, dv of attention; y, dx and the gradients of the weights of a layer, dy being x."""
    if case.kind in PASSES:
        return gradients(case, *(as_float32(data[n])[0].astype(np.float64) for n in ("q", "k", "v", "do")))[1:]
    x, w_in, b_in, w_out, b_out = (data[n].astype(np.float64) for n in ("x", "w_in", "b_in", "w_out", "b_out"))
    heads = lambda y: y.reshape(len(y), case.heads, -1).transpose(1, 0, 2)
    side_by_side = lambda y: y.transpose(1, 0, 2).reshape(len(x), -1)
    projected = (heads(part) for part in np.split(x @ w_in.T + b_in, 3, axis=1))
    o, *d_projected = (side_by_side(y) for y in gradients(case, *projected, heads(x @ w_out)))
    d_projected = np.concatenate(d_projected, axis=1)
    dw_in, dw_out = d_projected.T @ x, x.T @ o
    return o @ w_out.T + b_out, d_projected @ w_in, dw_in, d_projected.sum(0), dw_out, x.sum(0)


LAST = {}  # the gradients of the case before: the arrays do not depend on passes and dropout


def expected(case, data):
    if case.kind in (*PASSES, "step"):
        sizes = frozenset(item for item in case.sizes.items() if item[0] != "dropout")
        key = (case.kind == "step", case.scalar, case.pattern, sizes)
        if key not in LAST:
            LAST.clear()
            LAST[key] = expected_gradients(case, data)
        return None, LAST[key]
    if case.kind in RAGGED:
        return expected_of_sequences(case, data)
    if case.kind == "linear":
        x, w, b = (as_float32(data[n]) for n in "xwb")
        return np.arange(case.rows), x.astype(np.float64) @ w.T + b
    layer = case.kind == "layer"
    queries = case.length if layer else case.queries
    rows = np.unique(np.append(np.random.default_rng(11).integers(0, queries, 7), queries - 1))
    if layer:
        x, w_in, b_in, w_out, b_out = (as_float32(data[n]) for n in ("x", "w_in", "b_in", "w_out", "b_out"))
        projected = x.astype(np.float64) @ w_in.T + b_in
        q, k, v = np.split(projected, 3, axis=1)
        heads = lambda y: y.reshape(len(y), case.heads, -1).transpose(1, 0, 2)
        q, k, v, keys = heads(q[rows]), heads(k), heads(v), case.length
    else:
        q, k, v = (as_float32(data[n])[0].astype(np.float64) for n in "qkv")
        group = case.heads // case.kv_heads
        q, k, v, keys = q[:, rows], k.repeat(group, 0), v.repeat(group, 0), case.keys
    s = q @ k.transpose(0, 2, 1) / q.shape[-1] ** 0.5  # (H, rows, Lk)
    if case.pattern == "softcap":
        s = 30 * np.tanh(s / 30)
    positions = rows + keys - queries
    s = np.where(visible(case, positions[:, None], np.arange(keys)[None, :]), s, -np.inf)
    o = softmax(s) @ v
    if not layer:
        return rows, o[None]
    return rows, o.transpose(1, 0, 2).reshape(len(rows), -1) @ w_out.T + b_out


def error(case, result, rows, values):
    """The largest error of the rows, relative to 1 or to the value if that is larger; of whole arrays, relative to the
    largest value of each."""
    if rows is None:
        largest = lambda a: np.max(np.abs(a))
        return float(np.max([largest(r.reshape(v.shape) - v) / largest(v) for r, v in zip(result, values)]))  # NaN stays
    result = np.asarray(result, np.float64)[..., rows, :]
    return float(np.max(np.abs(result - values) / np.maximum(1, np.abs(values))))


def tolerance(case):
    return 2e-2 if case.scalar == "bfloat16" else 2e-4
