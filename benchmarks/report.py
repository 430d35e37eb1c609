# SPDX-License-Identifier: Apache-2.0
"""Builds the benchmarks, measures this machine piece by piece and writes its results page and pictures.

    python3 benchmarks/report.py intel-emerald-rapids

writes benchmarks/results/intel-emerald-rapids.json after every piece, so that an interrupted run goes on where it was,
then intel-emerald-rapids.md (from the marker on; what stands above it is written by hand) and the folder of pictures
that the README shows. A piece takes two minutes at most, all of them about 40.

    --cuda                  measures the GPU, for a page such as nvidia-h200; where there is none it says so and writes
                            nothing
    --under 'nice -n -5'    runs each piece under that command, such as one that keeps others off the machine
    --piece forward stages  measures these again; --again all of them; --list names them
    --no-build              with what build/release holds, and what PyTorch compiled before (ten minutes, once)
    --pages                 measures nothing: page and pictures from the JSON

Needs Python 3.9 and nothing else; peers/compare.py names what it compares with.
"""

import argparse
import ctypes
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


def bench(name, filter, seconds):
    return (name + "_bench", ["--benchmark_filter=" + filter] if filter else [], seconds)


def peers(group, threads, seconds, filter=""):
    chosen = ["--group", group, *(["--filter", filter] if filter else []), "--threads", threads]
    return ("peers/compare.py", chosen, seconds)


def generation(threads, seconds, filter):
    return ("peers/generation.py", ["--threads", threads, "--filter", filter], seconds)


# name → (program, arguments, about how many seconds), each short enough to be run alone. Threads 0 are all.
PIECES = {
    "forward": bench("forward", "", 40),
    "attention-64": bench("attention", "^attention/D:64/", 25),
    "attention-128": bench("attention", "^attention/D:128/", 30),
    "attention-threads": bench("attention", "^threads", 20),
    "layer": bench("layer", "", 40),
    "stages": bench("stages", "", 30),
    "eigen": bench("eigen", "", 20),
    "eigen-native": bench("eigen_native", "", 15),
    "rows": bench("rows", "", 5),
    "epilogue-768": bench("epilogue", "^epilogue/512 × 768", 20),
    "epilogue-2048": bench("epilogue", "^epilogue/.* × 2048", 60),
    "visible": bench("visible", "", 40),
    "backward-float": bench("backward", "^(float|double|bfloat16)/", 40),
    "backward-others": bench("backward", "^(window|trained|all)", 50),
    "backward-systolic": bench("backward", "^Systolic/", 20),
    "train": bench("train", "", 20),
    "decode-4k": bench("decode", "Lk:4096/", 60),
    "decode-32k": bench("decode", "Lk:32768/", 60),
    "cache": bench("cache", "^(books|prompt|mixture|generation)", 40),
    "cache-storage": bench("cache", "^(storage|ring)/", 40),
    "sources": bench("sources", "", 40),
    "uneven-prompts": bench("uneven", "^prompt/", 40),
    "uneven-tokens": bench("uneven", "^tokens/", 40),
    "systolic-decode": bench("systolic_decode", "", 30),
    "weights": bench("weights", "", 80),
    "projection": bench("projection", "", 50),
    "systolic": bench("systolic", "", 55),
    "systolic-attention": bench("systolic_attention", "", 15),
    "peers-attention-64-1": peers("attention", "1", 55, "D64,"),
    "peers-attention-128-1": peers("attention", "1", 80, "D128,"),
    "peers-masks-1": peers("masks", "1", 30),
    "peers-bfloat16-1": peers("bfloat16", "1", 30),
    "peers-short-1": peers("short", "1", 20),
    "peers-uneven-1": peers("uneven", "1", 40),
    "peers-layer-1": peers("layer", "1", 20),
    "peers-training-1": peers("training", "1", 30),
    "peers-backward-64-1": peers("backward", "1", 60, "D64,"),
    "peers-backward-128-1": peers("backward", "1", 80, "D128,"),
    "peers-train-1": ("peers/train_torch.py", ["--threads", "1"], 40),
    "peers-linear-1": peers("linear", "1", 10),
    "peers-model-1": peers("model", "1", 60),
    "peers-checkpoints-1": ("peers/checkpoints.py", ["--threads", "1"], 90),
    "peers-generation-1": generation("1", 90, "float"),
    "peers-generation-int-1": generation("1", 55, "int"),
    "peers-attention-all": peers("attention", "0", 30, "L2048/"),
    "peers-masks-all": peers("masks", "0", 30),
    "peers-bfloat16-all": peers("bfloat16", "0", 25),
    "peers-short-all": peers("short", "0", 20),
    "peers-uneven-all": peers("uneven", "0", 30),
    "peers-layer-all": peers("layer", "0", 20),
    "peers-training-all": peers("training", "0", 25),
    "peers-backward-all": peers("backward", "0", 40, "L2048"),
    "peers-train-all": ("peers/train_torch.py", ["--threads", "0"], 30),
    "peers-linear-all": peers("linear", "0", 10),
    "peers-model-all": peers("model", "0", 40),
    "peers-checkpoints-all": ("peers/checkpoints.py", ["--threads", "0"], 60),
    "peers-generation-all": generation("0", 65, "float"),
    "peers-generation-int-all": generation("0", 40, "int"),
}
# Those of a page made with --cuda.
CUDA_PIECES = {
    "cuda-card": bench("cuda", "^limit/", 10),
    "cuda-forward-64": bench("cuda", "^forward/.*/D:64/", 40),
    "cuda-forward-128": bench("cuda", "^forward/.*/D:128/", 50),
    "cuda-forward-256": bench("cuda", "^forward/.*/D:256/", 70),
    "cuda-projection": bench("cuda", "^projection/", 20),
    "cuda-layer": bench("cuda", "^layer/", 40),
    "cuda-short": bench("cuda", "^short/", 60),
    "cuda-peers-attention-64": ("peers/cuda_compare.py", ["--group", "attention", "--filter", "D64,"], 60),
    "cuda-peers-attention-128": ("peers/cuda_compare.py", ["--group", "attention", "--filter", "D128,"], 70),
    "cuda-peers-attention-256": ("peers/cuda_compare.py", ["--group", "attention", "--filter", "D256,"], 90),
    "cuda-peers-masks": ("peers/cuda_compare.py", ["--group", "masks"], 60),
    "cuda-peers-backward": ("peers/cuda_compare.py", ["--group", "backward"], 60),
    "cuda-peers-short": ("peers/cuda_compare.py", ["--group", "short"], 60),
}
ALL_PIECES = {**PIECES, **CUDA_PIECES}


def missing_gpu():
    """Why the GPU cannot be measured; empty if it can."""
    try:
        driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    except OSError:
        return "there is no CUDA driver"
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return "there is no CUDA device"
    return ""


def architecture():
    """Hopper's own instructions are in the code for 9.0a alone, which CMake's `native` does not name."""
    asked = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    capability = subprocess.run(asked, capture_output=True, text=True).stdout.splitlines()
    return "90a-real" if capability and capability[0] == "9.0" else "native"


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
            found = next(build.rglob(program), None)
            if found is None:
                raise RuntimeError("no %s under %s" % (program, build))
            command = [str(found), *outputs, *arguments]
        begin = time.time()
        done = subprocess.run(shlex.split(under) + command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError("%s ended with %d\n%s" % (program, done.returncode, done.stderr[-2000:]))
        rows = json.loads(out.read_text())["rows"] if program.endswith(".py") else counters(out)
        seconds = time.time() - begin
    lines = done.stdout.splitlines()
    kept = [line for i, line in enumerate(lines) if line.startswith(("|", "- missing", "- kernel")) or not line]
    machine = next((line for line in lines if " threads, kernels " in line or " multiprocessors at " in line), "")
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


def write_page(run, path):
    text = path.read_text() if path.exists() else "# %s\n\n%s\n" % (path.stem, MARKER)
    above = text.split(MARKER)[0] if MARKER in text else text.rstrip() + "\n\n"
    run["name"] = above.split("\n")[0].lstrip("# ")
    pictures = plot.draw(run, path.with_suffix(""))
    lines = ["", "Regenerated by `python3 benchmarks/report.py %s`." % path.stem, ""]
    lines += ["![%s](%s/%s)\n" % (Path(p).stem, path.stem, p) for p in pictures]
    title = None
    for piece in (run["pieces"][name] for name in ALL_PIECES if name in run["pieces"]):
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
    parser.add_argument("--cuda", action="store_true", help="measure the GPU instead of the processor")
    parser.add_argument("--under", default="", help="a command that each piece runs under")
    parser.add_argument("--piece", nargs="*", default=[], help="measure these, again if need be")
    parser.add_argument("--again", action="store_true", help="measure what is there already, too")
    parser.add_argument("--no-build", action="store_true")
    parser.add_argument("--pages", action="store_true", help="measure nothing")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()

    pieces = CUDA_PIECES if options.cuda else PIECES
    for name in options.piece:
        if name not in pieces:
            parser.error("there is no piece '%s': --list names them" % name)
    building = not (options.no_build or options.pages or options.list)
    if options.cuda and not (options.pages or options.list) and missing_gpu():
        sys.exit("report.py: nothing is measured: " + missing_gpu())
    if building and options.cuda:
        for_this_card = "-DCMAKE_CUDA_ARCHITECTURES=" + architecture()
        subprocess.run(["cmake", "--preset", "release", for_this_card], cwd=HERE.parent, check=True)
        subprocess.run(["cmake", "--build", str(options.build), "--target", "cuda_measured"], check=True)
    elif building:
        subprocess.run(["cmake", "--preset", "release"], cwd=HERE.parent, check=True)
        subprocess.run(["cmake", "--build", str(options.build), "--target", "measured"], check=True)
        compiled = ["--peers", "FlexAttention|torch.compile", "--check", "--build", str(options.build)]
        groups = ["--group", "attention", "masks", "bfloat16", "uneven", "model"]
        subprocess.run([sys.executable, str(HERE / "peers/compare.py"), *groups, *compiled])
        subprocess.run([sys.executable, str(HERE / "peers/checkpoints.py"), *compiled])
    if options.list:
        for name, (_, _, seconds) in pieces.items():
            print("%-24s about %3d s" % (name, seconds))
        print("%-24s about %3d minutes" % ("all", round(sum(s for _, _, s in pieces.values()) / 60)))
        return
    page = HERE / "results" / (options.machine + ".md")
    data = page.with_suffix(".json")
    run = json.loads(data.read_text()) if data.exists() else {"name": options.machine, "pieces": {}}
    run["pieces"] = {name: run["pieces"][name] for name in ALL_PIECES if name in run["pieces"]}
    failed = []
    for name, (program, arguments, _) in pieces.items():
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
        write_page(run, page)
        data.write_text(json.dumps(run, indent=1, ensure_ascii=False) + "\n")
    write_page(run, page)
    if failed:
        sys.exit("not measured: " + ", ".join(failed))


if __name__ == "__main__":
    main()
