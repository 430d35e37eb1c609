# SPDX-License-Identifier: Apache-2.0
"""Decoders of Hugging Face transformers that read a text step by step with their own key/value cache, in float64: what
goes into each attention layer and comes out of it, and the logits of the checkpoints in examples/models/data. Writes
generation.txt beside this script; README.md lists the keys.

Usage: python make_generation.py
"""

import json
import pathlib

import torch
import transformers
from safetensors.torch import load_file
from transformers import cache_utils

from golden_format import Writer

DATA = pathlib.Path(__file__).resolve().parents[2] / "examples" / "models" / "data"
# Read before the next import, after which torch.float32 is float64.
CHECKPOINTS = {name: load_file(DATA / name / "model.safetensors")
               for name in ("gpt2", "llama", "mistral", "phi3", "gemma", "gemma2", "gemma3")}

from make_policies import draw, rope, write, write_rope  # noqa: E402

torch.Tensor.float = torch.Tensor.double  # norms and angles ask for single precision by this name too

STEPS = [7, 1, 1, 3, 1, 6, 1, 1, 1]  # rows of each; the first is longer than the window
LENGTH = sum(STEPS)
WINDOW = 6  # keys that a query sees, its own included
VOCABULARY, WIDTH, HEADS, KV_HEADS, HEAD_DIM = 32, 12, 4, 2, 6


def short(value):
    return "%.12g" % value


def sizes(**others):
    return dict(vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=HEADS,
                num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, intermediate_size=8, max_position_embeddings=64,
                **others)


def randomise(model):
    for name, p in sorted(model.named_parameters()):
        if ".attn." in name or ".self_attn." in name:
            if name.endswith("sinks"):
                p.copy_((2 * draw(*p.shape) * 64).round() / 64)  # the same numbers in single precision
            elif "norm" in name:
                p.copy_(draw(*p.shape, spread=0.3) + (0 if "gemma" in type(model).__name__.lower() else 1))
            else:
                p.copy_(draw(*p.shape, spread=0.5))
        else:
            p.copy_(torch.randn(p.shape))


def read(model, ids, steps=STEPS):
    """The logits (L, V) of a text read in steps of so many rows. Asserts that the cache was used, and dropped what windows hide."""
    cache = cache_utils.DynamicCache(config=model.config)
    logits, begin = [], 0
    for rows in steps:
        if begin == len(ids):
            break
        rows = min(rows, len(ids) - begin)
        out = model(input_ids=ids[None, begin:begin + rows], cache=cache, use_cache=True)
        assert out.cache is cache
        logits.append(out.logits[0])
        begin += rows
        assert cache.get_seq_length() == begin
    windows = getattr(model.config, "sliding_window", None)
    for layer in cache.layers:
        assert layer.keys.shape[2] == (begin if not layer.is_sliding else min(begin, windows - 1))
    return torch.cat(logits)


def write_linear(writer, key, weight, bias):
    write(writer, key + "_weight", weight)
    if bias is not None:
        write(writer, key + "_bias", bias)


def write_attention(writer, attention):
    """Weights as (out, in), and what else the layer computes with."""
    if hasattr(attention, "c_attn"):  # one matrix for all, (in, out)
        for i, key in enumerate(("query", "key", "value")):
            part = slice(i * WIDTH, (i + 1) * WIDTH)
            write_linear(writer, key, attention.c_attn.weight[:, part].T, attention.c_attn.bias[part])
        write_linear(writer, "output", attention.c_proj.weight.T, attention.c_proj.bias)
    else:
        for key in "query", "key", "value", "output":
            part = getattr(attention, key[0] + "_proj")
            write_linear(writer, key, part.weight, part.bias)
    if hasattr(attention, "q_norm"):
        writer.real("eps", attention.q_norm.eps)
        write(writer, "query_norm", 1 + attention.q_norm.weight)  # Gemma 3's are differences from 1
        write(writer, "key_norm", 1 + attention.k_norm.weight)
    if hasattr(attention, "sinks"):
        write(writer, "sinks", attention.sinks)
    writer.real("scale", attention.scaling)


def attention_cases(writer, name, model, rotary=(None, None), windows=(None, None), softcap=None):
    """One case for each of the two attention layers: x (L, E) and out (L, E), of all steps."""
    model.eval()
    model.set_attn_implementation("eager")
    if hasattr(model.config, "num_local_experts"):
        model.set_experts_implementation("eager")  # the other way has no double
    randomise(model)
    blocks = model.transformer.h if hasattr(model, "transformer") else model.model.layers
    attentions = [block.attn if hasattr(block, "attn") else block.self_attn for block in blocks]
    seen = [([], []) for _ in attentions]

    def record(i):
        def hook(module, args, kwargs, output):
            x = args[0] if args else kwargs["hidden_states"]
            seen[i][0].append(x[0].clone())
            seen[i][1].append(output[0][0].clone())
        return hook

    hooks = [a.register_forward_hook(record(i), with_kwargs=True) for i, a in enumerate(attentions)]
    ids = torch.randint(0, VOCABULARY, (LENGTH,))
    logits = read(model, ids)
    for hook in hooks:
        hook.remove()
    whole = model(input_ids=ids[None], use_cache=False).logits[0]
    assert logits.dtype == torch.float64 and (logits - whole).abs().max() < 1e-9 * whole.abs().max(), name
    for i, attention in enumerate(attentions):
        writer.case("%s_%d" % (name, i))
        writer.text("model", name)
        writer.int("heads", HEADS)
        writer.int("head_dim", WIDTH // HEADS if rotary[i] is None else HEAD_DIM)
        if rotary[i] is not None:
            writer.int("kv_heads", KV_HEADS)
            write_rope(writer, rotary[i])
        if windows[i] is not None:
            writer.int("window_left", windows[i] - 1)
        if softcap is not None:
            writer.real("softcap", softcap)
        write_attention(writer, attention)
        write(writer, "steps", torch.tensor(STEPS))
        for key, rows in zip(("x", "out"), seen[i]):
            rows = torch.cat(rows)
            assert rows.shape == (LENGTH, WIDTH) and rows.dtype == torch.float64 and rows.isfinite().all()
            writer.tensor(key, list(rows.shape), rows.reshape(-1).tolist(), short)
        writer.real("tolerance", 1e-9)
        writer.end()


def logits_case(writer, name, model_type, length, case=None, window=None, longest=None, steps=STEPS, **change):
    """A checkpoint of examples/models/data, with another config.json if something is changed there; its weights are
    float32 or bfloat16, the sums float64. `window` is that of every layer, `longest` the longest text that positions are
    made for."""
    config = json.loads((DATA / name / "config.json").read_text())
    config.update(change)
    model = model_type(model_type.config_class.from_dict(config)).eval()
    model.set_attn_implementation("eager")
    missing = model.load_state_dict({key: p.double() for key, p in CHECKPOINTS[name].items()}, strict=False)
    assert not missing.unexpected_keys and set(missing.missing_keys) <= {"lm_head.weight"}, missing
    model.tie_weights()
    ids = torch.randint(0, VOCABULARY, (length,))
    writer.case((case or name) + "_logits")
    writer.text("checkpoint", name)
    if change:
        writer.text("change", json.dumps(change))
    if window is not None:
        writer.int("window", window)
    if longest is not None:
        writer.int("longest", longest)
    write(writer, "ids", ids)
    rows = read(model, ids, steps)
    assert rows.dtype == torch.float64 and rows.isfinite().all()
    steps = [n for i, n in enumerate(steps) if sum(steps[:i + 1]) <= length]
    write(writer, "steps", torch.tensor(steps + [length - sum(steps)] * (sum(steps) < length)))
    writer.tensor("logits", list(rows.shape), rows.reshape(-1).tolist(), lambda x: "%.9g" % x)
    writer.end()


def main():
    path = pathlib.Path(__file__).parent / "generation.txt"
    writer = Writer(path, ["Made by tests/golden/make_generation.py with torch %s and transformers %s (float64, CPU, "
                           "seed 9)." % (torch.__version__.split("+")[0], transformers.__version__)])
    torch.manual_seed(9)
    sliding, full = "sliding_attention", "full_attention"
    attention_cases(writer, "gpt2", transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=64, n_embd=WIDTH, n_layer=2, n_head=HEADS, bos_token_id=0, eos_token_id=0)))
    llama3 = rope("llama3", base=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                  original_max_position_embeddings=16)
    attention_cases(writer, "llama", transformers.LlamaForCausalLM(transformers.LlamaConfig(
        rope_parameters=dict(llama3), **sizes())), rotary=(llama3, llama3))
    plain = rope()
    attention_cases(writer, "mistral", transformers.MistralForCausalLM(transformers.MistralConfig(
        sliding_window=WINDOW, rope_parameters=dict(plain), **sizes())), rotary=(plain, plain), windows=(WINDOW, WINDOW))
    attention_cases(writer, "gemma2", transformers.Gemma2ForCausalLM(transformers.Gemma2Config(
        sliding_window=WINDOW, layer_types=[sliding, full], query_pre_attn_scalar=10, attn_logit_softcapping=4.0,
        rope_parameters=dict(plain), **sizes())), rotary=(plain, plain), windows=(WINDOW, None), softcap=4.0)
    near, far = rope(), rope(base=1000000.0)
    attention_cases(writer, "gemma3", transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(
        sliding_window=WINDOW, layer_types=[sliding, full], query_pre_attn_scalar=2,
        rope_parameters={sliding: dict(near), full: dict(far)}, **sizes())), rotary=(near, far), windows=(WINDOW, None))
    gpt_oss = rope("yarn", base=150000.0, factor=32.0, original_max_position_embeddings=16, beta_fast=2.0,
                   beta_slow=0.25, truncate=False)
    attention_cases(writer, "gpt_oss", transformers.GptOssForCausalLM(transformers.GptOssConfig(
        sliding_window=WINDOW, layer_types=[sliding, full], num_local_experts=2, num_experts_per_tok=1,
        rope_parameters=dict(gpt_oss), **sizes())), rotary=(gpt_oss, gpt_oss), windows=(WINDOW, None))
    logits_case(writer, "gpt2", transformers.GPT2LMHeadModel, 16)
    logits_case(writer, "llama", transformers.LlamaForCausalLM, LENGTH)
    logits_case(writer, "mistral", transformers.MistralForCausalLM, LENGTH, window=5)
    logits_case(writer, "phi3", transformers.Phi3ForCausalLM, LENGTH, window=7)
    logits_case(writer, "gemma", transformers.GemmaForCausalLM, LENGTH)
    # transformers turns keys by what the text is long when they come: these are texts for which that does not change.
    logits_case(writer, "phi3", transformers.Phi3ForCausalLM, 6, case="phi3_short", window=7, longest=6, steps=[2, 1, 3])
    logits_case(writer, "llama", transformers.LlamaForCausalLM, LENGTH, case="llama_dynamic", longest=LENGTH,
                steps=[LENGTH], max_position_embeddings=10, rope_parameters=rope("dynamic", factor=2.0))
    for name, model_type in (("gemma2", transformers.Gemma2ForCausalLM), ("gemma3", transformers.Gemma3ForCausalLM)):
        logits_case(writer, name, model_type, LENGTH)
        logits_case(writer, name, model_type, LENGTH, case=name + "_windows", window=5, layer_types=[sliding, sliding])
    writer.save()


if __name__ == "__main__":
    main()
