# SPDX-License-Identifier: Apache-2.0
"""PyTorch's scaled_dot_product_attention on the shapes of attention_bench, one thread, in the columns of its table.

With --ours PROGRAM both are measured in turn, --repeats times per shape, and the median of the ratios is printed.

Usage: python benchmarks/peers/torch_sdpa.py [--ours build/release/benchmarks/attention_bench] [--repeats 3] [--rounds 9]
"""

import argparse
import re
import statistics
import subprocess
import time

import torch

HEADS = 2


def visible_gflop(length, dim, causal):
    pairs = length * (length + 1) / 2 if causal else length * length
    return 4e-9 * pairs * dim * HEADS


def torch_seconds(length, dim, causal, rounds):
    """Processor time of one call, each round long enough to be measured."""
    torch.manual_seed(7)
    q, k, v = (torch.randn(1, HEADS, length, dim) for _ in range(3))
    run = lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    run()
    begin = time.thread_time()
    run()
    calls = max(1, int(5e-3 / max(time.thread_time() - begin, 1e-6)))
    samples = []
    for _ in range(rounds):
        begin = time.thread_time()
        for _ in range(calls):
            run()
        samples.append((time.thread_time() - begin) / calls)
    return statistics.median(samples)


def our_gflops(program, length, dim, causal):
    name = "^attention/D:%d/L:%d/%s/" % (dim, length, "causal" if causal else "full")
    text = subprocess.run([program, "--benchmark_filter=" + name], check=True, capture_output=True, text=True).stdout
    return float(re.search(r"ours_GFLOPs=([0-9.]+)", text).group(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ours", help="the program attention_bench")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--lengths", type=int, nargs="*", default=[512, 1024, 2048, 4096])
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    print("torch %s, %d thread" % (torch.__version__, torch.get_num_threads()))
    print("| D | L | mask | torch GFLOP/s |" + (" ours GFLOP/s | ours : torch |" if options.ours else ""))
    print("|---|---:|---:|---:|" + ("---:|---:|" if options.ours else ""))
    for dim in (64, 128):
        for length in options.lengths:
            for causal in (False, True):
                theirs, ours = [], []
                for _ in range(options.repeats):
                    seconds = torch_seconds(length, dim, causal, options.rounds)
                    theirs.append(visible_gflop(length, dim, causal) / seconds)
                    if options.ours:
                        ours.append(our_gflops(options.ours, length, dim, causal))
                row = "| %d | %d | %s | %.1f |" % (dim, length, "causal" if causal else "full", statistics.median(theirs))
                if options.ours:
                    ratio = statistics.median(a / b for a, b in zip(ours, theirs))
                    row += " %.1f | %.2f× |" % (statistics.median(ours), ratio)
                print(row, flush=True)


if __name__ == "__main__":
    main()
