# SPDX-License-Identifier: Apache-2.0
"""PyTorch's bfloat16 Linear, which is oneDNN, on the shapes of systolic_bench, one thread, in the columns of its table.

With --ours PROGRAM both are measured in turn, --repeats times per shape, and the median of the ratios is printed.

Usage: python benchmarks/peers/torch_bf16.py [--ours build/release/benchmarks/systolic_bench] [--repeats 3] [--rounds 9]
"""

import argparse
import re
import statistics
import subprocess
import time

import torch

SHAPES = [(512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (1024, 512, 512), (1024, 2048, 2048),
          (16, 2048, 2048), (1, 2048, 2048), (1, 4096, 4096)]


def torch_seconds(m, n, k, rounds):
    """Processor time of one call, each round long enough to be measured."""
    torch.manual_seed(7)
    linear = torch.nn.Linear(k, n, bias=False, dtype=torch.bfloat16)
    torch.nn.init.normal_(linear.weight)
    x = torch.randn(m, k).to(torch.bfloat16)
    linear(x)
    begin = time.thread_time()
    linear(x)
    calls = max(1, int(5e-3 / max(time.thread_time() - begin, 1e-6)))
    samples = []
    for _ in range(rounds):
        begin = time.thread_time()
        for _ in range(calls):
            linear(x)
        samples.append((time.thread_time() - begin) / calls)
    return statistics.median(samples)


def our_gflops(program, m, n, k):
    name = "^dense/M:%d/N:%d/K:%d/" % (m, n, k)
    text = subprocess.run([program, "--benchmark_filter=" + name], check=True, capture_output=True, text=True).stdout
    return float(re.search(r"ours_GFLOPs=([0-9.]+)(k?)", text).group(1)) * (
        1000 if re.search(r"ours_GFLOPs=[0-9.]+k", text) else 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ours", help="the program systolic_bench")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    print("torch %s, %d thread" % (torch.__version__, torch.get_num_threads()))
    print("| M × N × K | torch GFLOP/s |" + (" ours GFLOP/s | ours : torch |" if options.ours else ""))
    print("|---|---:|" + ("---:|---:|" if options.ours else ""))
    for m, n, k in SHAPES:
        theirs, ours = [], []
        for _ in range(options.repeats):
            theirs.append(2e-9 * m * n * k / torch_seconds(m, n, k, options.rounds))
            if options.ours:
                ours.append(our_gflops(options.ours, m, n, k))
        row = "| %d × %d × %d | %.1f |" % (m, n, k, statistics.median(theirs))
        if options.ours:
            row += " %.1f | %.2f× |" % (statistics.median(ours), statistics.median(a / b for a, b in zip(ours, theirs)))
        print(row, flush=True)


if __name__ == "__main__":
    main()
