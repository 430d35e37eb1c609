# SPDX-License-Identifier: Apache-2.0
"""A small LLaMA that reads a prompt and goes on token by token, beside Hugging Face's in PyTorch, in turns.

One checkpoint of random weights: 8 layers of width 1024, 16 query and 4 key/value heads, 32,000 tokens. Each participant
keeps the keys and values of what it has read, and goes back to the same position before every sample. `prompt` reads 512
tokens in one call; `tokens` are the 32 that follow 512 or 1536, one call each. The scalar is that of the matrices; keys
and values are kept in it too. A result is compared with Hugging Face's in double before it is timed.

Compares   pip install torch==2.15.0 transformers==5.24.0 (the versions measured)
Needs      the library mha_generation_peer, which CMake builds with the benchmarks where it builds examples/models
Usage      python3 benchmarks/peers/generation.py [--threads 1] [--filter REGEX] [--peers REGEX] [--check] [--json FILE]
"""

import copy
import ctypes
import json
import re
import tempfile
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
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Checkpoint:
    """A folder with the model in a scalar, and what it should answer."""

    def __init__(self, scalar, folder):
        torch.manual_seed(3)
        config = transformers.LlamaConfig(
            hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16,
            num_key_value_heads=4, max_position_embeddings=POSITIONS)  # fmt: skip
        self.scalar, self.folder, self.config = scalar, Path(folder), config
        self.model = transformers.LlamaForCausalLM(config).to(TYPES[scalar]).eval()
        self.model.save_pretrained(folder)
        self.ids = ids(POSITIONS, config.vocab_size)
        self.products = products(self.model)
        in_double = copy.deepcopy(self.model).double()
        self.expected = in_double(torch.from_numpy(self.ids.astype(np.int64))[None], use_cache=False).logits[0].numpy()
        # In bfloat16 PyTorch rounds the rows of every layer, which ours keeps in float.
        self.tolerance = 1e-4 if scalar == "float32" else 0.1


class Case:
    """Tokens that are read at a position, the prompt together, others one by one."""

    def __init__(self, name, checkpoint, position):
        self.name, self.checkpoint, self.position = name, checkpoint, position
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

    def samples(self):
        """(position, ids) of its calls."""
        own = self.checkpoint.ids
        if self.together:
            return [(0, own[:PROMPT])]
        return [(p, own[p : p + 1]) for p in range(self.position, self.position + TOKENS)]

    @property
    def expected(self):
        return self.checkpoint.expected[self.position + self.tokens - 1]

    def prepare(self, text):
        """(run, read) of a participant's text, which reads the case's positions: text(position, ids) → logits."""
        calls = self.samples()
        if self.position > 0:
            text(0, self.checkpoint.ids[: self.position])

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
            ("reading", c_double, [c_void_p, c_int]),
            ("bytes", c_double, [c_void_p]),
            ("begin", c_char_p, [c_void_p, c_char_p, c_int]),
            ("read", c_char_p, [c_void_p, c_int, c_void_p, c_int, c_void_p]),
            ("end", None, [c_void_p]),
        ))  # fmt: skip
        self.text = None

    def prepare(self, case, data, threads):
        self.end()
        self.text, folder = c_void_p(), str(case.checkpoint.folder).encode()
        bound.checked(self.peer.begin(ctypes.byref(self.text), folder, POSITIONS))
        logits = POINTER(c_float)()

        def text(position, these):
            bound.checked(self.peer.read(self.text, position, these.ctypes.data, len(these), ctypes.byref(logits)))
            return np.ctypeslib.as_array(logits, (case.checkpoint.config.vocab_size,))

        return case.prepare(text)

    def limit(self, case, threads):
        """GFLOP/s for a prompt; for single tokens GB/s of the matrices, which every token reads."""
        return self.peer.peak(threads) if case.together else self.peer.reading(self.text, threads)

    def end(self):
        if self.text is not None:
            self.peer.end(self.text)
        self.text = None


class Torch:
    """Hugging Face's model and cache, whose attention is PyTorch's scaled_dot_product_attention."""

    def prepare(self, case, data, threads):
        torch.set_num_threads(threads)
        model, cache = case.checkpoint.model, transformers.DynamicCache(config=case.checkpoint.config)

        def text(position, these):
            if (more := cache.get_seq_length() - position) > 0:
                cache.crop(-more)
            rows = torch.from_numpy(these.astype(np.int64))[None]
            return model(rows, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[0, 0].float().numpy()

        return case.prepare(text)


PEERS = {"PyTorch": Torch}


def measure(case, threads, present, check):
    expected = case.expected

    def prepare(participant):
        runner = Runner(participant, case, None, threads)
        return runner, float(np.abs(runner.read() - expected).max() / np.abs(expected).max())

    runners, errors, missing = turns.ready(present, prepare, case.checkpoint.tolerance)
    row = {"group": "generation", "name": case.name, "text": case.text, "scalar": case.checkpoint.scalar,
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
    versions = {m.__name__: m.__version__ for m in (torch, transformers)}
    print("; ".join([present[OURS].peer.machine().decode(), *("%s %s" % v for v in versions.items())]), flush=True)
    rows = []
    for scalar in TYPES:
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            for position in (0, 512, 1536):
                name = "LLaMA/%s/%s" % (scalar, position or "prompt")
                if not re.search(options.filter, name):
                    continue
                checkpoint = checkpoint or Checkpoint(scalar, folder)
                rows.append(measure(Case(name, checkpoint, position), options.threads, present, options.check))
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
