# SPDX-License-Identifier: Apache-2.0
"""The model of examples/train in eager PyTorch: milliseconds of a step of forward, backward and AdamW.

Bytes as tokens; blocks of RMS norm, causal attention with rotary positions and SwiGLU; cross-entropy; AdamW. The sizes
are those that the program `train` has by default, which prints how long its own steps took.

Needs      pip install torch==2.15.0 (the version measured)
Usage      python3 benchmarks/peers/train_torch.py [--threads 1] [--rounds 15]
"""

import argparse
import statistics
import time

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


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    model = Model()
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)
    ids = torch.randint(VOCABULARY, (BATCH, CONTEXT + 1))

    def step():
        logits = model(ids[:, :-1])
        loss = functional.cross_entropy(logits.reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))
        adamw.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()

    for _ in range(10):
        step()
    samples = []
    for _ in range(options.rounds):
        begin = time.perf_counter()
        for _ in range(STEPS):
            step()
        samples.append((time.perf_counter() - begin) / STEPS)
    parameters = sum(p.numel() for p in model.parameters())
    print("%d parameters, torch %s, %d threads" % (parameters, torch.__version__, options.threads))
    print("%.2f ms a step, the fastest round %.2f" % (1e3 * statistics.median(samples), 1e3 * min(samples)))


if __name__ == "__main__":
    main()
