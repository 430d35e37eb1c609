# SPDX-License-Identifier: Apache-2.0
"""The checkpoint that the tests of examples/generate run: a tiny Mistral over bytes, whose weights are random.

Usage: python make_random_bytes.py
Writes tests/golden/random_bytes/: config.json, which says so, and model.safetensors in bfloat16. Needs Python alone.
"""

import json
import pathlib
import random
import struct

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "random_bytes"
WIDTH, LAYERS, HEADS, KV_HEADS, HEAD_DIM, HIDDEN, VOCABULARY, WINDOW = 32, 2, 4, 2, 8, 64, 256, 32

CONFIG = {
    "architectures": ["MistralForCausalLM"],
    "dtype": "bfloat16",
    "head_dim": HEAD_DIM,
    "hidden_act": "silu",
    "hidden_size": WIDTH,
    "intermediate_size": HIDDEN,
    "max_position_embeddings": 4096,
    "mha_random_weights": True,
    "model_type": "mistral",
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": KV_HEADS,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "sliding_window": WINDOW,
    "tie_word_embeddings": True,
    "vocab_size": VOCABULARY,
}


def shapes():
    yield "model.embed_tokens.weight", (VOCABULARY, WIDTH)
    for i in range(LAYERS):
        block = "model.layers.%d." % i
        yield block + "input_layernorm.weight", (WIDTH,)
        yield block + "self_attn.q_proj.weight", (HEADS * HEAD_DIM, WIDTH)
        yield block + "self_attn.k_proj.weight", (KV_HEADS * HEAD_DIM, WIDTH)
        yield block + "self_attn.v_proj.weight", (KV_HEADS * HEAD_DIM, WIDTH)
        yield block + "self_attn.o_proj.weight", (WIDTH, HEADS * HEAD_DIM)
        yield block + "post_attention_layernorm.weight", (WIDTH,)
        yield block + "mlp.gate_proj.weight", (HIDDEN, WIDTH)
        yield block + "mlp.up_proj.weight", (HIDDEN, WIDTH)
        yield block + "mlp.down_proj.weight", (WIDTH, HIDDEN)
    yield "model.norm.weight", (WIDTH,)


def bfloat16(x):
    """The two bytes of x rounded to nearest; the tie that goes to even does not occur in what is drawn here."""
    return struct.pack("<H", (struct.unpack("<I", struct.pack("<f", x))[0] + 0x8000) >> 16)


def main():
    draw = random.Random(1)
    header, data = {"__metadata__": {"format": "pt"}}, bytearray()
    for name, shape in shapes():
        begin, norm = len(data), len(shape) == 1
        rows, columns = shape if not norm else (1, shape[0])
        spread = 0.4 if "embed" in name else 1.3 / columns ** 0.5
        for _ in range(rows * columns):
            # random() is the same on every machine; gauss() depends on its logarithm.
            data += bfloat16(1.0 if norm else spread * 3 ** 0.5 * (2 * draw.random() - 1))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, len(data)]}
    text = json.dumps(header, separators=(",", ":"))
    text += " " * (-len(text) % 8)
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    (FOLDER / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text.encode() + data)


main()
