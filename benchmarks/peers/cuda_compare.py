# SPDX-License-Identifier: Apache-2.0
"""Ours beside PyTorch on one NVIDIA GPU: one process, the same tensors, the same stream, in turn.

A round runs each of them for some milliseconds between two events of CUDA; a ratio is the median over the rounds of
their time by ours, above 1 if ours is faster. Short queries run as CUDA graphs of one call a layer, each with keys and
values of its own. Each result is compared with the formula in double before it is timed. The group backward times the
gradients alone, of which ours are the same bits in every run. PyTorch takes part by each of its kernels (cuDNN, flash,
efficient) and by compiled FlexAttention; what refuses a case is named.

Needs      the library mha_cuda_peer (CMake target cuda_measured), an NVIDIA GPU, a C++ compiler for FlexAttention
Compares   pip install torch==2.15.0 (CUDA build)
Usage      python3 benchmarks/peers/cuda_compare.py [--group attention masks backward short] [--filter REGEX]
                                                   [--peers REGEX] [--check] [--json FILE]
"""

import argparse
import contextlib
import ctypes
import json
import re
import sys
from ctypes import POINTER, c_char_p, c_double, c_int, c_void_p
from pathlib import Path

import bound
import turns
from turns import Missing

try:
    import torch
except ImportError:
    torch = None

SAMPLE = 10e-3  # seconds that a sample lasts at least
ROUNDS = 9
OURS, FLEX = "mha", "FlexAttention, compiled"
TOLERANCE = {"bfloat16": 1e-2, "half": 2e-3, "float32": 1e-4}
GRAPH_BYTES = 3e9  # keys and values of all layers in a graph, far more than the caches hold


class Case:
    """Attention; q (B, Hq, Lq, D)  k, v (B, Hkv, Lk, D), the queries at the end of the keys."""

    def __init__(self, group, pattern, batch, queries, keys, dim, scalar="bfloat16", heads=64, kv_heads=8):
        self.group, self.pattern, self.scalar = group, pattern, scalar
        self.sizes = dict(batch=batch, queries=queries, keys=keys, heads=heads, kv_heads=kv_heads, dim=dim)
        self.__dict__.update(self.sizes)

    @property
    def shape(self):
        if self.group == "short":
            return "B %d, Lq %d, Lk %d" % (self.batch, self.queries, self.keys)
        return "D %d, L %d" % (self.dim, self.keys)

    @property
    def name(self):
        return "%s/%s/%s/%s" % (self.group, self.scalar, self.shape.replace(" ", ""), self.pattern.replace(" ", "_"))

    @property
    def layers(self):
        """Calls in the graph of short queries, one a layer; otherwise one call."""
        if self.group != "short":
            return 1
        return int(max(1, min(32, GRAPH_BYTES / self.bytes())))

    @property
    def flop_of_pair(self):
        """Of one visible pair and head, by column: two products forward, five backward."""
        return 10.0 if self.group == "backward" else 4.0

    def bytes(self):
        return 2.0 * self.batch * self.keys * self.kv_heads * self.dim * (4 if self.scalar == "float32" else 2)

    def work(self, visible_pairs):
        """FLOP of visible work, or bytes of keys and values."""
        if self.group == "short":
            return self.bytes()
        pairs = visible_pairs(self.pattern, self.queries, self.keys) * self.batch * self.heads
        return self.flop_of_pair * pairs * self.dim


def all_cases():
    for dim in (64, 128, 256):
        for length in (512, 1024, 2048, 4096, 8192, 16384, 32768):
            for pattern in ("full", "causal"):
                yield Case("attention", pattern, 1, length, length, dim)
    for dim in (64, 128):
        for pattern in ("window 256", "functor", "softcap"):
            yield Case("masks", pattern, 1, 8192, 8192, dim)
    for scalar in ("half", "float32"):
        yield Case("masks", "causal", 1, 4096, 4096, 128, scalar)
    for dim in (64, 128):
        for length in (512, 1024, 2048, 4096, 8192, 16384):
            for pattern in ("full", "causal"):
                yield Case("backward", pattern, 1, length, length, dim)
    for batch, keys in ((1, 1024), (1, 4096), (1, 32768), (8, 4096), (64, 1024), (64, 4096), (64, 32768), (256, 4096)):
        yield Case("short", "full", batch, 1, keys, 128)


def visible(pattern, q, k):
    """The pairs that a pattern shows, as in cuda/patterns.hpp; q and k are positions."""
    if pattern == "causal":
        return k <= q
    if pattern == "window 256":
        return (k <= q) & (q - k <= 255)
    if pattern == "functor":
        return ((q + k) & 15) != 0
    return (q >= 0) & (k >= 0)


# ---- tensors, and the formula ----


def tensors(case, device):
    """q, and keys and values of each layer."""
    torch.manual_seed(7)
    kind = {"bfloat16": torch.bfloat16, "half": torch.float16, "float32": torch.float32}[case.scalar]
    draw = lambda *shape: torch.randn(shape, device=device, dtype=torch.float32).to(kind)
    keys = (case.batch, case.kv_heads, case.keys, case.dim)
    layers = [(draw(*keys), draw(*keys)) for _ in range(case.layers)]
    return draw(case.batch, case.heads, case.queries, case.dim), layers


def expected(case, q, k, v):
    """(rows, values): a few rows of every head by the formula in double, of the first and the last sequence."""
    draw = torch.Generator().manual_seed(11)
    rows = torch.randint(case.queries, (6,), generator=draw).tolist() + [0, case.queries - 1]
    rows = torch.tensor(sorted(set(rows)), device=q.device)
    batches = sorted({0, case.batch - 1})
    group, positions = case.heads // case.kv_heads, rows + case.keys - case.queries
    shown = visible(case.pattern, positions[:, None], torch.arange(case.keys, device=q.device)[None, :])
    values = []
    for b in batches:
        heads = []
        for h in range(case.heads):
            s = q[b, h, rows].double() @ k[b, h // group].double().T / case.dim**0.5
            if case.pattern == "softcap":
                s = 30 * torch.tanh(s / 30)
            p = torch.softmax(s.masked_fill(~shown, float("-inf")), -1)
            heads.append(p @ v[b, h // group].double())
        values.append(torch.stack(heads))
    return batches, rows, torch.stack(values)  # (batches, Hq, rows, D)


def upstream(q):
    """The gradient of the output that the group backward starts from."""
    drawn = torch.Generator(q.device).manual_seed(13)
    return torch.randn(q.shape, device=q.device, dtype=torch.float32, generator=drawn).to(q.dtype)


def expected_gradients(case, q, k, v):
    """(heads of keys, [dq, dk, dv]) of the first and the last of these heads, by the formula in double."""
    d_out, group, scale = upstream(q), case.heads // case.kv_heads, case.dim**-0.5
    at = torch.arange(case.keys, device=q.device)
    hidden = ~visible(case.pattern, at[:, None], at[None, :])
    chosen, gradients = sorted({0, case.kv_heads - 1}), [[], [], []]
    for g in chosen:
        key, value = k[0, g].double(), v[0, g].double()
        dk, dv = torch.zeros_like(key), torch.zeros_like(value)
        for h in range(g * group, (g + 1) * group):
            query, above = q[0, h].double(), d_out[0, h].double()
            p = torch.softmax((query @ key.T * scale).masked_fill_(hidden, float("-inf")), -1)
            dv += p.T @ above
            dp = above @ value.T
            p *= dp - (p * dp).sum(-1, keepdim=True)
            gradients[0].append(p @ key * scale)
            dk += p.T @ query * scale
            del p, dp
        gradients[1].append(dk)
        gradients[2].append(dv)
    return chosen, [torch.stack(g) for g in gradients]


def error_of_gradients(results, chosen, gradients):
    """The largest error of one of the three relative to its size; infinite if any number is not finite."""
    worst = 0.0
    for result, expected in zip(results, gradients):
        if not bool(torch.isfinite(result).all()):
            return float("inf")
        group = expected.shape[0] // len(chosen)  # its heads for each of keys
        heads = [g * group + h for g in chosen for h in range(group)]
        worst = max(worst, float((result[0, heads].double() - expected).norm() / expected.norm()))
    return worst


def error(result, batches, rows, values):
    """The largest error of a row relative to its size; infinite if any number of the result is not finite."""
    if not bool(torch.isfinite(result).all()):
        return float("inf")
    difference = result[batches][:, :, rows].double() - values
    return float((difference.norm(dim=-1) / values.norm(dim=-1)).max())


# ---- who takes part ----


class Library:
    class Shape(ctypes.Structure):
        _fields_ = [(n, c_int) for n in ("batch", "queries", "keys", "heads", "kv_heads", "dim")]

    def __init__(self, folder):
        found = sorted(Path(folder).rglob("libmha_cuda_peer.*"))
        if not found:
            raise SystemExit("cuda_compare.py: no library mha_cuda_peer under %s: build cuda_measured first" % folder)
        table = (
            ("missing", c_char_p, []),
            ("card", c_char_p, []),
            ("dense", c_char_p, [POINTER(c_double)]),
            ("read", c_char_p, [POINTER(c_double)]),
            ("visible_pairs", c_double, [c_char_p, c_int, c_int]),
            ("attention", c_char_p, [c_void_p, c_char_p, c_char_p] + 5 * [c_void_p]),
            ("record", c_char_p, [c_void_p, c_char_p] + 5 * [c_void_p]),
            ("backward", c_char_p, [c_void_p] + 9 * [c_void_p]),
        )
        vars(self).update(vars(bound.functions(found[0], "cuda_peer", table)))

    def limit(self, case):
        rate = c_double()
        torch.cuda.synchronize()
        bound.checked((self.read if case.group == "short" else self.dense)(ctypes.byref(rate)))
        return rate.value

    def pairs(self, pattern, queries, keys):
        return self.visible_pairs(pattern.encode(), queries, keys)


class Ours:
    """prepare() returns a call for each layer, and a context that the calls are made in."""

    def __init__(self, library):
        self.program = library

    def prepare(self, case, q, layers, out):
        shape = Library.Shape(*case.sizes.values())
        stream = torch.cuda.current_stream().cuda_stream
        names = (case.pattern.encode(), case.scalar.encode())
        if case.group == "backward":
            return self.prepare_backward(case, shape, stream, q, *layers[0], out)

        def of(k, v):
            pointers = [t.data_ptr() for t in (q, k, v, out)]

            def run():
                bound.checked(self.program.attention(ctypes.byref(shape), *names, stream, *pointers))
                return out

            return run

        return [of(k, v) for k, v in layers], contextlib.nullcontext

    def prepare_backward(self, case, shape, stream, q, k, v, out):
        inputs = [t.data_ptr() for t in (q, k, v, out)]
        bound.checked(self.program.record(ctypes.byref(shape), case.pattern.encode(), stream, *inputs))
        d_out, results = upstream(q), [torch.full_like(t, float("nan")) for t in (q, k, v)]

        def run():
            more = [t.data_ptr() for t in (d_out, *results)]
            bound.checked(self.program.backward(ctypes.byref(shape), stream, *inputs, *more))
            return results

        return [run], contextlib.nullcontext


class Sdpa:
    """scaled_dot_product_attention by one of its kernels."""

    def __init__(self, kernel):
        self.kernel = kernel

    def prepare(self, case, q, layers, out):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        if case.pattern not in ("full", "causal"):
            raise Missing("no kernel for this mask or score but with a mask of L × L")
        attention = torch.nn.functional.scaled_dot_product_attention
        options = {"is_causal": case.pattern == "causal", "enable_gqa": case.heads != case.kv_heads}
        if case.group == "backward":
            with torch.enable_grad(), sdpa_kernel(getattr(SDPBackend, self.kernel)):
                inputs = [t.detach().requires_grad_() for t in (q, *layers[0])]
                result, d_out = attention(*inputs, **options), upstream(q)
            return [lambda: torch.autograd.grad(result, inputs, d_out, retain_graph=True)], contextlib.nullcontext
        calls = [lambda k=k, v=v: attention(q, k, v, **options) for k, v in layers]
        return calls, lambda: sdpa_kernel(getattr(SDPBackend, self.kernel))


class Flex:
    """Compiled FlexAttention of fixed shapes; each takes a while to compile, so that not all are."""

    def prepare(self, case, q, layers, out):
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        if case.group == "backward":
            raise Missing("its compiled backward pass takes minutes")
        if case.group == "attention" and case.keys not in (2048, 8192):
            raise Missing("compiled here for L 2048 and 8192 only")
        if case.group == "short" and case.keys != 4096:
            raise Missing("compiled here for 4096 keys only")
        torch._dynamo.reset()
        options = {"enable_gqa": case.heads != case.kv_heads}
        if case.pattern == "softcap":
            options["score_mod"] = lambda s, b, h, q, k: 30 * torch.tanh(s / 30)
        elif case.pattern != "full":
            shown = lambda b, h, q, k: visible(case.pattern, q, k)
            options["block_mask"] = create_block_mask(shown, None, None, case.queries, case.keys, device=q.device)
        compiled = torch.compile(flex_attention, dynamic=False)
        return [lambda k=k, v=v: compiled(q, k, v, **options) for k, v in layers], contextlib.nullcontext


PEERS = {
    "PyTorch, cuDNN": lambda: Sdpa("CUDNN_ATTENTION"),
    "PyTorch, flash": lambda: Sdpa("FLASH_ATTENTION"),
    "PyTorch, efficient": lambda: Sdpa("EFFICIENT_ATTENTION"),
    FLEX: Flex,
}


class Runner:
    """One participant with one case, ready to be timed."""

    def __init__(self, participant, case, q, layers):
        self.samples, self.layers = [], len(layers)
        out = torch.full_like(q, float("nan"))
        calls, self.context = participant.prepare(case, q, layers, out)
        with self.context():
            for call in calls:  # warms up: what is allocated or chosen once is so before anything is recorded
                self.result = call()
            torch.cuda.current_stream().synchronize()
            self.run = calls[0]
            if case.group == "short":
                self.graph = torch.cuda.CUDAGraph()
                if isinstance(participant, Ours):
                    out.fill_(float("nan"))
                with torch.cuda.graph(self.graph, stream=torch.cuda.current_stream()):
                    for call in calls:
                        self.result = call()
                self.run = self.graph.replay
                self.run()
        self.calls = max(1, int(SAMPLE / max(self.seconds(3), 1e-7)))

    def seconds(self, calls):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with self.context():
            begin.record()
            for _ in range(calls):
                self.run()
            end.record()
        end.synchronize()
        return 1e-3 * begin.elapsed_time(end) / calls

    def sample(self):
        self.samples.append(self.seconds(self.calls) / self.layers)


# ---- a case, and the tables ----


def measure(case, library, present, check):
    """The row of one case: rates, ratios and errors by name, and who is missing."""
    q, layers = tensors(case, "cuda")
    backward = case.group == "backward"
    places = (expected_gradients if backward else expected)(case, q, *layers[-1])

    def prepare(participant):
        runner = Runner(participant, case, q, layers)
        return runner, (error_of_gradients if backward else error)(runner.result, *places)

    runners, errors, missing = turns.ready(present, prepare, TOLERANCE[case.scalar])
    row = {
        "group": "cuda " + case.group, "name": case.name, "shape": case.shape, "sizes": case.sizes,
        "scalar": case.scalar, "mask": case.pattern, "unit": "GB/s" if case.group == "short" else "TFLOP/s",
        "missing": missing, "errors": errors,
    }  # fmt: skip
    if check or OURS not in runners:
        return row
    unit = 1e9 if case.group == "short" else 1e12
    limit = turns.sample(runners, ROUNDS, lambda: library.limit(case)) / unit
    work = case.work(library.pairs) / unit
    row.update(limit=limit, results={})
    for name, (seconds, ratio) in turns.medians(runners, OURS).items():
        row["results"][name] = {"rate": work / seconds, "microseconds": 1e6 * seconds, "ratio": ratio}
    return row


def print_group(rows):
    """One table, its columns those who took part."""
    unit = rows[0]["unit"] if rows else ""
    what = "reading" if unit == "GB/s" else "dense bfloat16"

    def cells(row):
        ours = row["results"][OURS]
        of_it = ["%.0f" % row["limit"], "%.0f" % (100 * ours["rate"] / row["limit"])]
        return [row["shape"], row["scalar"], row["mask"], "%.1f" % ours["microseconds"], "%.0f" % ours["rate"], *of_it]

    numbers = ["ours µs", "ours %s" % unit, "%s %s" % (what, unit), "% of it"]
    turns.print_table(rows, ["shape", "scalar", "mask or score"], numbers, PEERS, cells)


def print_missing(rows):
    """Who did not take part where it might have, and why."""
    turns.print_missing(rows, lambda row, why: "%s, %s" % (row["shape"], row["mask"]), between="; ")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build/release", help="where the library is, in any folder below")
    parser.add_argument("--group", nargs="*", help="attention masks backward short; all if not given")
    parser.add_argument("--filter", default="", help="a regular expression that the names of the cases match")
    parser.add_argument("--peers", default="", help="a regular expression for the names of those beside ours")
    parser.add_argument("--check", action="store_true", help="compute and check, time nothing")
    parser.add_argument("--json", help="write the rows there")
    options = parser.parse_args()
    everything = list(all_cases())
    for group in options.group or ():
        if group not in {c.group for c in everything}:
            parser.error("there is no group '%s'" % group)
    library = Library(options.build)
    why = library.missing().decode()
    if not why:
        why = "torch is not installed" if torch is None else "" if torch.cuda.is_available() else "torch has no CUDA"
    if why:
        print("cuda_compare.py: nothing is measured: %s" % why)
        return
    torch.set_grad_enabled(False)
    present = {OURS: Ours(library), **{n: make() for n, make in PEERS.items() if re.search(options.peers, n)}}
    chosen = [
        c
        for c in everything
        if (not options.group or c.group in options.group) and re.search(options.filter, c.name)
    ]
    print("%s; torch %s with cuDNN %s" % (library.card().decode(), torch.__version__, torch.backends.cudnn.version()))
    rows = []
    with torch.cuda.stream(torch.cuda.Stream()):
        for case in chosen:
            rows.append(measure(case, library, present, options.check))
            torch.cuda.empty_cache()
            print(case.name, turns.in_words(rows[-1], OURS, options.check), flush=True)
    if not options.check:
        for group in dict.fromkeys(row["group"] for row in rows):
            print_group([row for row in rows if row["group"] == group])
        print()
    print_missing(rows)
    if options.json:
        Path(options.json).write_text(json.dumps({"machine": library.card().decode(), "rows": rows}, indent=1) + "\n")
    wrong = [row["name"] for row in rows if OURS in row["missing"]]
    if wrong:
        sys.exit("cuda_compare.py: ours failed or is wrong: " + ", ".join(wrong))


if __name__ == "__main__":
    main()
