# SPDX-License-Identifier: Apache-2.0
"""What the library costs the compiler: seconds of processor time at -O2 and bytes of text of one translation unit.

    python3 benchmarks/compile_time.py
    python3 benchmarks/compile_time.py --compiler clang++ --repeat 5 --eigen /path/to/eigen
    python3 benchmarks/compile_time.py --commands

Medians of interleaved compilations; "of Eigen" divides by the time of a unit that includes <Eigen/Core> alone.
--commands adds what a contributor waits for: the README's commands in a fresh clone of the last commit, once each.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INCLUDE = ROOT / "include"

CALL = """#include <Eigen/Core>
#include <mha/{door}.hpp>

using Rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

Rows call(const mha::MultiHeadAttention<float, {backend}, mha::Causal>& layer, const Rows& x) {{ return layer(x); }}
"""
TRAIN = """#include <Eigen/Core>
#include <mha/mha.hpp>

using Rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Layer = mha::MultiHeadAttention<float, mha::Cpu, mha::Causal>;

Rows step(const Layer& layer, const Rows& x, const Rows& dy) {
  auto tape = layer.tape();
  auto gradients = layer.gradients();
  static_cast<void>(layer(x, tape));
  return layer.backward(dy, tape, gradients);
}
"""
CPU = CALL.format(door="mha", backend="mha::Cpu")
UNITS = {  # name → (text, flags)
    "#include <Eigen/Core>": ("#include <Eigen/Core>\n", []),
    "#include <mha/mha.hpp>": ("#include <mha/mha.hpp>\n", []),
    "layer(x), header-only": (CPU, []),
    "layer(x), mha::compiled": (CPU, ["-DMHA_COMPILED"]),
    "forward and backward, header-only": (TRAIN, []),
    "forward and backward, mha::compiled": (TRAIN, ["-DMHA_COMPILED"]),
    "layer(x) on EigenCpu": (CALL.format(door="eigen", backend="mha::EigenCpu"), []),
}


def seconds(command):
    """Of processor time, the compiler's own processes included."""
    child = subprocess.Popen(command)
    _, status, usage = os.wait4(child.pid, 0)
    if status != 0:
        sys.exit("compile_time.py: this failed: " + " ".join(command))
    return usage.ru_utime + usage.ru_stime


def text_bytes(path):
    lines = subprocess.run(["size", path], capture_output=True, text=True, check=True).stdout.splitlines()
    return int(re.match(r"\s*(\d+)", lines[1])[1])


def print_commands():
    """Wall-clock seconds of the README's commands, each in a fresh clone; packages that they install count too."""
    print("\n| command, fresh clone | seconds |\n|---|---:|")
    for command in ("demo", "test"):
        with tempfile.TemporaryDirectory() as folder:
            clone = str(Path(folder, "mha"))
            subprocess.run(["git", "clone", "-q", str(ROOT), clone], check=True)
            begin = time.monotonic()
            done = subprocess.run(["cmake/mha.sh", command], cwd=clone, stdout=subprocess.DEVNULL)
            taken = f"{time.monotonic() - begin:.0f}"
            print(f"| `cmake/mha.sh {command}` | {taken if done.returncode == 0 else 'failed after ' + taken} |", flush=True)
    lines = sum(len(path.read_text().splitlines()) for path in INCLUDE.rglob("*") if path.is_file())
    print(f"\n{lines} lines in include/.")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("--eigen", default="/usr/include/eigen3")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--commands", action="store_true", help="time the README's commands too: many minutes")
    options = parser.parse_args()
    if options.repeat < 1:
        parser.error(f"--repeat is {options.repeat}, expected 1 or more")
    taken = {name: [] for name in UNITS}
    size = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.repeat):
            for name, (text, flags) in UNITS.items():
                source, output = Path(folder, "unit.cpp"), Path(folder, "unit.o")
                source.write_text(text)
                command = [options.compiler, "-std=c++20", "-O2", *flags, "-I", INCLUDE, "-isystem", options.eigen]
                taken[name].append(seconds([str(part) for part in [*command, "-c", source, "-o", output]]))
                size[name] = text_bytes(output)
    eigen = statistics.median(taken["#include <Eigen/Core>"])
    print("| unit | seconds | of Eigen | text, kB |\n|---|---:|---:|---:|")
    for name, times in taken.items():
        median = statistics.median(times)
        print(f"| `{name}` | {median:.2f} | {median / eigen:.1f} | {size[name] / 1000:.0f} |", flush=True)
    if options.commands:
        print_commands()


if __name__ == "__main__":
    main()
