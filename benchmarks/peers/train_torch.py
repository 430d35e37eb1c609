# SPDX-License-Identifier: Apache-2.0
"""The model of examples/train beside the same in eager PyTorch: a step of forward, backward and AdamW, in turns.

Bytes as tokens; blocks of RMS norm, causal attention with rotary positions and SwiGLU; cross-entropy; AdamW. The sizes
are those that the program `train` has by default. Ours draws its batches as well.

Needs      pip install torch==2.15.0 (the version measured), and the library mha_train_peer, which CMake builds with the
           benchmarks where it builds examples/train
Usage      python3 benchmarks/peers/train_torch.py [--threads 1 2] [--rounds 15] [--json FILE]
"""

import argparse
import ctypes
import json
import os
import statistics
import time
from pathlib import Path

import bound
import torch
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH, HIDDEN, HEADS, LAYERS, CONTEXT, BATCH = 256, 64, 128, 4, 4, 128, 8
STEPS = 20  # of a round


def rotated(x, cosines, sines):
    """x (B, H, L, D) with its halves turned."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cosines - b * sines, b * cosines + a * sines), -1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH, eps=1e-6), nn.RMSNorm(WIDTH, eps=1e-6)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.output = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate_and_up = nn.Linear(WIDTH, 2 * HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x, cosines, sines):
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        q, k = rotated(q, cosines, sines), rotated(k, cosines, sines)
        heads = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.output(heads.transpose(1, 2).reshape(batch, length, WIDTH))
        gate, up = self.gate_and_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(functional.silu(gate) * up)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH, eps=1e-6)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        dim = WIDTH // HEADS
        angles = torch.outer(torch.arange(CONTEXT), 10000.0 ** (-torch.arange(0, dim, 2) / dim))
        self.cosines, self.sines = angles.cos(), angles.sin()

    def forward(self, ids):
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x, self.cosines, self.sines)
        return self.head(self.norm(x))


class Peer:
    """Steps of PyTorch."""

    def __init__(self, threads):
        torch.set_num_threads(threads)
        torch.manual_seed(1)
        self.model = Model()
        self.adamw = torch.optim.AdamW(self.model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)
        self.ids = torch.randint(VOCABULARY, (BATCH, CONTEXT + 1))
        self.parameters = sum(p.numel() for p in self.model.parameters())

    def steps(self, count):
        for _ in range(count):
            logits = self.model(self.ids[:, :-1])
            loss = functional.cross_entropy(logits.reshape(-1, VOCABULARY), self.ids[:, 1:].reshape(-1))
            self.adamw.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.adamw.step()


class Ours:
    """Steps of examples/train, through the library of train_ours.cpp."""

    def __init__(self, path, threads):
        self.peer = bound.functions(path, "peer_training", (
            ("machine", ctypes.c_char_p, []),
            ("begin", ctypes.c_void_p, [ctypes.c_int]),
            ("parameters", ctypes.c_int, [ctypes.c_void_p]),
            ("steps", ctypes.c_double, [ctypes.c_void_p, ctypes.c_int]),
        ))  # fmt: skip
        self.training = self.peer.begin(threads)
        self.parameters = self.peer.parameters(self.training)
        self.machine = self.peer.machine().decode()

    def steps(self, count):
        self.peer.steps(self.training, count)


def measure(threads, library, rounds):
    """Milliseconds of a step and their ratio, by rounds that take turns."""
    everybody = {"mha": Ours(library, threads), "PyTorch eager": Peer(threads)}
    samples = {name: [] for name in everybody}
    for who in everybody.values():
        who.steps(10)
    # On one thread everybody computes in the calling thread: its processor time does not count the neighbours.
    clock = time.thread_time if threads == 1 else time.perf_counter
    for r in range(rounds):
        for name, who in (list(everybody.items()), list(everybody.items())[::-1])[r % 2]:
            if threads > 1:
                time.sleep(3e-3)  # threads of the one before may still spin
            begin = clock()
            who.steps(STEPS)
            samples[name].append((clock() - begin) / STEPS)
    ours, peers = samples.values()
    ratio = statistics.median(p / o for o, p in zip(ours, peers))
    result = {"group": "train", "machine": everybody["mha"].machine, "threads": threads, "ratio": ratio}
    for name, who in everybody.items():
        result[name] = {"ms": 1e3 * statistics.median(samples[name]), "parameters": who.parameters}
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", default="build/release", help="where the library mha_train_peer is, in any folder below")
    parser.add_argument("--threads", type=int, nargs="*", help="1 and all of them if not given")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", help="write the rows there")
    options = parser.parse_args()
    found = sorted(Path(options.build).rglob("libmha_train_peer.*"))
    if not found:
        raise SystemExit("train_torch.py: no library mha_train_peer under %s: build the benchmarks first" % options.build)
    every_thread = len(os.sched_getaffinity(0))
    counts = dict.fromkeys(n or every_thread for n in options.threads or (1, 0))
    rows = [measure(threads, found[0], options.rounds) for threads in counts]
    print("%s; torch %s" % (rows[0]["machine"], torch.__version__))
    print("\n| the model of train, %d tokens a step | threads | ours ms | PyTorch eager ms | ours : PyTorch eager |" % (
        BATCH * CONTEXT))  # fmt: skip
    print("|---|---:|---:|---:|---:|")
    for row in rows:
        cells = [row[name] for name in ("mha", "PyTorch eager")]
        parameters = " and ".join("%d" % n for n in dict.fromkeys(c["parameters"] for c in cells))
        print("| %s parameters | %d | %.2f | %.2f | %.2f× |" % (
            parameters, row["threads"], *(c["ms"] for c in cells), row["ratio"]))  # fmt: skip
    if options.json:
        Path(options.json).write_text(json.dumps({"versions": {"torch": torch.__version__}, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
