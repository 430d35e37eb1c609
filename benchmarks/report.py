# SPDX-License-Identifier: Apache-2.0
"""Builds the benchmarks, measures this machine piece by piece and writes its results page and pictures.

    python benchmarks/report.py intel-emerald-rapids

writes benchmarks/results/intel-emerald-rapids.json after every piece, so that an interrupted run goes on where it was,
then intel-emerald-rapids.md (from the marker on; what stands above it is written by hand) and the folder of pictures
that the README shows. A piece takes a minute or two; all of them less than 25.

    --under 'nice -n -5'    runs each piece under that command, such as one that keeps others off the machine
    --piece forward stages  measures these again; --again all of them; --list names them
    --no-build              with what build/release holds, and what FlexAttention compiled before (ten minutes, once)
    --pages                 measures nothing: page and pictures from the JSON

Needs Python 3.9 and nothing else; peers/compare.py names what it compares with.
"""

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import plot

HERE = Path(__file__).resolve().parent
MARKER = "<!-- From here on written by report.py. -->"
THREADS = "all"  # stands for the number of threads in the names of pieces


def pieces(build):
    """name → (program, arguments), each short enough to be run alone."""
    found = {
        "forward": ("forward_bench", []),
        "attention-64": ("attention_bench", ["--benchmark_filter=^attention/D:64/"]),
        "attention-128": ("attention_bench", ["--benchmark_filter=^attention/D:128/"]),
        "attention-threads": ("attention_bench", ["--benchmark_filter=^threads"]),
        "layer": ("layer_bench", []),
        "stages": ("stages_bench", []),
    }
    for program in sorted(build.rglob("*_bench")):
        if program.is_file() and program.name not in [p for p, _ in found.values()]:
            found[program.stem.removesuffix("_bench")] = (program.name, [])
    found = {n: (p, a) for n, (p, a) in found.items() if any(build.rglob(p))}
    for threads in (["1"], []):
        end = "-1" if threads else "-" + THREADS
        threads = ["--threads", *(threads or ["0"])]
        for dim in ("64", "128"):
            found["peers-attention-" + dim + end] = (
                "peers/compare.py",
                ["--group", "attention", "--filter", "D%s," % dim, *threads],
            )
        for group in ("masks", "bfloat16", "short", "layer", "linear"):
            found["peers-" + group + end] = ("peers/compare.py", ["--group", group, *threads])
    return found


def rounded(value):
    """Four digits are more than a measurement has."""
    if isinstance(value, float):
        return float("%.4g" % value)
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    return [rounded(v) for v in value] if isinstance(value, list) else value


def counters(path):
    """The counters of a Google Benchmark's JSON, by benchmark."""
    usual = {"family_index", "per_family_instance_index", "repetitions", "repetition_index", "threads", "iterations",
             "real_time", "cpu_time"}  # fmt: skip
    rows = []
    for entry in json.loads(path.read_text() or "{}").get("benchmarks", []):
        if entry.get("run_type") == "aggregate" or entry.get("error_occurred"):
            continue
        numbers = {k: v for k, v in entry.items() if isinstance(v, (int, float)) and k not in usual}
        rows.append({"name": entry["name"].split("/iterations:")[0], **numbers})
    return rows


def measure(program, arguments, build, under):
    """One piece: its rows, the Markdown that it printed, and its command without paths."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        out.touch()
        if program.endswith(".py"):
            command = [sys.executable, str(HERE / program), "--build", str(build), "--json", str(out), *arguments]
        else:
            outputs = ["--benchmark_out=%s" % out, "--benchmark_out_format=json"]
            command = [str(next(build.rglob(program))), *outputs, *arguments]
        begin = time.time()
        done = subprocess.run(shlex.split(under) + command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError("%s ended with %d\n%s" % (program, done.returncode, done.stderr[-2000:]))
        rows = json.loads(out.read_text())["rows"] if program.endswith(".py") else counters(out)
        seconds = time.time() - begin
    lines = done.stdout.splitlines()
    kept = [line for i, line in enumerate(lines) if line.startswith(("|", "- missing")) or not line]
    machine = next((line for line in lines if " threads, kernels " in line), "")
    wrong = re.findall(r"^.*ERROR OCCURRED.*$", done.stdout + done.stderr, re.M)
    return {
        "command": " ".join([program, *map(shlex.quote, arguments)]),
        "machine": machine,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "seconds": round(seconds),
        "wrong": wrong,
        "text": re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip(),
        "rows": rounded(rows),
    }


def write_page(run, path, order):
    text = path.read_text() if path.exists() else "# %s\n\n%s\n" % (path.stem, MARKER)
    above = text.split(MARKER)[0] if MARKER in text else text.rstrip() + "\n\n"
    run["name"] = above.split("\n")[0].lstrip("# ")
    pictures = plot.draw(run, path.with_suffix(""))
    lines = ["", "Regenerated by `python benchmarks/report.py %s`." % path.stem, ""]
    lines += ["![%s](%s/%s)\n" % (Path(p).stem, path.stem, p) for p in pictures]
    title = None
    for name in sorted(run["pieces"], key=lambda n: order.index(n) if n in order else len(order)):
        piece = run["pieces"][name]
        program = piece["command"].split()[0]
        if program != title:
            lines += ["## " + program, "", piece["machine"] + ".", ""]
            title = program
        lines += ["`%s`, %s" % (piece["command"], piece["date"]), "", piece["text"], ""]
        lines += ["Wrong results, not measured: " + w for w in piece["wrong"]]
    path.write_text(above + MARKER + "\n" + "\n".join(lines).rstrip() + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("machine", help="name of the page, such as intel-emerald-rapids")
    parser.add_argument("--build", type=Path, default=HERE.parent / "build" / "release")
    parser.add_argument("--under", default="", help="a command that each piece runs under")
    parser.add_argument("--piece", nargs="*", default=[], help="measure these, again if need be")
    parser.add_argument("--again", action="store_true", help="measure what is there already, too")
    parser.add_argument("--no-build", action="store_true")
    parser.add_argument("--pages", action="store_true", help="measure nothing")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()

    if not (options.no_build or options.pages or options.list):
        subprocess.run(["cmake", "--preset", "release"], cwd=HERE.parent, check=True)
        subprocess.run(["cmake", "--build", str(options.build), "--target", "measured"], check=True)
        compile_flex = ["--group", "attention", "masks", "--peers", "FlexAttention", "--check"]
        subprocess.run([sys.executable, str(HERE / "peers/compare.py"), "--build", str(options.build), *compile_flex])
    every = pieces(options.build)
    if options.list:
        print("\n".join(every))
        return
    page = HERE / "results" / (options.machine + ".md")
    data = page.with_suffix(".json")
    run = json.loads(data.read_text()) if data.exists() else {"name": options.machine, "pieces": {}}
    failed = []
    for name, (program, arguments) in every.items():
        if options.pages or (options.piece and name not in options.piece):
            continue
        if name in run["pieces"] and not (options.again or name in options.piece):
            continue
        print(name, end=" ", flush=True)
        try:
            run["pieces"][name] = measure(program, arguments, options.build.resolve(), options.under)
            print("%d s" % run["pieces"][name]["seconds"], flush=True)
        except RuntimeError as failure:
            failed.append(name)
            print("failed:", failure, flush=True)
        data.parent.mkdir(exist_ok=True)
        write_page(run, page, list(every))
        data.write_text(json.dumps(run, indent=1, ensure_ascii=False) + "\n")
    write_page(run, page, list(every))
    if failed:
        sys.exit("not measured: " + ", ".join(failed))


if __name__ == "__main__":
    main()
