# SPDX-License-Identifier: Apache-2.0
"""Gradients of attention, of its policies and of whole layers by PyTorch's automatic differentiation, in float64: those of
sum(dout · out). Writes gradients.txt beside this script; README.md lists the keys.

Usage: python make_gradients.py
"""

import math
import pathlib

import torch
import transformers
from torch.nn.functional import scaled_dot_product_attention
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.llama import modeling_llama
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.t5 import modeling_t5

from golden_format import Writer, number

torch.set_num_threads(1)  # sums in one order, so that a rerun gives the same bytes
torch.set_default_dtype(torch.float64)
# The models cast angles, norms and softmax to single precision by these names; here they stay double.
torch.float = torch.float32 = torch.float64


def draw(*shape, spread=1.0):
    """Normal numbers with three decimals: short to print, and the same double when read back."""
    values = (torch.randn(*shape) * spread).reshape(-1).tolist()
    return torch.tensor([round(x, 3) for x in values]).reshape(shape)


def singles(values):
    """Parameters that the library has as float32: binary fractions are the same numbers there."""
    return torch.tensor([round(x * 1024) / 1024 for x in values])


def write(writer, key, tensor, show=number):
    assert tensor.dtype == torch.float64 and tensor.isfinite().all(), key
    writer.tensor(key, list(tensor.shape), tensor.detach().reshape(-1).tolist(), show)


def result(value):
    """Thirteen digits, as the tests ask for nine."""
    return "%.13g" % value


def set_weight(parameter, values):
    with torch.no_grad():
        parameter.copy_(values)


def finish(writer, out, given, dout=None):
    """The gradients of what was given, each under its own name with a d in front."""
    dout = draw(*out.shape) if dout is None else dout
    gradients = torch.autograd.grad(out, list(given.values()), dout)
    write(writer, "dout", dout)
    write(writer, "out", out, result)
    for key, gradient in zip(given, gradients):
        write(writer, "d" + key, gradient, result)
    writer.end()


# Attention: q, k, v and out are (B, L, H, D)


def seen(kind, lq, lk):
    """Which keys a query sees, the last query at the last key."""
    q, k = torch.arange(lk - lq, lk)[:, None], torch.arange(lk)[None]
    if kind == "causal":
        return k <= q
    if kind == "window":
        return (k <= q) & (k > q - 3)
    return torch.ones(lq, lk).bool()


def by_formula(q, k, v, mask, change):
    """softmax(change(q · k / sqrt(D))) v of heads first, where the mask shows."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    logits = change(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(~mask, -math.inf)
    return logits.softmax(-1) @ v


def attention_case(writer, name, mask="full", b=1, lq=5, lk=7, hq=4, hkv=2, d=5, dv=3, bias=None, cap=None, slopes=None,
                   table=None, sinks=None, spread=1.0):
    q, k = draw(b, lq, hq, d, spread=spread), draw(b, lk, hkv, d, spread=spread)
    given = {"q": q, "k": k, "v": draw(b, lk, hkv, dv)}
    shown = seen(mask, lq, lk)
    if bias is not None:
        given["bias"] = draw(*bias)
    if cap is not None:
        given["cap"] = torch.tensor([cap])
    if slopes is not None:
        given["slopes"] = singles(slopes)
    if table is not None:
        given["table"] = singles(draw(table * hq).tolist()).reshape(table, hq)
    if sinks is not None:
        given["sinks"] = singles(sinks)
    for tensor in given.values():
        tensor.requires_grad_()
    first = [given[key].transpose(1, 2) for key in ("q", "k", "v")]
    distance = torch.arange(lk)[None] - torch.arange(lk - lq, lk)[:, None]

    def change(logits):
        if cap is not None:
            logits = given["cap"] * torch.tanh(logits / given["cap"])
        if bias is not None:
            logits = logits + given["bias"]
        if slopes is not None:
            logits = logits - given["slopes"][:, None, None] * distance.abs()
        if table is not None:
            buckets = modeling_t5.T5Attention._relative_position_bucket(distance, True, table, 6)
            logits = logits + given["table"][buckets].permute(2, 0, 1)
        return logits

    if sinks is not None:
        module = torch.nn.Module()
        module.num_key_value_groups = hq // hkv
        module.sinks = given["sinks"]
        hidden = torch.zeros(lq, lk).masked_fill(~shown, -math.inf)[None, None]
        out, _ = modeling_gpt_oss.eager_attention_forward(module.eval(), *first, hidden, 1 / math.sqrt(d))
    elif cap is None and slopes is None and table is None:
        group = hq // hkv
        added = torch.zeros(lq, lk) if bias is None else given["bias"]
        out = scaled_dot_product_attention(first[0], *[x.repeat_interleave(group, 1) for x in first[1:]],
                                           attn_mask=added.masked_fill(~shown, -math.inf))
        assert (out - by_formula(*first, shown, change)).abs().max() < 1e-13
        out = out.transpose(1, 2)
    else:
        out = by_formula(*first, shown, change).transpose(1, 2)
    writer.case(name)
    writer.text("mask", mask)
    for key, tensor in given.items():
        write(writer, key, tensor)
    finish(writer, out, given)


# Whole layers


def multihead_case(writer, name, b=2, length=5, e=8, heads=2, memory_width=None, memory_length=6, bias=True):
    layer = torch.nn.MultiheadAttention(e, heads, bias=bias, batch_first=True, kdim=memory_width, vdim=memory_width)
    given = {"x": draw(b, length, e)}
    if memory_width is not None:
        given["memory"] = draw(b, memory_length, memory_width)
    writer.case(name)
    writer.int("heads", heads)
    for key, tensor in given.items():
        write(writer, key, tensor.requires_grad_())
    parameters = {}
    if memory_width is None:
        set_weight(layer.in_proj_weight, draw(3 * e, e, spread=0.5))
        parameters["in_weight"] = layer.in_proj_weight
    else:
        for key, weight in (("query_weight", layer.q_proj_weight), ("key_weight", layer.k_proj_weight),
                            ("value_weight", layer.v_proj_weight)):
            set_weight(weight, draw(*weight.shape, spread=0.5))
            parameters[key] = weight
    set_weight(layer.out_proj.weight, draw(e, e, spread=0.5))
    parameters["output_weight"] = layer.out_proj.weight
    if bias:
        set_weight(layer.in_proj_bias, draw(3 * e))
        set_weight(layer.out_proj.bias, draw(e))
        parameters["in_bias"], parameters["output_bias"] = layer.in_proj_bias, layer.out_proj.bias
    for key, tensor in parameters.items():
        write(writer, key, tensor)
    memory = given.get("memory", given["x"])
    out = layer(given["x"], memory, memory, need_weights=False)[0]
    finish(writer, out, {**given, **parameters})


def decoder_case(writer, name, model, b=2, length=6, e=12, heads=4, kv_heads=2, d=6, eps=1e-6):
    settings = dict(hidden_size=e, num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=d,
                    attention_bias=False, rms_norm_eps=eps, num_hidden_layers=1, max_position_embeddings=4096,
                    rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    if model == "qwen3":
        config = modeling_qwen3.Qwen3Config(**settings)
        layer, rotary = modeling_qwen3.Qwen3Attention(config, 0), modeling_qwen3.Qwen3RotaryEmbedding(config)
    else:
        config = modeling_llama.LlamaConfig(**settings)
        layer, rotary = modeling_llama.LlamaAttention(config, 0), modeling_llama.LlamaRotaryEmbedding(config)
    config._attn_implementation = "eager"
    layer.eval()
    given = {"x": draw(b, length, e).requires_grad_()}
    for key, part in (("query", layer.q_proj), ("key", layer.k_proj), ("value", layer.v_proj),
                      ("output", layer.o_proj)):
        set_weight(part.weight, draw(*part.weight.shape, spread=0.4))
        given[key + "_weight"] = part.weight
    if model == "qwen3":
        for key, part in (("query_norm", layer.q_norm), ("key_norm", layer.k_norm)):
            set_weight(part.weight, 1 + draw(d, spread=0.3))
            given[key] = part.weight
    writer.case(name)
    writer.int("heads", heads)
    writer.int("kv_heads", kv_heads)
    writer.int("head_dim", d)
    writer.real("eps", eps)
    for key, tensor in given.items():
        write(writer, key, tensor)
    mask = torch.zeros(length, length).masked_fill(~seen("causal", length, length), -math.inf)[None, None]
    out = layer(given["x"], position_embeddings=rotary(given["x"], torch.arange(length)[None]), attention_mask=mask)[0]
    finish(writer, out, given)


def main():
    path = pathlib.Path(__file__).parent / "gradients.txt"
    writer = Writer(path, ["Made by tests/golden/make_gradients.py with torch %s and transformers %s (float64, CPU, "
                           "seed 6)." % (torch.__version__.split("+")[0], transformers.__version__)])
    torch.manual_seed(6)
    attention_case(writer, "full", b=2)
    attention_case(writer, "causal", mask="causal", hkv=4)
    attention_case(writer, "window", mask="window", hkv=1, lq=9, lk=9)
    attention_case(writer, "peaked", mask="causal", lq=7, spread=4.0)
    attention_case(writer, "bias", bias=(1, 4, 5, 7))
    attention_case(writer, "bias_of_keys", b=2, bias=(1, 1, 1, 7), mask="causal")
    attention_case(writer, "bias_of_heads", bias=(1, 4, 1, 1), hkv=4)
    attention_case(writer, "bias_shared_by_heads", b=2, bias=(2, 1, 5, 7))
    attention_case(writer, "softcap", cap=1.5, spread=1.5)
    attention_case(writer, "softcap_and_bias", cap=2.0, bias=(1, 4, 5, 7), mask="causal")
    attention_case(writer, "slopes", slopes=[0.5, 0.25, 0.125, 0.0625], mask="causal")
    attention_case(writer, "slopes_both_ways", slopes=[0.75, -0.5, 0.0, 0.25], lq=7)
    attention_case(writer, "table", table=8, lq=9, lk=9)
    attention_case(writer, "table_causal", table=8, lq=9, lk=9, mask="causal", hkv=1)
    attention_case(writer, "sinks", sinks=[0.5, -2.0, 3.0, 0.0])
    attention_case(writer, "sinks_causal", sinks=[0.5, -2.0, 3.0, 0.0], mask="causal", spread=2.0)

    multihead_case(writer, "multihead")
    multihead_case(writer, "multihead_cross", memory_width=5)
    multihead_case(writer, "multihead_cross_plain", memory_width=10, bias=False, heads=4)
    decoder_case(writer, "llama", "llama")
    decoder_case(writer, "qwen3", "qwen3", eps=0.01)
    writer.save()


if __name__ == "__main__":
    main()
