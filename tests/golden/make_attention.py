# SPDX-License-Identifier: Apache-2.0
"""Inputs and outputs of PyTorch's attention in float64: scaled_dot_product_attention, flex_attention (its eager form)
and nn.MultiheadAttention. Writes sdpa.txt, scores.txt and mha.txt beside this script; README.md lists the keys.

Usage: python make_attention.py
"""

import math
import pathlib
import warnings

import torch
from torch.nn.attention.flex_attention import flex_attention

from golden_format import Writer

warnings.filterwarnings("ignore")  # flex_attention says that its eager form is slow
torch.set_grad_enabled(False)
torch.set_num_threads(1)  # sums in one order, so that a rerun gives the same bytes
torch.set_default_dtype(torch.float64)

NEVER = -math.inf


def draw(*shape, spread=1.0):
    """Normal numbers with three decimals: short to print, and the same double when read back."""
    values = (torch.randn(*shape) * spread).reshape(-1).tolist()
    return torch.tensor([round(x, 3) for x in values]).reshape(shape)


def write(writer, key, tensor):
    writer.tensor(key, list(tensor.shape), tensor.reshape(-1).tolist())


def logits_by_formula(q, k, scale):
    """scale · Q Kᵀ, where query head h reads key head h / (Hq / Hkv)."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)  # (B, Hq, Lk, D)
    return scale * q @ k.transpose(-2, -1)  # (B, Hq, Lq, Lk)


def attend_by_formula(logits, v):
    v = v.repeat_interleave(logits.shape[1] // v.shape[1], dim=1)  # (B, Hq, Lk, Dv)
    return logits.softmax(dim=-1).nan_to_num(nan=0.0) @ v  # a row of -inf has weights 0


def agree(name, a, b, tolerance=1e-12):
    assert a.shape == b.shape and (a - b).abs().max() < tolerance, name


def positions(lq, lk):
    """Absolute positions of queries and keys: the last query sees the last key."""
    return torch.arange(lk - lq, lk)[:, None], torch.arange(lk)[None, :]


# scaled_dot_product_attention


def sdpa_case(writer, name, b=1, hq=2, hkv=None, lq=6, lk=6, d=5, dv=None, spread=1.0, is_causal=False, allowed=None,
              bias=None, scale=None, tolerance=1e-12):
    hkv, dv = hkv or hq, dv or d
    q, k, v = draw(b, hq, lq, d, spread=spread), draw(b, hkv, lk, d), draw(b, hkv, lk, dv)
    writer.case(name)
    for key, tensor in (("q", q), ("k", k), ("v", v)):
        write(writer, key, tensor)
    if is_causal:
        writer.int("causal_top_left", 1)
    if allowed is not None:
        write(writer, "allowed", allowed.int())
    if bias is not None:
        write(writer, "bias", bias)
    if scale is not None:
        writer.real("scale", scale)
    out = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=bias if allowed is None else allowed, is_causal=is_causal, scale=scale,
        enable_gqa=hq != hkv)
    logits = logits_by_formula(q, k, 1 / math.sqrt(d) if scale is None else scale)
    if bias is not None:
        logits = logits + bias
    if is_causal:
        allowed = torch.arange(lk)[None, :] <= torch.arange(lq)[:, None]
    if allowed is not None:
        logits = logits.masked_fill(~allowed, NEVER)
    agree(name, out, attend_by_formula(logits, v), tolerance)
    writer.real("tolerance", tolerance)
    write(writer, "out", out)
    write(writer, "lse", logits.logsumexp(dim=-1))
    writer.end()


def some(*shape, share=0.6):
    """A random table of booleans whose rows each hold a true."""
    table = torch.rand(*shape) < share
    table[..., 0] |= ~table.any(dim=-1)
    return table


def bias_with_holes(*shape):
    return draw(*shape).masked_fill(~some(*shape), NEVER)


def make_sdpa(path, header):
    torch.manual_seed(3)
    writer = Writer(path, header)
    sdpa_case(writer, "plain", b=2, hq=3, lq=7, lk=7)
    sdpa_case(writer, "one_key", hq=3, lq=4, lk=1)
    sdpa_case(writer, "one_query", b=2, lq=1, lk=9)
    sdpa_case(writer, "one_dimension", d=1)
    sdpa_case(writer, "cross_narrow_values", b=2, lq=5, lk=11, d=6, dv=3)
    sdpa_case(writer, "cross_wide_values", lq=9, lk=4, d=3, dv=10)
    sdpa_case(writer, "causal", b=2, lq=9, lk=9, is_causal=True)
    sdpa_case(writer, "causal_more_keys", lq=4, lk=9, is_causal=True)
    sdpa_case(writer, "causal_more_queries", lq=9, lk=4, dv=3, is_causal=True)
    sdpa_case(writer, "grouped", b=2, hq=6, hkv=2, lq=5, lk=8, d=4)
    sdpa_case(writer, "grouped_causal", hq=6, hkv=3, lq=8, lk=8, d=3, dv=4, is_causal=True)
    sdpa_case(writer, "multi_query", b=2, hq=4, hkv=1, lq=3, lk=13, d=4, dv=7)
    sdpa_case(writer, "allowed_pairs", b=2, lq=5, lk=8, allowed=some(5, 8))
    sdpa_case(writer, "allowed_per_batch", b=3, lq=5, lk=8, allowed=some(3, 1, 5, 8))
    sdpa_case(writer, "allowed_per_head", b=2, hq=4, hkv=2, lq=5, lk=7, allowed=some(2, 4, 5, 7))
    empty = some(6, 7)
    empty[[0, 3]] = False
    sdpa_case(writer, "allowed_empty_rows", b=2, lq=6, lk=7, dv=3, allowed=empty)
    sdpa_case(writer, "allowed_nothing", lq=3, lk=4, allowed=torch.zeros(3, 4, dtype=torch.bool))
    sdpa_case(writer, "bias_pairs", b=2, lq=5, lk=8, bias=draw(5, 8))
    sdpa_case(writer, "bias_per_head", hq=4, lq=5, lk=8, bias=draw(1, 4, 5, 8))
    sdpa_case(writer, "bias_per_batch", b=2, hq=4, hkv=2, lq=5, lk=8, bias=draw(2, 1, 5, 8))
    sdpa_case(writer, "bias_with_holes", b=2, lq=6, lk=9, bias=bias_with_holes(2, 2, 6, 9))
    bias = draw(5, 6)
    bias[2] = NEVER
    sdpa_case(writer, "bias_empty_row", lq=5, lk=6, bias=bias)
    bias = draw(4, 6)
    bias[1] = -1e9
    bias[2, :3] = -1e9
    sdpa_case(writer, "bias_large_finite", lq=4, lk=6, bias=bias, tolerance=1e-6)
    sdpa_case(writer, "scale", b=2, lq=5, lk=5, dv=3, scale=0.3)
    sdpa_case(writer, "scale_negative", lq=5, lk=5, scale=-0.7)
    sdpa_case(writer, "scale_grouped_causal", hq=4, hkv=2, lq=7, lk=7, is_causal=True, scale=1.25)
    sdpa_case(writer, "large_logits", lq=6, lk=8, spread=300.0, tolerance=1e-9)
    q, k = positions(67, 131)
    sdpa_case(writer, "tiles", hq=1, lq=67, lk=131, d=8, dv=3, allowed=k <= q)
    sdpa_case(writer, "tiles_grouped", hq=2, hkv=1, lq=33, lk=65, d=5, dv=2)
    writer.save()


# Scores and windows, through flex_attention


def alibi_slopes(heads):
    """Press et al. 2021: a geometric series for a power of two; other counts take every second slope of twice that."""
    power = 2 ** int(math.log2(heads))
    slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    between = [2 ** (-4 * (h + 1) / power) for h in range(2 * power)][0::2]
    return torch.tensor((slopes + between)[:heads])


def score_case(writer, name, b=1, hq=2, hkv=None, lq=6, lk=6, d=4, dv=None, spread=1.0, scale=None, softcap=None,
               alibi=False, bias=None, left=None, right=None, causal=False):
    hkv, dv = hkv or hq, dv or d
    q, k, v = draw(b, hq, lq, d, spread=spread), draw(b, hkv, lk, d), draw(b, hkv, lk, dv)
    writer.case(name)
    for key, tensor in (("q", q), ("k", k), ("v", v)):
        write(writer, key, tensor)
    if scale is not None:
        writer.real("scale", scale)
    if softcap is not None:
        writer.real("softcap", softcap)
    if alibi:
        writer.int("alibi", 1)
    if bias is not None:
        write(writer, "bias", bias)
    if left is not None:
        writer.int("window_left", left)
        writer.int("window_right", right)
    if causal:
        writer.int("causal", 1)

    slopes, origin = alibi_slopes(hq), lk - lq
    qs, ks = positions(lq, lk)
    visible = torch.ones(lq, lk, dtype=torch.bool)
    if left is not None:
        visible &= (ks >= qs - left) & (ks <= qs + right)
    if causal:
        visible &= ks <= qs
    logits = logits_by_formula(q, k, 1 / math.sqrt(d) if scale is None else scale)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    if alibi:
        logits = logits - slopes[:, None, None] * (qs - ks).abs()
    if bias is not None:
        logits = logits + bias
    logits = logits.masked_fill(~visible, NEVER)

    def score(logit, _, h, i, j):
        if softcap is not None:
            logit = softcap * torch.tanh(logit / softcap)
        if alibi:
            logit = logit - slopes[h] * (i + origin - j).abs()
        if bias is not None:
            logit = logit + bias[i, j]
        return torch.where(visible[i, j], logit, NEVER)

    torch._dynamo.reset()  # else the numbers of the last case would be traced as symbols, which flex_attention refuses
    out = flex_attention(q, k, v, score_mod=score, scale=scale, enable_gqa=hq != hkv)
    agree(name, out, attend_by_formula(logits, v))
    writer.real("tolerance", 1e-12)
    write(writer, "out", out)
    write(writer, "lse", logits.logsumexp(dim=-1))
    writer.end()


def make_scores(path, header):
    torch.manual_seed(3)
    writer = Writer(path, header)
    score_case(writer, "softcap", b=2, lq=5, lk=7, spread=4.0, softcap=2.5)
    score_case(writer, "softcap_causal", hq=4, hkv=2, lq=6, lk=9, spread=4.0, softcap=5.0, causal=True)
    score_case(writer, "softcap_scale", lq=5, lk=5, dv=3, softcap=1.5, scale=0.9)
    score_case(writer, "alibi_8_heads", hq=8, lq=5, lk=5, d=3, alibi=True, causal=True)
    score_case(writer, "alibi_6_heads", hq=6, lq=4, lk=7, d=3, alibi=True)
    score_case(writer, "alibi_5_heads", b=2, hq=5, lq=4, lk=4, d=3, dv=2, alibi=True)
    score_case(writer, "alibi_grouped", hq=6, hkv=2, lq=3, lk=8, d=3, alibi=True, causal=True)
    score_case(writer, "alibi_more_queries", hq=3, lq=7, lk=4, d=3, alibi=True)
    score_case(writer, "window_left", b=2, lq=9, lk=9, left=3, right=0)
    score_case(writer, "window_both", lq=9, lk=9, left=2, right=1)
    score_case(writer, "window_itself", lq=5, lk=5, left=0, right=0)
    score_case(writer, "window_more_keys", lq=4, lk=11, dv=6, left=2, right=1)
    score_case(writer, "window_more_queries", lq=9, lk=5, left=1, right=1)
    score_case(writer, "window_causal", lq=8, lk=8, left=3, right=2, causal=True)
    score_case(writer, "causal_more_keys", b=2, lq=4, lk=9, dv=3, causal=True)
    score_case(writer, "causal_more_queries", lq=8, lk=5, causal=True)
    score_case(writer, "softcap_alibi", hq=4, lq=6, lk=6, spread=4.0, softcap=3.0, alibi=True, causal=True)
    score_case(writer, "softcap_bias_window", lq=6, lk=8, spread=4.0, softcap=3.0, bias=draw(6, 8), left=3, right=1)
    score_case(writer, "alibi_tiles", hq=1, lq=35, lk=70, d=5, dv=2, alibi=True, left=20, right=3)
    score_case(writer, "alibi_12_heads", hq=12, hkv=2, lq=3, lk=9, d=3, dv=2, alibi=True)  # slopes of sqrt(2)
    writer.save()


# nn.MultiheadAttention


def mha_case(writer, name, b=2, lq=5, lk=None, e=12, heads=3, kv=None, bias=True, lengths=None, allowed=None,
             additive=None, average=False):
    width = e if kv is None else kv
    layer = torch.nn.MultiheadAttention(e, heads, bias=bias, kdim=kv, vdim=kv, batch_first=True)
    packed = layer.in_proj_weight is not None
    names = ("query", "key", "value")
    if packed:
        layer.in_proj_weight.copy_(draw(3 * e, e, spread=0.4))
        weights = layer.in_proj_weight.chunk(3)
    else:
        weights = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
        for weight in weights:
            weight.copy_(draw(*weight.shape, spread=0.4))
    layer.out_proj.weight.copy_(draw(e, e, spread=0.4))
    if bias:
        layer.in_proj_bias.copy_(draw(3 * e))
        layer.out_proj.bias.copy_(draw(e))

    x = draw(b, lq, e)
    memory = x if lk is None else draw(b, lk, width)
    keys = memory.shape[1]
    writer.case(name)
    writer.int("heads", heads)
    write(writer, "x", x)
    if lk is not None:
        write(writer, "memory", memory)
    for key, weight in zip(names, weights):
        write(writer, key + "_weight", weight)
    write(writer, "output_weight", layer.out_proj.weight)
    if bias:
        for key, part in zip(names, layer.in_proj_bias.chunk(3)):
            write(writer, key + "_bias", part)
        write(writer, "output_bias", layer.out_proj.bias)
    padding = mask = None
    if lengths is not None:
        write(writer, "lengths", torch.tensor(lengths))
        padding = torch.arange(keys)[None, :] >= torch.tensor(lengths)[:, None]  # true = hidden
    if allowed is not None:
        write(writer, "allowed", allowed.int())
        mask = ~allowed  # true = hidden
    if additive is not None:
        write(writer, "bias", additive)
        mask = additive
        if padding is not None:
            padding = torch.zeros(padding.shape).masked_fill(padding, NEVER)
    if mask is not None and mask.dim() == 4:
        mask = mask.expand(b, heads, lq, keys).reshape(b * heads, lq, keys)
    out, attention = layer(x, memory, memory, key_padding_mask=padding, attn_mask=mask, need_weights=True,
                           average_attn_weights=average)
    fused, _ = layer(x, memory, memory, key_padding_mask=padding, attn_mask=mask, need_weights=False)
    agree(name, out, fused)
    writer.real("tolerance", 1e-12)
    write(writer, "out", out)
    write(writer, "mean_weights" if average else "weights", attention)
    writer.end()


def make_mha(path, header):
    torch.manual_seed(3)
    writer = Writer(path, header)
    causal = torch.ones(6, 6).tril().bool()
    mha_case(writer, "self")
    mha_case(writer, "self_no_bias", e=10, heads=2, bias=False)
    mha_case(writer, "self_mean_weights", heads=4, average=True)
    mha_case(writer, "self_one_head", e=6, heads=1)
    mha_case(writer, "self_one_sequence", b=1, lq=7, e=8, heads=4, bias=False)
    mha_case(writer, "cross", lq=4, lk=7)
    mha_case(writer, "cross_no_bias", lq=4, lk=7, e=8, heads=2, bias=False, average=True)
    mha_case(writer, "cross_other_width", lq=4, lk=6, e=8, heads=2, kv=5)
    mha_case(writer, "cross_other_width_no_bias", lq=3, lk=6, e=6, heads=3, kv=10, bias=False)
    mha_case(writer, "padding", b=3, lq=6, e=8, heads=2, lengths=[6, 1, 4])
    mha_case(writer, "padding_cross", b=3, lq=3, lk=6, e=8, heads=2, lengths=[2, 6, 5], average=True)
    mha_case(writer, "causal", lq=6, e=8, heads=2, allowed=causal)
    mha_case(writer, "allowed_per_head", lq=5, e=8, heads=2, allowed=some(2, 2, 5, 5))
    mha_case(writer, "padding_and_causal", lq=6, e=8, heads=2, lengths=[3, 6], allowed=causal, average=True)
    mha_case(writer, "bias_pairs", lq=5, lk=4, e=8, heads=2, additive=draw(5, 4))
    mha_case(writer, "bias_with_holes", lq=5, e=8, heads=2, additive=bias_with_holes(2, 2, 5, 5))
    mha_case(writer, "bias_and_padding", lq=4, lk=6, e=8, heads=2, additive=draw(1, 2, 4, 6), lengths=[6, 3])
    writer.save()


def main():
    here = pathlib.Path(__file__).parent
    source = "Made by tests/golden/make_attention.py with torch %s (float64, CPU, seed 3)" % (
        torch.__version__.split("+")[0])
    make_sdpa(here / "sdpa.txt", [source + ": torch.nn.functional.scaled_dot_product_attention."])
    make_scores(here / "scores.txt", [source + ": torch.nn.attention.flex_attention, eager."])
    make_mha(here / "mha.txt", [source + ": torch.nn.MultiheadAttention."])


if __name__ == "__main__":
    main()
