# SPDX-License-Identifier: Apache-2.0
"""A small LLaMA that reads a prompt and goes on token by token, beside Hugging Face's in PyTorch and llama.cpp, in turns.

One checkpoint of random weights: 8 layers of width 1024, 16 query and 4 key/value heads, 32,000 tokens. Each participant
keeps the keys and values of what it has read, and goes back to the same position before every sample. `prompt` reads 512
tokens in one call; `tokens` are the 32 that follow 512 or 1536, one call each: those of the largest logits in double. The
scalar is that of the matrices; keys and values are kept in it too. "On the unit" ours is on Systolic, whose factors of
products are bfloat16; else it is on Cpu, which multiplies in float. Of int8 and int4, ours has rounded the matrices of the
checkpoint in bfloat16 to 8 or 4 bits, by quantize(), and llama.cpp has them as Q8_0 or Q4_0; the keys and values of both, and
PyTorch, are as with bfloat16. The matrices of the checkpoint for int4 are such that rounding to 4 bits does not change them:
it would move results so far that a comparison said little. A result is compared with Hugging Face's in double before it is
timed.

llama.cpp computes in its server, within this process, from a GGUF file of the same weights. Its seconds are those that it
counts itself: without its queue, JSON and text, but with the choice of each token, which the others do not make; on one
thread times the share of the call that the processor spent on this process, as the others' are processor time. In float
it has to choose the same tokens, which it does not with its flash attention: that rounds to half and is off there. Beside
matrices in 16, 8 and 4 bits it is on, and keys and values are kept in half, as both are by default. The package's wheel uses
AVX2 at most: on a processor with AVX-512 its build from source would be faster.

Compares   pip install torch==2.15.0 transformers==5.24.0 xllamacpp==2026.10.11549 gguf==0.19.0 (the versions measured)
Needs      the library mha_generation_peer, which CMake builds with the benchmarks where it builds examples/models
Usage      python3 benchmarks/peers/generation.py [--threads 1] [--filter REGEX] [--peers REGEX] [--check] [--json FILE]
"""

import copy
import ctypes
import itertools
import json
import os
import re
import tempfile
import time
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_void_p
from pathlib import Path

import numpy as np

import bound
import checkpoints

if __name__ == "__main__":
    OPTIONS = checkpoints.threads_asked(__doc__, "mha_generation_peer")

import torch
import transformers

import turns
from checkpoints import BUDGET, OURS, ROUNDS, SAMPLE, Runner, ids, products
from turns import Missing

PROMPT, TOKENS, POSITIONS = 512, 32, 2048
# Of the matrices: the checkpoint's scalar, the bits to which ours rounds them (0: does not), and llama.cpp's type.
TYPES = {
    "float32": (torch.float32, 0, "F32"),
    "bfloat16": (torch.bfloat16, 0, "BF16"),
    "int8": (torch.bfloat16, 8, "Q8_0"),
    "int4": (torch.bfloat16, 4, "Q4_0"),
}


class Checkpoint:
    """A folder with the model in a scalar, and what it should answer."""

    def __init__(self, scalar, folder):
        torch.manual_seed(3)
        config = transformers.LlamaConfig(
            hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16,
            num_key_value_heads=4, max_position_embeddings=POSITIONS)  # fmt: skip
        self.scalar, self.folder, self.config = scalar, Path(folder), config
        stored, self.bits, self.gguf_type = TYPES[scalar]
        self.model = transformers.LlamaForCausalLM(config)
        for matrix in self.model.parameters():
            if self.bits == 4 and matrix.dim() > 1:
                matrix.data = exact_in_4_bits(matrix.data)
        self.model = self.model.to(stored).eval()
        self.model.save_pretrained(folder)
        self.ids = ids(POSITIONS, config.vocab_size)
        self.products = products(self.model)
        self.in_double = reader(copy.deepcopy(self.model).double())
        # Beside bfloat16 all round keys and values, PyTorch the rows of every layer, too, llama.cpp those of products. int8
        # adds what rounding changes in the matrices; int4 nothing, as these are in 4 bits already.
        self.tolerance = 1e-4 if scalar == "float32" else 0.1


def exact_in_4_bits(matrix):
    """A matrix (out, in) near this one, of integers times 2⁻⁷: of 32 inputs, which share a scale, the largest is ±8, the
    others are −7 to 7. Ours and Q4_0 make of the largest a scale of ∓2⁻⁷, and then of every number its integer or minus that;
    bfloat16 holds them, too."""
    blocks = 2.0**7 * matrix.view(-1, 32)
    largest = blocks.abs().argmax(1, keepdim=True)
    integers = blocks.round().clamp(-7, 7).scatter(1, largest, 8 * blocks.gather(1, largest).sign())
    return 2.0**-7 * integers.view_as(matrix)


def reader(model):
    """text(position, ids) → the logits (V) of the next token, through a cache of the model's own."""
    cache = transformers.DynamicCache(config=model.config)

    def text(position, these):
        if (more := cache.get_seq_length() - position) > 0:
            cache.crop(-more)
        rows = torch.from_numpy(these.astype(np.int64))[None]
        return model(rows, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[0, 0]

    return text


class Case:
    """Tokens that are read at a position, the prompt together, others one by one; ours perhaps on the matrix unit."""

    def __init__(self, name, checkpoint, position, on_unit):
        self.name, self.checkpoint, self.position, self.on_unit = name, checkpoint, position, on_unit
        self.together = position == 0
        self.tokens = PROMPT if self.together else TOKENS
        self.text = "a prompt of %d tokens" % PROMPT if self.together else "tokens after %d" % position
        config = checkpoint.config
        width, layers = config.hidden_size, config.num_hidden_layers
        logits = width * config.vocab_size  # of the last row alone
        pairs = sum(range(position + 1, position + self.tokens + 1))
        once = 1 if self.together else self.tokens
        self.gflop = 1e-9 * (2.0 * (checkpoint.products - logits) * self.tokens + 2.0 * logits * once
                             + layers * 4.0 * width * pairs)  # fmt: skip
        torch.set_num_threads(len(os.sched_getaffinity(0)))  # of what is in double
        self.ids = checkpoint.ids[: position or PROMPT]
        self.expected = checkpoint.in_double(0, self.ids).numpy()
        for _ in range(0 if self.together else TOKENS):
            self.ids = np.append(self.ids, np.int32(self.expected.argmax()))
            self.expected = checkpoint.in_double(len(self.ids) - 1, self.ids[-1:]).numpy()

    def samples(self):
        """(position, ids) of its calls."""
        if self.together:
            return [(0, self.ids)]
        return [(p, self.ids[p : p + 1]) for p in range(self.position, len(self.ids))]

    def prepare(self, text):
        """(run, read) of a participant's text, which reads the case's positions: text(position, ids) → logits."""
        calls = self.samples()
        if self.position > 0:
            text(0, self.ids[: self.position])

        def run():
            for position, these in calls:
                logits = text(position, these)
            return logits

        return run, run


class Ours:
    def __init__(self, path):
        self.peer = bound.functions(path, "peer_text", (
            ("machine", c_char_p, []),
            ("peak", c_double, [c_int]),
            ("unit_peak", c_double, [c_int]),
            ("reading", c_double, [c_void_p, c_int]),
            ("bytes", c_double, [c_void_p]),
            ("begin", c_char_p, [c_void_p, c_char_p, c_int, c_int, c_int]),
            ("read", c_char_p, [c_void_p, c_int, c_void_p, c_int, c_void_p]),
            ("end", None, [c_void_p]),
        ))  # fmt: skip
        self.text = None

    def prepare(self, case, data, threads):
        self.end()
        self.text, folder = c_void_p(), str(case.checkpoint.folder).encode()
        bound.checked(self.peer.begin(ctypes.byref(self.text), folder, POSITIONS, case.on_unit, case.checkpoint.bits))
        logits = POINTER(c_float)()

        def text(position, these):
            bound.checked(self.peer.read(self.text, position, these.ctypes.data, len(these), ctypes.byref(logits)))
            return np.ctypeslib.as_array(logits, (case.checkpoint.config.vocab_size,))

        return case.prepare(text)

    def limit(self, case, threads):
        """GFLOP/s for a prompt; for single tokens GB/s of the matrices, which every token reads."""
        if case.together:
            return self.peer.unit_peak(threads) if case.on_unit else self.peer.peak(threads)
        return self.peer.reading(self.text, threads)

    def end(self):
        if self.text is not None:
            self.peer.end(self.text)
        self.text = None


class Torch:
    """Hugging Face's model and cache, whose attention is PyTorch's scaled_dot_product_attention."""

    def prepare(self, case, data, threads):
        torch.set_num_threads(threads)
        text = reader(case.checkpoint.model)
        return case.prepare(lambda position, these: text(position, these).float().numpy())


class LlamaCpp:
    """llama.cpp's server through the package xllamacpp, whose wheels have it compiled."""

    def __init__(self):
        try:
            import gguf
            import xllamacpp
        except ImportError as missing:
            raise Missing("%s is not installed" % missing.name)
        self.gguf, self.xllamacpp, self.seconds = gguf, xllamacpp, 0.0

    def counted(self):
        """Seconds of all samples so far, as it counts them."""
        return self.seconds

    def prepare(self, case, data, threads):
        server, before = self.server(case.checkpoint, threads), case.position or PROMPT

        def complete(ids, more, **options):
            # Where its cache has the text but for an end, cache_prompt lets it read that end alone, one token at least.
            return server.handle_completions({
                "prompt": ids.tolist(), "n_predict": more, "samplers": ["top_k"], "top_k": 1,
                "cache_prompt": not case.together, **options})  # fmt: skip

        def run():
            """Lets it go on, and returns the tokens that it chose: the first belongs to the prompt's time."""
            wall, used = time.perf_counter(), time.process_time()
            answer = complete(case.ids[:before], 1 if case.together else 1 + TOKENS)
            share = (time.process_time() - used) / (time.perf_counter() - wall)
            ms = answer["timings"]["prompt_per_token_ms" if case.together else "predicted_per_token_ms"]
            self.seconds += 1e-3 * ms * case.tokens * (min(1.0, share) if threads == 1 else 1.0)
            return [int(token) for token in answer["choices"][0]["text"].split()]

        def log_probabilities():
            """(V) of the token after the case's."""
            answer = complete(case.ids, 1, n_probs=case.checkpoint.config.vocab_size)
            told = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
            return np.array([t["logprob"] for t in sorted(told, key=lambda t: t["id"])])

        if case.checkpoint.scalar == "float32" and run() != [*case.ids[before:], case.expected.argmax()]:
            raise Missing("it does not choose the tokens of the largest logits")
        return run, log_probabilities

    def server(self, checkpoint, threads):
        path = checkpoint.folder / "model.gguf"
        if not path.exists():
            self.write(checkpoint, path)
        params, types, flash = self.xllamacpp.CommonParams(), self.xllamacpp.ggml_type, self.xllamacpp.llama_flash_attn_type
        params.model.path, params.verbosity = str(path), 1  # errors alone
        params.n_ctx, params.n_batch, params.n_ubatch = POSITIONS, POSITIONS, PROMPT
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        if checkpoint.scalar == "float32":
            params.cache_type_k = params.cache_type_v = types.GGML_TYPE_F32
            params.flash_attn_type = flash.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.cache_ram_mib = params.n_ctx_checkpoints = 0  # no copies of its cache
        return self.xllamacpp.Server(params)

    def write(self, checkpoint, path):
        """The checkpoint as llama.cpp reads it: pairs that are turned together lie side by side in its heads, and the text
        of a token is its id."""
        config, gguf, types = checkpoint.config, self.gguf, self.gguf.GGMLQuantizationType
        writer = gguf.GGUFWriter(str(path), "llama")
        writer.add_context_length(config.max_position_embeddings)
        writer.add_embedding_length(config.hidden_size)
        writer.add_block_count(config.num_hidden_layers)
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count(config.num_attention_heads)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
        writer.add_vocab_size(config.vocab_size)
        writer.add_tokenizer_model("llama")
        writer.add_token_list(["\u2581%d" % i for i in range(config.vocab_size)])  # U+2581 stands for a space
        writer.add_token_scores([0.0] * config.vocab_size)
        writer.add_token_types([gguf.TokenType.NORMAL] * config.vocab_size)

        def add(name, tensor, heads=0):
            if heads:
                rows, columns = tensor.shape
                tensor = tensor.view(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns)
            numbers = tensor.detach().float().contiguous().numpy()
            kind = types[checkpoint.gguf_type if numbers.ndim > 1 else "F32"]
            writer.add_tensor(name + ".weight", gguf.quants.quantize(numbers, kind), raw_dtype=kind)

        model = checkpoint.model.model
        add("token_embd", model.embed_tokens.weight)
        add("output_norm", model.norm.weight)
        add("output", checkpoint.model.lm_head.weight)
        for i, layer in enumerate(model.layers):
            attention, mlp, block = layer.self_attn, layer.mlp, "blk.%d." % i
            add(block + "attn_norm", layer.input_layernorm.weight)
            add(block + "attn_q", attention.q_proj.weight, config.num_attention_heads)
            add(block + "attn_k", attention.k_proj.weight, config.num_key_value_heads)
            add(block + "attn_v", attention.v_proj.weight)
            add(block + "attn_output", attention.o_proj.weight)
            add(block + "ffn_norm", layer.post_attention_layernorm.weight)
            add(block + "ffn_gate", mlp.gate_proj.weight)
            add(block + "ffn_up", mlp.up_proj.weight)
            add(block + "ffn_down", mlp.down_proj.weight)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


PEERS = {"PyTorch": Torch, "llama.cpp": LlamaCpp}


def measure(case, threads, present, check):
    expected = case.expected - case.expected.mean()  # log-probabilities are logits but for a number

    def prepare(participant):
        runner = Runner(participant, case, None, threads)
        logits = runner.read()
        return runner, float(np.abs(logits - logits.mean() - expected).max() / np.abs(expected).max())

    runners, errors, missing = turns.ready(present, prepare, case.checkpoint.tolerance)
    row = {"group": "generation", "name": case.name, "text": case.text, "scalar": case.checkpoint.scalar + (", ours on the unit" if case.on_unit else ""),
           "threads": threads, "unit": "tokens/s", "errors": errors, "missing": missing}  # fmt: skip
    if check or OURS not in runners:
        return row
    ours = present[OURS]
    rounds = int(min(ROUNDS, max(3, 3 * BUDGET / sum(max(SAMPLE, r.once) for r in runners.values()))))
    limit = turns.sample(runners, rounds, lambda: ours.limit(case, threads))
    row.update(rounds=rounds, results={})
    for name, (seconds, ratio) in turns.medians(runners, OURS).items():
        row["results"][name] = {"rate": case.tokens / seconds, "ratio": ratio, "ms": 1e3 * seconds}
    seconds = 1e-3 * row["results"][OURS]["ms"]
    reached = case.gflop / seconds if case.together else 1e-9 * ours.peer.bytes(ours.text) * TOKENS / seconds
    row.update(limit=limit, reached=reached, limit_unit="GFLOP/s" if case.together else "GB/s")
    return row


def print_rows(rows):
    def cells(row):
        limit = "%.0f of %.0f %s" % (row["reached"], row["limit"], row["limit_unit"])
        return [row["text"], row["scalar"], str(row["threads"]), "%.1f" % row["results"][OURS]["rate"], limit,
                "%.0f" % (100 * row["reached"] / row["limit"])]  # fmt: skip

    numbers = ["threads", "ours tokens/s", "multiply-adds, or reading of the matrices", "% of it"]
    turns.print_table(rows, ["text", "scalar"], numbers, PEERS, cells)


def main(options):
    found = sorted(Path(options.build).rglob("libmha_generation_peer.*"))
    if not found:
        raise SystemExit("generation.py: no library mha_generation_peer under %s: build the benchmarks first" % options.build)
    present, absent = {OURS: Ours(found[0])}, {}
    for name, kind in PEERS.items():
        if re.search(options.peers, name):
            try:
                present[name] = kind()
            except Missing as why:
                absent[name] = str(why)
    packages = [torch, transformers, *(p.xllamacpp for p in present.values() if isinstance(p, LlamaCpp))]
    versions = {m.__name__: m.__version__ for m in packages}
    print("; ".join([present[OURS].peer.machine().decode(), *("%s %s" % v for v in versions.items())]), flush=True)
    rows = []
    for scalar in TYPES:
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            has_unit = scalar == "bfloat16" and present[OURS].peer.unit_peak(1) > 0
            for on_unit, position in itertools.product((False, True) if has_unit else (False,), (0, 512, 1536)):
                name = "LLaMA/%s/%s" % (scalar + (" on the unit" if on_unit else ""), position or "prompt")
                if not re.search(options.filter, name):
                    continue
                checkpoint = checkpoint or Checkpoint(scalar, folder)
                rows.append(measure(Case(name, checkpoint, position, on_unit), options.threads, present, options.check))
                print(name, "threads:%d" % options.threads, turns.in_words(rows[-1], OURS, options.check), flush=True)
            present[OURS].end()  # the folder's file is mapped
    if not options.check:
        print_rows(rows)
    print()
    turns.print_missing(rows, lambda row, why: row["name"], absent)
    if options.json:
        Path(options.json).write_text(json.dumps({"versions": versions, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main(OPTIONS)
