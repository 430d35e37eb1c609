# SPDX-License-Identifier: Apache-2.0
"""Whole models beside PyTorch's, OpenVINO's and ONNX Runtime's, by one checkpoint of random weights each, in turns.

Ours are the models of examples/models, theirs Hugging Face's classes; all compute in float32. Weights, ids and pixels are
random, the lengths of the embedded texts are those of the paragraphs of README.md and examples/*.md, twice over, 32 in
a batch, the longest first; PyTorch and the others pad a batch to its longest text, ours packs it.

Compares   pip install torch==2.15.0 transformers==5.24.0 (the versions measured), openvino==2026.4.1, and
           onnxruntime==1.31.1 onnx==1.23.2 onnxscript for BERT. torch.compile wants a C++ compiler and minutes.
Needs      the library mha_checkpoint_peer, which CMake builds with the benchmarks where it builds examples/models
Usage      python3 benchmarks/peers/checkpoints.py [--threads 1] [--filter REGEX] [--peers REGEX] [--check] [--json FILE]
"""

import argparse
import copy
import ctypes
import json
import os
import re
import tempfile
import time
import warnings
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_void_p
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
OURS = "mha"


def threads_asked(about, library):
    """Before anything of ours or theirs is loaded, which start their threads then."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--build", default="build/release", help="where the library %s is, in any folder below" % library)
    parser.add_argument("--threads", type=int, default=0, help="all of them (0) if not given")
    parser.add_argument("--filter", default="", help="a regular expression that the names of the cases match")
    parser.add_argument("--peers", default="", help="a regular expression for the names of those beside ours")
    parser.add_argument("--check", action="store_true", help="compute and check, time nothing")
    parser.add_argument("--json", help="write the rows there")
    options = parser.parse_args()
    options.threads = options.threads or len(os.sched_getaffinity(0))
    os.environ["MHA_NUM_THREADS"] = str(options.threads)
    return options


if __name__ == "__main__":
    OPTIONS = threads_asked(__doc__, "mha_checkpoint_peer")

import torch
import transformers
from torch import nn

import bound
import turns
from compare import BUDGET, ROUNDS, SAMPLE, Runner
from participants import Onnx
from turns import Missing

torch.set_grad_enabled(False)
warnings.filterwarnings("ignore")  # of their exporters
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


# ---- what is computed ----


def products(module, without=()):
    """How many numbers the matrices of its products have."""
    kinds = (nn.Linear, nn.Conv2d, transformers.pytorch_utils.Conv1D)
    return sum(m.weight.numel() for n, m in module.named_modules() if isinstance(m, kinds) and not n.endswith(without))


def ids(count, vocabulary, seed=1):
    return np.random.default_rng(seed).integers(1000, vocabulary, count).astype(np.int32)


class Case:
    """A model, its input and what is read of its output."""

    unit = "GFLOP/s"
    tolerance = 1e-4  # of the largest value

    def __init__(self, name, text):
        self.name, self.text = name, text

    def make(self, config, kind):
        torch.manual_seed(3)
        self.model = kind(config).eval()
        return self.model


class Embedding(Case):
    """MiniLM's sizes: 6 layers, width 384, 12 heads. A text's vector is the mean of its rows, of length 1."""

    family = "bert"

    def __init__(self, name, text, lengths, batch):
        super().__init__(name, text)
        model = self.make(
            transformers.BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536),
            lambda config: transformers.BertModel(config, add_pooling_layer=False))  # fmt: skip
        lengths = sorted(lengths, reverse=True)
        texts = [ids(n, model.config.vocab_size, seed) for seed, n in enumerate(lengths)]
        self.batches = [texts[i : i + batch] for i in range(0, len(texts), batch)]
        self.tokens = sum(lengths)
        self.gflop = 1e-9 * sum(2.0 * products(model) * n + 6 * 4.0 * 384 * n * n for n in lengths)

    def inputs(self):
        return [{"ids": np.concatenate(texts), "lengths": [len(t) for t in texts]} for texts in self.batches]

    def padded(self):
        """(ids, mask) of each batch, (texts, longest)."""
        for texts in self.batches:
            longest = max(map(len, texts))
            rows = np.zeros((len(texts), longest), np.int64)
            mask = np.zeros((len(texts), longest), np.int64)
            for row, shown, text in zip(rows, mask, texts):
                row[: len(text)], shown[: len(text)] = text, 1
            yield rows, mask

    @staticmethod
    def pooled(x, mask):
        """The mean of the rows of each text, of length 1."""
        mean = (x * mask[..., None].to(x.dtype)).sum(1)
        return mean / mean.norm(dim=1, keepdim=True)

    def theirs(self, model):
        """Its calls, each of which returns what is compared."""
        for rows, mask in self.padded():
            rows, mask = torch.from_numpy(rows), torch.from_numpy(mask)
            yield lambda rows=rows, mask=mask: self.pooled(
                model(input_ids=rows, attention_mask=mask).last_hidden_state, mask)  # fmt: skip


class Decoding(Case):
    """The logits of each token of a text."""

    def __init__(self, name, text, family, config, kind, length):
        super().__init__(name, text)
        self.family, self.tokens = family, length
        model = self.make(config, kind)
        self.ids = ids(length, config.vocab_size)
        layers, width = config.num_hidden_layers, config.hidden_size
        self.gflop = 1e-9 * (2.0 * products(model) * length + layers * 4.0 * width * length * (length + 1) / 2)

    def inputs(self):
        return [{"ids": self.ids, "lengths": [len(self.ids)]}]

    def theirs(self, model):
        rows = torch.from_numpy(self.ids.astype(np.int64))[None]
        yield lambda: model(input_ids=rows, use_cache=False).logits[0]


class Translating(Case):
    """T5 small: a source through the encoder, and the logits of each token of a target."""

    family = "t5"

    def __init__(self, name, text, source, target):
        super().__init__(name, text)
        config = transformers.T5Config(tie_word_embeddings=True)
        model = self.make(config, transformers.T5ForConditionalGeneration)
        self.tokens = source + target
        self.source, self.target = ids(source, config.vocab_size, 1), ids(target, config.vocab_size, 2)
        of_memory = ("EncDecAttention.k", "EncDecAttention.v")  # are of the source's rows
        memory = products(model.decoder) - products(model.decoder, of_memory)
        inner, layers = config.num_heads * config.d_kv, config.num_layers
        pairs = source * source + target * (target + 1) / 2 + target * source
        self.gflop = 1e-9 * (2.0 * source * (products(model.encoder) + memory)
                             + 2.0 * target * (products(model.decoder, of_memory) + model.lm_head.weight.numel())
                             + layers * 4.0 * inner * pairs)  # fmt: skip

    def inputs(self):
        return [{"ids": self.source, "lengths": [len(self.source)], "target": self.target}]

    def theirs(self, model):
        source, target = (torch.from_numpy(a.astype(np.int64))[None] for a in (self.source, self.target))
        yield lambda: model(input_ids=source, decoder_input_ids=target, use_cache=False).logits[0]


class Seeing(Case):
    """ViT-B/16: the logits of the classes of one image."""

    family = "vit"

    def __init__(self, name, text):
        super().__init__(name, text)
        config = transformers.ViTConfig(num_labels=1000)
        model = self.make(config, transformers.ViTForImageClassification)
        self.pixels = np.random.default_rng(5).standard_normal((3, 224, 224), np.float32)
        self.tokens = rows = 197
        self.gflop = 1e-9 * (2.0 * products(model.vit) * rows + 12 * 4.0 * 768 * rows * rows)

    def inputs(self):
        return [{"pixels": self.pixels}]

    def theirs(self, model):
        pixels = torch.from_numpy(self.pixels)[None].to(next(model.parameters()).dtype)
        yield lambda: model(pixel_values=pixels).logits


def paragraphs():
    """Their lengths in tokens, of which each word and each other sign is one, 256 at most."""
    pages = [ROOT / "README.md", *sorted((ROOT / "examples").glob("*.md"))]
    texts = [text for page in pages for text in re.split(r"\n\s*\n", page.read_text())]
    return [min(256, 2 + n) for n in (len(re.findall(r"\w+|[^\w\s]", t)) for t in texts) if n > 0]


def cases():
    """By name; each makes its model when it is called."""
    gpt2 = transformers.GPT2Config()
    llama = transformers.LlamaConfig(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16, num_key_value_heads=4,
        max_position_embeddings=2048)  # fmt: skip
    readme = 2 * paragraphs()
    return {
        "MiniLM/readme": lambda name: Embedding(name, "MiniLM, %d texts, 32 at once" % len(readme), readme, 32),
        "MiniLM/8": lambda name: Embedding(name, "MiniLM, 1 text of 8 tokens", [8], 1),
        "GPT-2/512": lambda name: Decoding(
            name, "GPT-2 small, 512 tokens", "gpt2", gpt2, transformers.GPT2LMHeadModel, 512),
        "LLaMA/512": lambda name: Decoding(
            name, "LLaMA, 8 layers of width 1024, 16/4 heads, 512 tokens", "llama", llama,
            transformers.LlamaForCausalLM, 512),
        "T5/256": lambda name: Translating(name, "T5 small, 256 tokens to 64", 256, 64),
        "ViT-B": lambda name: Seeing(name, "ViT-B/16, one image of 224 × 224"),
    }  # fmt: skip


# ---- ours, through the library of checkpoint_ours.cpp ----


class Input(ctypes.Structure):
    _fields_ = [
        ("ids", c_void_p), ("offsets", c_void_p), ("texts", c_int), ("target", c_void_p), ("target_length", c_int),
        ("pixels", c_void_p), ("channels", c_int), ("height", c_int), ("width", c_int),
    ]  # fmt: skip

    def __init__(self, ids=None, lengths=(), target=None, pixels=None):
        super().__init__()
        self.kept = [ids, target, pixels, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)]
        self.ids, self.target, self.pixels, self.offsets = (None if a is None else a.ctypes.data for a in self.kept)
        self.texts, self.target_length = len(lengths), 0 if target is None else len(target)
        if pixels is not None:
            self.channels, self.height, self.width = pixels.shape


class Ours:
    def __init__(self, path):
        self.peer = bound.functions(path, "peer_model", (
            ("machine", c_char_p, []),
            ("peak", c_double, [c_int]),
            ("begin", c_char_p, [c_void_p, c_char_p, c_char_p]),
            ("run", c_char_p, [c_void_p, c_void_p]),
            ("result", POINTER(c_float), [c_void_p, POINTER(c_int), POINTER(c_int)]),
            ("end", None, [c_void_p]),
        ))  # fmt: skip
        self.model = None

    def prepare(self, case, data, threads):
        self.end()
        peer, model = self.peer, c_void_p()
        bound.checked(peer.begin(ctypes.byref(model), case.family.encode(), str(data["folder"]).encode()))
        self.model = model
        inputs = [Input(**given) for given in case.inputs()]

        def run():
            for each in inputs:
                bound.checked(peer.run(model, ctypes.byref(each)))

        def read():
            parts = []
            for each in inputs:
                bound.checked(peer.run(model, ctypes.byref(each)))
                rows, columns = c_int(), c_int()
                values = peer.result(model, ctypes.byref(rows), ctypes.byref(columns))
                parts.append(np.ctypeslib.as_array(values, (rows.value, columns.value)).copy())
            return np.concatenate(parts)

        return run, read

    def end(self):
        if self.model is not None:
            self.peer.end(self.model)
        self.model = None


# ---- theirs ----


class Torch:
    """Hugging Face's model, whose attention is PyTorch's scaled_dot_product_attention."""

    def prepare(self, case, data, threads):
        torch.set_num_threads(threads)
        calls = list(case.theirs(self.model(case)))
        return lambda: [f() for f in calls], lambda: torch.cat([f() for f in calls]).numpy()

    def model(self, case):
        return case.model


class TorchCompiled(Torch):
    """torch.compile of the same. The batches of many texts differ in length, so that it compiles for any."""

    def model(self, case):
        torch._dynamo.reset()
        return torch.compile(case.model, dynamic=len(case.inputs()) > 1)


class OpenVino:
    """The same through OpenVINO's converter, told to compute in float32, one stream."""

    clock = time.process_time  # on one thread too it computes in a thread of its own

    def __init__(self):
        try:
            import openvino
        except ImportError:
            raise Missing("openvino is not installed")
        self.openvino = openvino

    def prepare(self, case, data, threads):
        if case.family not in ("bert", "vit"):
            raise Missing("measured for BERT and ViT")
        if case.family == "bert":
            given = [dict(zip(("input_ids", "attention_mask"), arrays)) for arrays in case.padded()]
        else:
            given = [{"pixel_values": case.pixels[None]}]
        example = {n: torch.from_numpy(a) for n, a in given[0].items()}
        options = {
            "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1,
            "ENABLE_CPU_PINNING": False,
        }  # fmt: skip
        converted = self.openvino.convert_model(Plain(case.model), example_input=example)
        request = self.openvino.Core().compile_model(converted, "CPU", options).create_infer_request()
        calls = [lambda g=g: torch.from_numpy(request.infer(g, share_inputs=True)[0]) for g in given]
        return pooling(case, given, calls)


class OnnxRuntime:
    """BERT exported by PyTorch, its operators fused by ONNX Runtime's optimizer."""

    rest = Onnx.rest

    def __init__(self):
        try:
            import onnxruntime
            import onnxscript  # noqa: F401, which PyTorch's exporter needs
            from onnxruntime.transformers import optimizer
        except ImportError as missing:
            raise Missing("%s is not installed" % missing.name)
        self.onnxruntime, self.optimizer = onnxruntime, optimizer

    def prepare(self, case, data, threads):
        if case.family != "bert":
            raise Missing("measured for BERT")
        given = [dict(zip(("input_ids", "attention_mask"), arrays)) for arrays in case.padded()]
        example = {n: torch.from_numpy(np.concatenate([a, a])) for n, a in given[0].items()}  # no axis of one
        axes = {n: {0: torch.export.Dim("texts"), 1: torch.export.Dim("length", max=512)} for n in example}
        path = str(data["folder"] / "model.onnx")
        torch.onnx.export(Plain(case.model), (), path, kwargs=example, dynamic_shapes=axes, dynamo=True, verbose=False)
        fused = self.optimizer.optimize_model(path, "bert", num_heads=12, hidden_size=384)
        fused.save_model_to_file(path)
        options = self.onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 3
        session = self.onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        calls = [lambda g=g: torch.from_numpy(session.run(None, g)[0]) for g in given]
        return pooling(case, given, calls)


class Plain(nn.Module):
    """Hugging Face's model with one tensor as its result."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids=None, attention_mask=None, pixel_values=None):
        if pixel_values is not None:
            return self.model(pixel_values=pixel_values).logits
        return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


def pooling(case, given, calls):
    """(run, read) of calls, those of embeddings with the mean of the rows."""
    if case.family == "bert":
        masks = [torch.from_numpy(g["attention_mask"]) for g in given]
        calls = [lambda f=f, m=m: case.pooled(f(), m) for f, m in zip(calls, masks)]
    return lambda: [f() for f in calls], lambda: torch.cat([f() for f in calls]).numpy()


PEERS = {"PyTorch eager": Torch, "torch.compile": TorchCompiled, "OpenVINO": OpenVino, "ONNX Runtime": OnnxRuntime}


# ---- turns ----


def measure(case, threads, present, check):
    with tempfile.TemporaryDirectory() as folder:
        case.model.save_pretrained(folder)
        expected = torch.cat([f() for f in case.theirs(copy.deepcopy(case.model).double())]).numpy()

        def prepare(participant):
            runner = Runner(participant, case, {"folder": Path(folder)}, threads)
            return runner, float(np.abs(runner.read() - expected).max() / np.abs(expected).max())

        runners, errors, missing = turns.ready(present, prepare, case.tolerance)
        row = {"group": "checkpoints", "name": case.name, "model": case.text, "threads": threads, "unit": case.unit,
               "errors": errors, "missing": missing}  # fmt: skip
        if check or OURS not in runners:
            return row
        rounds = int(min(ROUNDS, max(3, 3 * BUDGET / sum(max(SAMPLE, r.once) for r in runners.values()))))
        peak = turns.sample(runners, rounds, lambda: present[OURS].peer.peak(threads))
    row.update(rounds=rounds, peak=peak, results={})
    for name, (seconds, ratio) in turns.medians(runners, OURS).items():
        row["results"][name] = {
            "rate": case.gflop / seconds, "ratio": ratio, "ms": 1e3 * seconds, "tokens": case.tokens / seconds}  # fmt: skip
    return row


def print_rows(rows):
    def cells(row):
        ours = row["results"][OURS]
        of_peak = 100 * ours["rate"] / row["peak"]
        numbers = ["%.2f" % ours["ms"], "%.0f" % ours["tokens"], "%.1f" % ours["rate"], "%.0f" % of_peak]
        return [row["model"], str(row["threads"]), *numbers]

    numbers = ["ours ms", "ours tokens/s", "ours GFLOP/s", "% of peak"]
    turns.print_table(rows, ["model", "threads"], numbers, PEERS, cells)


def main(options):
    found = sorted(Path(options.build).rglob("libmha_checkpoint_peer.*"))
    if not found:
        raise SystemExit("checkpoints.py: no library mha_checkpoint_peer under %s: build the benchmarks first" % options.build)
    present, absent = {OURS: Ours(found[0])}, {}
    for name, kind in PEERS.items():
        if re.search(options.peers, name):
            try:
                present[name] = kind()
            except Missing as why:
                absent[name] = str(why)
    machine = present[OURS].peer.machine().decode()
    print("%s; torch %s; transformers %s" % (machine, torch.__version__, transformers.__version__), flush=True)
    rows = []
    for name, make in cases().items():
        if not re.search(options.filter, name):
            continue
        rows.append(measure(make(name), options.threads, present, options.check))
        print(name, "threads:%d" % options.threads, turns.in_words(rows[-1], OURS, options.check), flush=True)
    if not options.check:
        print_rows(rows)
    print()
    turns.print_missing(rows, lambda row, why: row["name"], absent)
    if options.json:
        versions = {m.__name__: m.__version__ for m in (torch, transformers)}
        Path(options.json).write_text(json.dumps({"versions": versions, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main(OPTIONS)
