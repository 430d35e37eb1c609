# SPDX-License-Identifier: Apache-2.0
"""Ours beside PyTorch, ONNX Runtime, OpenVINO and Eigen: one process, the same arrays, the same threads, in turn.

A round runs each of them for some milliseconds; a ratio is the median over the rounds of their time by ours, above 1
if ours is faster. Each result is compared with the formula in double before it is timed. What is not installed, or
does not offer a case, is named.

Needs      numpy, and the libraries mha_peer, mha_peer_native and, for the group `model`, mha_model_peer, which CMake
           builds with the benchmarks
Compares   pip install torch==2.15.0 onnxruntime==1.31.1 onnx==1.23.2 (the versions measured), openvino==2026.4.1 for
           the group `model`. FlexAttention and torch.compile want a C++ compiler and half a minute for each case, the
           first time: --check compiles and checks and times nothing.
Usage      python3 benchmarks/peers/compare.py [--group attention masks …] [--threads 1 0] [--filter REGEX]
                                              [--peers REGEX] [--check] [--json FILE]
"""

import argparse
import json
import re
import statistics
import time
from pathlib import Path

import block_participants
import blocks
import cases
import participants
import turns
from turns import Missing

SAMPLE = 8e-3  # seconds that a sample lasts at least
ROUNDS = 9  # fewer where they would take more than BUDGET seconds, but 3
BUDGET = 3.0
OURS, CACHE, NATIVE, EIGEN = "mha", "mha, a cache", "mha, -march=native", "Eigen, -march=native"


def find_library(folder, name, module=participants):
    found = sorted(Path(folder).rglob("libmha_%s.so" % name)) or sorted(Path(folder).rglob("libmha_%s.*" % name))
    if not found:
        raise SystemExit("compare.py: no library mha_%s under %s: build the benchmarks first" % (name, folder))
    return module.Library(found[0])


def everybody(build):
    """Those who take part by name, and why others do not."""
    plain = find_library(build, "peer")
    present, absent = {OURS: participants.Ours(plain), CACHE: participants.OursInCache(plain)}, {}
    try:
        native = find_library(build, "peer_native")
        present.update({NATIVE: participants.Ours(native), EIGEN: participants.Eigen(native)})
    except SystemExit:
        absent.update(dict.fromkeys((NATIVE, EIGEN), "no library mha_peer_native in this build"))
    present.update(installed(participants.PEERS, absent))
    return plain, present, absent


def everybody_of_blocks(build, plain):
    """Those of the group `model` by name, and why others do not take part."""
    present, absent = {OURS: block_participants.Ours(find_library(build, "model_peer", block_participants), plain)}, {}
    present.update(installed(block_participants.PEERS, absent))
    return present, absent


def installed(peers, absent):
    present = {}
    for name, kind in peers.items():
        try:
            present[name] = kind()
        except Missing as why:
            absent[name] = str(why)
    return present


class Runner:
    """One participant with one case, ready to be timed."""

    def __init__(self, participant, case, data, threads):
        self.run, self.read = participant.prepare(case, data, threads)
        # On one thread everybody computes in the calling thread: its processor time does not count the neighbours.
        own = getattr(participant, "clock", time.thread_time)
        self.clock = getattr(participant, "counted", own if threads == 1 else time.perf_counter)
        self.threads, self.samples = threads, []
        self.rest = getattr(participant, "rest", 3e-3)
        self.run()
        self.once = self.seconds(1)
        self.calls = max(1, int(SAMPLE / max(self.once, 1e-7)))

    def seconds(self, calls):
        begin = self.clock()
        for _ in range(calls):
            self.run()
        return (self.clock() - begin) / calls

    def sample(self):
        if self.calls > 1:
            self.run()  # its memory back into the caches
        self.samples.append(self.seconds(self.calls))
        if self.threads > 1:
            time.sleep(self.rest)  # its threads may still spin, where the next one wants to compute


def measure(case, threads, library, present, check):
    """The row of one case: rates, ratios and errors by name, and who is missing."""
    data = case.data()
    rows, values = case.expected(data)

    def prepare(participant):
        runner = Runner(participant, case, data, threads)
        return runner, cases.error(case, runner.read(), rows, values)

    runners, errors, missing = turns.ready(present, prepare, cases.tolerance(case))
    row = {
        "group": case.group, "name": case.name, "kind": case.kind, "shape": case.shape, "sizes": case.sizes,
        "scalar": case.scalar, "mask": case.pattern, "threads": threads, "unit": case.unit,
        "missing": missing, "errors": errors,
    }  # fmt: skip
    row["kernels"] = {n: present[n].kernel for n in runners if hasattr(present[n], "kernel")}
    if check or OURS not in runners:
        return row
    rounds = int(min(ROUNDS, max(3, BUDGET / sum(max(SAMPLE, r.once) for r in runners.values()))))
    peak = turns.sample(runners, rounds, lambda: library.limit(case, data, threads))
    work = case.work(library.pairs)
    row.update(rounds=rounds, peak=peak, results={})
    for name, (seconds, ratio) in turns.medians(runners, OURS).items():
        row["results"][name] = {"rate": work / seconds, "ratio": ratio, "ms": 1e3 * seconds}
    if case.group == "model":
        row["stages"] = stages({n: present[n] for n in runners if hasattr(present[n], "stages")}, rounds, threads)
    return row


def stages(participants, rounds, threads):
    """Milliseconds of each stage by name, for those who can tell: medians over rounds of their own."""
    samples = {name: [] for name in participants}
    for _ in range(rounds):
        for name, participant in participants.items():
            if threads > 1:
                time.sleep(3e-3)
            participant.stages()  # its memory back into the caches
            samples[name].append(participant.stages())
    return {
        name: {stage: 1e3 * statistics.median(s[stage] for s in taken) for stage in blocks.STAGES}
        for name, taken in samples.items()
    }


def print_group(rows):
    """One table, its columns those who took part."""
    unit = rows[0]["unit"] if rows else ""
    limit = "reading" if unit == "GB/s" else "peak"

    def cells(row):
        rate = row["results"][OURS]["rate"]
        of_limit = ["%.0f" % row["peak"], "%.0f" % (100 * rate / row["peak"])]
        return [row["shape"], row["scalar"], row["mask"], str(row["threads"]), "%.1f" % rate, *of_limit]

    everybody = [CACHE, NATIVE, EIGEN, *participants.PEERS, *block_participants.PEERS]
    numbers = ["threads", "ours %s" % unit, "%s %s" % (limit, unit), "%% of %s" % limit]
    turns.print_table(rows, ["shape", "scalar", "mask or score"], numbers, everybody, cells)


def print_stages(rows):
    """Where the time of blocks goes: milliseconds and shares of ours, milliseconds of the peers that tell theirs."""
    rows = [row for row in rows if row.get("stages")]
    if not rows:
        return
    names = list(dict.fromkeys(name for row in rows for name in row["stages"]))
    cells = ["%s: %s" % (n, s) for n in names for s in (*blocks.STAGES, *(["activation and norm"] * (n == OURS)))]
    print("\n| block | scalar | threads | " + " | ".join(cells) + " |")
    print("|---|---|---|" + "---:|" * len(cells))
    for row in rows:
        cells = [row["shape"], row["scalar"], str(row["threads"])]
        for name in names:
            taken = row["stages"].get(name, {})
            cells += ["%.2f ms" % taken[s] if taken else "" for s in blocks.STAGES]
            if name == OURS:
                few = taken["activation"] + taken["norm"]
                cells.append("%.1f %%" % (100 * few / sum(taken.values())))
        print("| " + " | ".join(cells) + " |")


def print_kernels(rows):
    """Which of its own kernels a participant chose where."""
    said = {}
    for row in rows:
        for name, kernel in row["kernels"].items():
            dropped = " with dropout" if row["sizes"].get("dropout") else ""
            said.setdefault((name, kernel), []).append(row["scalar"] + dropped)
    for (name, kernel), where in said.items():
        print("- kernel of %s: %s (%s)" % (name, kernel, ", ".join(dict.fromkeys(where))))


def print_missing(rows, absent):
    """Who did not take part where it might have: not installed, without that mask or scalar, wrong, or failing."""

    def where(row, why):
        if why.startswith("computes no"):
            return None
        return row["mask"] if row["scalar"] == "float32" else row["scalar"]

    turns.print_missing(rows, where, absent)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build/release", help="where the libraries are, in any folder below")
    parser.add_argument("--group", nargs="*", help="attention masks bfloat16 short uneven layer training backward linear model; all if not given")
    parser.add_argument("--threads", type=int, nargs="*", help="1, all of ours (0) or both, which are the default; MHA_NUM_THREADS says how many these are")
    parser.add_argument("--filter", default="", help="a regular expression that the names of the cases match")
    parser.add_argument("--peers", default="", help="a regular expression for the names of those beside ours")
    parser.add_argument("--check", action="store_true", help="compute and check, time nothing")
    parser.add_argument("--json", help="write the rows there")
    options = parser.parse_args()
    everything = (*cases.all_cases(), *blocks.all_cases())
    for group in options.group or ():
        if group not in {c.group for c in everything}:
            parser.error("there is no group '%s'" % group)
    chosen = [
        c
        for c in everything
        if (not options.group or c.group in options.group) and re.search(options.filter, c.name)
    ]
    library, present, absent = everybody(options.build)
    every_thread = library.threads()
    for n in options.threads or ():
        if n not in (0, 1, every_thread):  # ours would have more threads than the others
            parser.error("--threads is %d, but ours has 1 or %d: set MHA_NUM_THREADS" % (n, every_thread))
    of_blocks = {}
    if any(case.group == "model" for case in chosen):
        of_blocks, absent_there = everybody_of_blocks(options.build, library)
        absent = {**(absent if any(case.group != "model" for case in chosen) else {}), **absent_there}
    present, of_blocks = (
        {name: who for name, who in some.items() if name == OURS or re.search(options.peers, name)}
        for some in (present, of_blocks)
    )
    versions = {**participants.versions(), **block_participants.versions()}
    with_versions = [library.description(), *("%s %s" % item for item in versions.items())]
    print("; ".join(with_versions), flush=True)
    rows = []
    for threads in dict.fromkeys(n or every_thread for n in options.threads or (1, 0)):
        for case in chosen:
            row = measure(case, threads, library, of_blocks if case.group == "model" else present, options.check)
            rows.append(row)
            print(case.name, "threads:%d" % threads, turns.in_words(row, OURS, options.check), flush=True)
    if not options.check:
        for table in dict.fromkeys((row["group"], row["unit"]) for row in rows):
            print_group([row for row in rows if (row["group"], row["unit"]) == table])
        print_stages(rows)
        print()
        print_kernels(rows)
    print_missing(rows, absent)
    if options.json:
        result = {"machine": library.description(), "versions": versions, "absent": absent}
        Path(options.json).write_text(json.dumps({**result, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
