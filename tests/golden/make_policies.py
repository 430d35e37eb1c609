# SPDX-License-Identifier: Apache-2.0
"""Positions, relative biases, sinks and whole attention layers as the models of Hugging Face transformers compute them,
in float64. Writes policies.txt beside this script; README.md lists the keys.

Usage: python make_policies.py
"""

import math
import pathlib

import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.gptj import modeling_gptj
from transformers.models.llama import modeling_llama
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.t5 import modeling_t5

from golden_format import Writer

torch.set_grad_enabled(False)
torch.set_num_threads(1)  # sums in one order, so that a rerun gives the same bytes
torch.set_default_dtype(torch.float64)
# The models cast angles, norms and softmax to single precision by these names; here they stay double.
torch.float = torch.float32 = torch.float64


def draw(*shape, spread=1.0):
    """Normal numbers with three decimals: short to print, and the same double when read back."""
    values = (torch.randn(*shape) * spread).reshape(-1).tolist()
    return torch.tensor([round(x, 3) for x in values]).reshape(shape)


def write(writer, key, tensor):
    writer.tensor(key, list(tensor.shape), tensor.reshape(-1).tolist())


def finish(writer, out, tolerance):
    assert out.dtype == torch.float64 and out.isfinite().all()
    writer.real("tolerance", tolerance)
    write(writer, "out", out)
    writer.end()


def causal_mask(length):
    return torch.zeros(length, length).masked_fill(torch.ones(length, length).triu(1).bool(), -math.inf)[None, None]


def rope(kind="default", base=10000.0, **parameters):
    return {"rope_type": kind, "rope_theta": base, **parameters}


YARN = dict(factor=16.0, original_max_position_embeddings=128)
LLAMA3 = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)


def write_rope(writer, parameters):
    writer.real("base", parameters["rope_theta"])
    if parameters["rope_type"] != "default":
        writer.text("scaling", parameters["rope_type"])
        if parameters["rope_type"] != "longrope":
            writer.real("factor", parameters["factor"])
    if parameters["rope_type"] == "llama3":
        writer.real("low_frequency", parameters["low_freq_factor"])
        writer.real("high_frequency", parameters["high_freq_factor"])
        writer.real("original_length", parameters["original_max_position_embeddings"])
    if parameters["rope_type"] == "yarn":
        writer.real("original_length", parameters["original_max_position_embeddings"])
        writer.real("fast", parameters.get("beta_fast", 32.0))
        writer.real("slow", parameters.get("beta_slow", 1.0))
        writer.int("rounded", int(parameters.get("truncate", True)))
        if "attention_factor" in parameters:
            writer.real("attention_factor", parameters["attention_factor"])


def write_longrope(writer, parameters, factors, original):
    """Those of texts on one side of the original length, and the attention factor by transformers' formula."""
    writer.tensor("factors", [len(factors)], factors)
    writer.real("attention_factor", parameters.get(
        "attention_factor", math.sqrt(1 + math.log(4096 / original) / math.log(original))))


# Positions alone


def halves_case(writer, name, parameters, first=0, b=2, h=2, length=4, d=8):
    config = modeling_llama.LlamaConfig(hidden_size=h * d, num_attention_heads=h, head_dim=d,
                                        rope_parameters=dict(parameters), max_position_embeddings=4096)
    x = draw(b, h, length, d)
    positions = torch.arange(first, first + length)[None]
    cos, sin = modeling_llama.LlamaRotaryEmbedding(config)(x, positions)
    writer.case(name)
    writer.text("pairing", "halves")
    write_rope(writer, parameters)
    if parameters["rope_type"] == "longrope":
        original = parameters["original_max_position_embeddings"]
        long_text = first + length > original
        write_longrope(writer, parameters, parameters["long_factor" if long_text else "short_factor"], original)
    writer.int("first", first)
    write(writer, "x", x)
    finish(writer, modeling_llama.apply_rotary_pos_emb(x, x, cos, sin)[0], 1e-12)


def ntk_case(writer, name, factor, length_ratio, first=0, b=1, h=2, length=4, d=8):
    """The dynamic form at length_ratio times the trained length stretches by factor · ratio − (factor − 1)."""
    config = modeling_llama.LlamaConfig(hidden_size=h * d, num_attention_heads=h, head_dim=d,
                                        rope_parameters=rope("dynamic", factor=factor), max_position_embeddings=512)
    inverse, attention_factor = ROPE_INIT_FUNCTIONS["dynamic"](config, seq_len=512 * length_ratio)
    assert attention_factor == 1
    angles = torch.arange(first, first + length)[None, :, None] * inverse
    angles = torch.cat((angles, angles), dim=-1)
    x = draw(b, h, length, d)
    writer.case(name)
    writer.text("pairing", "halves")
    writer.text("scaling", "ntk")
    writer.real("base", 10000)
    writer.real("factor", factor * length_ratio - (factor - 1))
    writer.int("first", first)
    write(writer, "x", x)
    finish(writer, modeling_llama.apply_rotary_pos_emb(x, x, angles.cos(), angles.sin())[0], 1e-12)


def interleaved_case(writer, name, first=0, b=2, h=2, length=4, d=8, dims=None):
    r = dims or d
    x = draw(b, h, length, d)
    table = modeling_gptj.create_sinusoidal_positions(first + length, r)[None, first:]
    sin, cos = torch.split(table, table.shape[-1] // 2, dim=-1)
    rows = x.transpose(1, 2)  # (B, L, H, D), as GPT-J turns them
    turned = modeling_gptj.apply_rotary_pos_emb(rows[..., :r], sin, cos)
    writer.case(name)
    writer.text("pairing", "interleaved")
    writer.real("base", 10000)
    if dims is not None:
        writer.int("dims", dims)
    writer.int("first", first)
    write(writer, "x", x)
    finish(writer, torch.cat((turned, rows[..., r:]), dim=-1).transpose(1, 2), 1e-12)


# Relative bias


def buckets_case(writer, name, count=32, max_distance=128, bidirectional=True, furthest=300):
    distances = torch.arange(-furthest, furthest + 1)
    buckets = modeling_t5.T5Attention._relative_position_bucket(distances, bidirectional, count, max_distance)
    writer.case(name)
    writer.int("count", count)
    writer.int("max_distance", max_distance)
    writer.int("bidirectional", bidirectional)
    writer.int("furthest", furthest)
    write(writer, "buckets", buckets)
    writer.end()


def t5_case(writer, name, is_decoder, b=2, length=9, e=8, heads=2, d=3, count=8, max_distance=7):
    config = modeling_t5.T5Config(d_model=e, num_heads=heads, d_kv=d, is_decoder=is_decoder,
                                  relative_attention_num_buckets=count, relative_attention_max_distance=max_distance)
    config._attn_implementation = "eager"
    layer = modeling_t5.T5Attention(config, has_relative_attention_bias=True, layer_idx=0).eval()
    writer.case(name)
    writer.int("heads", heads)
    writer.int("head_dim", d)
    writer.int("count", count)
    writer.int("max_distance", max_distance)
    writer.int("bidirectional", not is_decoder)
    for key, part in (("query", layer.q), ("key", layer.k), ("value", layer.v), ("output", layer.o)):
        part.weight.copy_(draw(*part.weight.shape, spread=0.6))
        write(writer, key + "_weight", part.weight)
    table = (draw(count, heads) * 1024).round() / 1024  # the same number in single precision
    layer.relative_attention_bias.weight.copy_(table)
    write(writer, "table", table)
    x = draw(b, length, e)
    write(writer, "x", x)
    finish(writer, layer(x, mask=causal_mask(length) if is_decoder else None)[0], 1e-12)


# Sinks


def sink_case(writer, name, sinks, b=2, hq=4, hkv=2, lq=5, lk=7, d=4, causal=False, scale=0.5, spread=1.0):
    q, k, v = draw(b, hq, lq, d, spread=spread), draw(b, hkv, lk, d, spread=spread), draw(b, hkv, lk, d)
    module = torch.nn.Module()
    module.num_key_value_groups = hq // hkv
    module.sinks = torch.tensor(sinks)
    mask = None
    if causal:
        mask = torch.zeros(lq, lk).masked_fill(torch.ones(lq, lk).triu(lk - lq + 1).bool(), -math.inf)[None, None]
    out, _ = modeling_gpt_oss.eager_attention_forward(module.eval(), q, k, v, mask, scale)  # (B, Lq, Hq, D)
    writer.case(name)
    writer.real("scale", scale)
    if causal:
        writer.int("causal", 1)
    write(writer, "sinks", module.sinks)
    for key, tensor in (("q", q), ("k", k), ("v", v)):
        write(writer, key, tensor)
    finish(writer, out.transpose(1, 2), 1e-12)


# Whole layers of decoders


def decoder_case(writer, name, model, parameters, b=2, length=7, e=16, heads=4, kv_heads=2, d=6, bias=False, eps=1e-6):
    settings = dict(hidden_size=e, num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=d,
                    attention_bias=bias, rms_norm_eps=eps, rope_parameters=dict(parameters), num_hidden_layers=1,
                    max_position_embeddings=4096)
    if model == "qwen3":
        config = modeling_qwen3.Qwen3Config(**settings)
        layer, rotary = modeling_qwen3.Qwen3Attention(config, 0), modeling_qwen3.Qwen3RotaryEmbedding(config)
    else:
        config = modeling_llama.LlamaConfig(**settings)
        layer, rotary = modeling_llama.LlamaAttention(config, 0), modeling_llama.LlamaRotaryEmbedding(config)
    config._attn_implementation = "eager"
    layer.eval()
    writer.case(name)
    writer.int("heads", heads)
    writer.int("kv_heads", kv_heads)
    writer.int("head_dim", d)
    write_rope(writer, parameters)
    for key, part in (("query", layer.q_proj), ("key", layer.k_proj), ("value", layer.v_proj),
                      ("output", layer.o_proj)):
        part.weight.copy_(draw(*part.weight.shape, spread=0.4))
        write(writer, key + "_weight", part.weight)
        if bias:
            part.bias.copy_(draw(*part.bias.shape))
            write(writer, key + "_bias", part.bias)
    if model == "qwen3":
        writer.real("eps", eps)
        for key, part in (("query_norm", layer.q_norm), ("key_norm", layer.k_norm)):
            part.weight.copy_(1 + draw(d, spread=0.3))
            write(writer, key, part.weight)
    x = draw(b, length, e)
    write(writer, "x", x)
    embeddings = rotary(x, torch.arange(length)[None])
    finish(writer, layer(x, position_embeddings=embeddings, attention_mask=causal_mask(length))[0], 1e-12)


def main():
    path = pathlib.Path(__file__).parent / "policies.txt"
    writer = Writer(path, ["Made by tests/golden/make_policies.py with torch %s and transformers %s (float64, CPU, "
                           "seed 5)." % (torch.__version__.split("+")[0], transformers.__version__)])
    torch.manual_seed(5)
    halves_case(writer, "rotary_halves", rope())
    halves_case(writer, "rotary_halves_far", rope(base=500000.0), first=3000)
    halves_case(writer, "rotary_linear", rope("linear", factor=4.0), first=50)
    halves_case(writer, "rotary_llama3", rope("llama3", base=500000.0, **LLAMA3), first=100, h=1, d=32)
    ntk_case(writer, "rotary_ntk", factor=4.0, length_ratio=2, first=20)
    interleaved_case(writer, "rotary_interleaved")
    interleaved_case(writer, "rotary_interleaved_partial", first=9, d=10, dims=6)

    buckets_case(writer, "buckets_both_ways")
    buckets_case(writer, "buckets_causal", bidirectional=False)
    buckets_case(writer, "buckets_few", count=8, max_distance=20, furthest=60)
    buckets_case(writer, "buckets_many", count=64, max_distance=256, bidirectional=False, furthest=600)
    t5_case(writer, "t5_encoder", is_decoder=False)
    t5_case(writer, "t5_decoder", is_decoder=True)

    sink_case(writer, "sink", [0.5, -2.0, 3.0, 0.0])
    sink_case(writer, "sink_causal", [0.5, -2.0, 3.0, 0.0], causal=True)
    sink_case(writer, "sink_large", [40.0, -40.0], hq=2, hkv=1, scale=1.5, spread=3.0)

    decoder_case(writer, "llama", "llama", rope())
    decoder_case(writer, "llama_bias", "llama", rope(base=500000.0), kv_heads=4, bias=True)
    decoder_case(writer, "llama_3_1", "llama", rope("llama3", base=500000.0, **LLAMA3), length=12)
    decoder_case(writer, "llama_linear", "llama", rope("linear", factor=2.0), kv_heads=1)
    decoder_case(writer, "qwen3", "qwen3", rope(base=1000000.0))
    decoder_case(writer, "qwen3_eps", "qwen3", rope(base=1000000.0), heads=6, kv_heads=3, d=4, eps=0.01)

    halves_case(writer, "rotary_yarn", rope("yarn", **YARN), first=100, h=1, d=32)
    halves_case(writer, "rotary_yarn_unrounded",
                rope("yarn", base=150000.0, factor=32.0, original_max_position_embeddings=256, beta_fast=8.0,
                     beta_slow=2.0, truncate=False), first=1000, h=1, d=32)
    halves_case(writer, "rotary_yarn_factor", rope("yarn", attention_factor=0.75, **YARN), b=1, h=1, d=16)
    decoder_case(writer, "qwen3_yarn", "qwen3", rope("yarn", base=1000000.0, **YARN), d=16)

    longrope = rope("longrope", short_factor=[1.0, 1.0625, 1.25, 1.5], long_factor=[1.0, 2.0, 8.5, 40.0],
                    original_max_position_embeddings=64)
    halves_case(writer, "rotary_longrope_short", longrope, first=60)
    halves_case(writer, "rotary_longrope_long", longrope, first=61)
    halves_case(writer, "rotary_longrope_factor", dict(attention_factor=0.75, **longrope), first=100, b=1)
    writer.save()


if __name__ == "__main__":
    main()
