# SPDX-License-Identifier: Apache-2.0
"""Tiny random checkpoints, and what the models of Hugging Face transformers compute with them in float32.

Usage: python make_models.py
Writes examples/models/data/NAME/: config.json and model.safetensors as save_pretrained() makes them, and
expected.safetensors with the inputs and outputs of one call.
"""

import pathlib
import shutil
import tempfile

import torch
import transformers
from safetensors.torch import save_file

torch.set_grad_enabled(False)
torch.set_num_threads(1)  # sums in one order, so that a rerun gives the same bytes
transformers.utils.logging.disable_progress_bar()

DATA = pathlib.Path(__file__).resolve().parents[2] / "examples" / "models" / "data"
VOCABULARY = 32
EMBEDDINGS = ("_embeddings.weight", "position_embeddings", "embed_tokens", "wte", "wpe", "shared", "cls_token")


def randomise(model):
    """Weights with which every part of a model matters: sharp attention, biases and norms that are not 0 and 1."""
    for name, p in sorted(model.named_parameters()):
        noise = torch.randn(p.shape)
        if "norm" in name.lower() or "ln_" in name:
            zero_centred = "Gemma" in type(model).__name__
            p.copy_((0 if name.endswith("bias") or zero_centred else 1) + 0.3 * noise)
        elif "relative_attention_bias" in name:
            p.copy_(1.5 * noise)
        elif any(part in name for part in EMBEDDINGS):
            p.copy_(0.7 * noise)
        elif p.dim() == 1:
            p.copy_(0.3 * noise)
        else:
            p.copy_(1.3 * noise / p[0].numel() ** 0.5)


def write(name, model, dtype, run):
    """Saves a model of random weights in dtype; run() is called with what transformers reads back, in float32."""
    folder = DATA / name
    folder.mkdir(parents=True, exist_ok=True)
    randomise(model)
    with tempfile.TemporaryDirectory() as saved:
        model.to(dtype).save_pretrained(saved)
        for file in ("config.json", "model.safetensors"):
            shutil.copyfile(pathlib.Path(saved) / file, folder / file)
    read = type(model).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    for key, p in read.named_parameters():
        assert p.dtype == torch.float32 and p.equal(model.get_parameter(key).float()), key
    expected = run(read)
    for tensor in expected.values():
        assert not tensor.is_floating_point() or tensor.dtype == torch.float32 and tensor.isfinite().all()
    save_file({key: tensor.contiguous() for key, tensor in expected.items()}, folder / "expected.safetensors")
    sizes = [file.stat().st_size for file in sorted(folder.iterdir())]
    print("%-8s %s bytes" % (name, " + ".join(map(str, sizes))))
    return sum(sizes)


def tokens(*shape):
    return torch.randint(0, VOCABULARY, shape)


def bert():
    """Two texts of different lengths, padded as transformers has them; the rows of the padding are left out."""
    def run(model):
        lengths = torch.tensor([11, 7])
        ids = tokens(2, 11)
        visible = torch.arange(11)[None] < lengths[:, None]
        types = (torch.arange(11)[None] >= torch.tensor([[6], [4]])).long()
        out = model(input_ids=ids * visible, attention_mask=visible.long(), token_type_ids=types)
        return {"ids": ids[visible], "token_types": types[visible], "lengths": lengths,
                "last_hidden_state": out.last_hidden_state[visible], "pooler_output": out.pooler_output}

    return write("bert", transformers.BertModel(transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=20,
        max_position_embeddings=16)), torch.bfloat16, run)


def decoder(name, model, dtype, length=12, short=0):
    """With the logits of the first `short` tokens alone, where there are others for a short text."""
    def run(model):
        ids = tokens(1, length)
        expected = {"ids": ids[0], "logits": model(input_ids=ids, use_cache=False).logits[0]}
        if short:
            expected["short_logits"] = model(input_ids=ids[:, :short], use_cache=False).logits[0]
        return expected

    return write(name, model, dtype, run)


def gpt2():
    return decoder("gpt2", transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=16, n_embd=12, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)),
        torch.float32)


def sizes(**others):
    return dict(vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                intermediate_size=20, max_position_embeddings=64, **others)


def llama():
    """As Llama 3.1: grouped heads, and rotary positions stretched beyond the length of training."""
    rope = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                original_max_position_embeddings=16)
    return decoder("llama", transformers.LlamaForCausalLM(transformers.LlamaConfig(rope_parameters=rope, **sizes())),
                   torch.float32)


def mistral():
    """A window of 5 tokens, and a text of 12."""
    return decoder("mistral", transformers.MistralForCausalLM(transformers.MistralConfig(sliding_window=5, **sizes())),
                   torch.bfloat16)


def qwen2():
    """Biases on queries, keys and values only; one matrix for the embedding and the logits."""
    return decoder("qwen2", transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
        tie_word_embeddings=True, **sizes())), torch.bfloat16)


def qwen3():
    """Norms of queries and keys, and heads that are wider than hidden_size / num_attention_heads."""
    return decoder("qwen3", transformers.Qwen3ForCausalLM(transformers.Qwen3Config(
        head_dim=6, tie_word_embeddings=False, **sizes())), torch.bfloat16)


def narrow(**others):
    """Heads that are together wider than the model, as Gemma has them."""
    return {**sizes(), **dict(hidden_size=8, head_dim=6, intermediate_size=12), **others}


SLIDING_FULL = ["sliding_attention", "full_attention"]


def gemma():
    """One head of keys and values, no windows, no norms behind the branches."""
    return decoder("gemma", transformers.GemmaForCausalLM(transformers.GemmaConfig(
        **narrow(num_key_value_heads=1))), torch.bfloat16)


def gemma2():
    """A window of 5 tokens in the first layer; caps low enough to bend the logits of attention and of the tokens."""
    return decoder("gemma2", transformers.Gemma2ForCausalLM(transformers.Gemma2Config(
        **narrow(sliding_window=5, layer_types=SLIDING_FULL, query_pre_attn_scalar=3, attn_logit_softcapping=2.0,
                 final_logit_softcapping=3.0))), torch.bfloat16)


def gemma3():
    """A window of 5 tokens in the first layer, whose positions turn by another base than those of the second, which are
    stretched."""
    rope = {"sliding_attention": dict(rope_type="default", rope_theta=100.0),
            "full_attention": dict(rope_type="linear", factor=4.0, rope_theta=1000.0)}
    return decoder("gemma3", transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(
        **narrow(sliding_window=5, layer_types=SLIDING_FULL, query_pre_attn_scalar=3, rope_parameters=rope))),
        torch.bfloat16)


def phi3():
    """A text longer than the original length, so that positions turn by the long factors, and a shorter one; 6 of the 8
    coordinates of a head turn."""
    rope = dict(rope_type="longrope", rope_theta=100.0, short_factor=[1.0, 1.25, 1.5], long_factor=[1.5, 3.0, 6.0],
                partial_rotary_factor=0.75)
    return decoder("phi3", transformers.Phi3ForCausalLM(transformers.Phi3Config(
        **{**sizes(), **dict(num_attention_heads=2, num_key_value_heads=1, intermediate_size=12)},
        original_max_position_embeddings=6, rope_parameters=rope, sliding_window=7, tie_word_embeddings=True,
        bos_token_id=0, eos_token_id=0, pad_token_id=0)), torch.bfloat16, short=4)


def t5(name, dtype, tied, **others):
    def run(model):
        source, target = tokens(1, 13), tokens(1, 9)
        out = model(input_ids=source, decoder_input_ids=target, use_cache=False)
        return {"ids": source[0], "decoder_ids": target[0],
                "encoder_last_hidden_state": out.encoder_last_hidden_state[0], "logits": out.logits[0]}

    model = transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=VOCABULARY, d_model=12, d_kv=5, d_ff=20, num_layers=2, num_decoder_layers=2, num_heads=2,
        relative_attention_num_buckets=8, relative_attention_max_distance=10, tie_word_embeddings=tied, **others))
    if not tied:
        model.lm_head.weight = torch.nn.Parameter(torch.empty(VOCABULARY, 12))
    return write(name, model, dtype, run)


def vit():
    def run(model):
        pixels = torch.randn(1, 3, 12, 12)
        return {"pixels": pixels[0], "logits": model(pixel_values=pixels).logits}

    return write("vit", transformers.ViTForImageClassification(transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=20, image_size=12, patch_size=4,
        num_labels=5)), torch.bfloat16, run)


def main():
    total = 0
    for seed, make in enumerate((
            bert, gpt2, llama, mistral, qwen2, qwen3, lambda: t5("t5", torch.bfloat16, True),
            lambda: t5("t5_v1_1", torch.bfloat16, False, feed_forward_proj="gated-gelu"), vit,
            gemma, gemma2, gemma3, phi3)):
        torch.manual_seed(seed)
        total += make()
    print("%d bytes" % total)
    assert total < 200_000  # all of them are carried in the repository


if __name__ == "__main__":
    main()
