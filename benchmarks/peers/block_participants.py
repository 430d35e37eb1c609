# SPDX-License-Identifier: Apache-2.0
"""Who takes part in the group `model` of compare.py: whole blocks, all by the same weights. As participants.py; who has
stages() says after prepare() what each stage of one call takes, in seconds by the names in blocks.STAGES."""

import ctypes
import time
from ctypes import c_char_p, c_double, c_float, c_int, c_void_p

import numpy as np

import blocks
import bound
from cases import as_float32
from participants import Onnx, Torch, addresses, call, onnx, torch
from turns import Missing

try:
    import openvino
except ImportError:
    openvino = None


# ---- ours, through the library of model_ours.cpp ----


class Library:
    class Sizes(ctypes.Structure):
        _fields_ = [(n, c_int) for n in ("batch", "length", "model", "heads", "kv_heads", "hidden")] + [("eps", c_float)]

    class Weights(ctypes.Structure):
        names = ("w_qkv", "b_qkv", "w_out", "b_out", "w_up", "b_up", "w_gate", "w_down", "b_down", "norm1", "norm1_bias",
                 "norm2", "norm2_bias")  # fmt: skip
        _fields_ = [(n, c_void_p) for n in names]

    def __init__(self, path):
        table = (
            ("block", c_char_p, [c_void_p, c_char_p, c_char_p, c_void_p, c_void_p]),
            ("block_run", c_char_p, [c_void_p, c_int, c_void_p, c_void_p]),
            ("block_stages", c_char_p, [c_void_p, c_int] + 3 * [c_void_p]),
            ("block_end", None, [c_void_p]),
        )
        vars(self).update(vars(bound.functions(path, "peer", table)))


class Ours:
    """Ours, by machine.unit() of participants.Library."""

    def __init__(self, library, machine):
        self.kernels, self.machine, self.block = library, machine, None

    def prepare(self, case, data, threads):
        if case.on_matrix_unit and self.machine.unit() == b"portable":
            raise Missing("no matrix unit: " + (self.machine.missing_unit().decode() or "switched off"))
        kernels, block = self.kernels, c_void_p()
        sizes = kernels.Sizes(
            case.batch, case.length, case.model, case.heads, case.kv_heads, case.hidden, case.eps
        )  # fmt: skip
        weights = kernels.Weights(*(data[n].ctypes.data if n in data else None for n in kernels.Weights.names))
        call(
            kernels.block, ctypes.byref(block), case.block.encode(), case.scalar.encode(), ctypes.byref(sizes),
            ctypes.byref(weights),
        )()  # fmt: skip
        self.block = Handle(block, kernels.block_end)
        y = np.full_like(data["x"], 0x7FC0 if case.on_matrix_unit else np.nan)  # NaN
        arguments = (block, int(threads > 1), *addresses(data["x"], y))
        seconds = (c_double * len(blocks.STAGES))()
        note = call(kernels.block_stages, *arguments, seconds)

        def stages():
            note()
            return dict(zip(blocks.STAGES, seconds))

        self.stages = stages
        return call(kernels.block_run, *arguments), lambda: as_float32(y).reshape(-1, case.model)


class Handle:
    """Ends what the library made."""

    def __init__(self, handle, end):
        self.handle, self.end = handle, end

    def __del__(self):
        self.end(self.handle)


# ---- PyTorch ----


if torch is not None:
    F = torch.nn.functional

    class TorchBlock(torch.nn.Module):
        """A block as one writes it in PyTorch, queries, keys and values by one product; note(stage) after each stage."""

        def __init__(self, case, arrays):
            super().__init__()
            self.case, self.note = case, lambda stage: None
            for name in (*case.array_shapes(), *Library.Weights.names):
                if name != "x" and not hasattr(self, name):
                    self.register_buffer(name, arrays.get(name))
            if case.rotary:
                for name, half in zip(("cos", "sin"), blocks.rotations(case.length, case.dim)):
                    both = torch.from_numpy(np.concatenate([half, half], axis=1))
                    self.register_buffer(name, both.to(arrays["x"].dtype))

        def norm(self, x, weight, bias):
            y = F.rms_norm(x, weight.shape, weight, self.case.eps) if self.case.gated else F.layer_norm(
                x, weight.shape, weight, bias, self.case.eps)  # fmt: skip
            self.note("norm")
            return y

        def turned(self, x):
            a, b = x.chunk(2, -1)
            return x * self.cos + torch.cat((-b, a), -1) * self.sin

        def attention(self, x):
            c = self.case
            keys = c.dim * c.kv_heads
            qkv = F.linear(x, self.w_qkv, self.b_qkv).split((c.model, keys, keys), -1)
            q, k, v = (y.view(c.batch, c.length, -1, c.dim).transpose(1, 2) for y in qkv)
            self.note("products")
            if c.rotary:
                q, k = self.turned(q), self.turned(k)
            options = {"is_causal": c.pattern == "causal", "enable_gqa": c.kv_heads != c.heads}
            o = F.scaled_dot_product_attention(q, k, v, **options)
            o = o.transpose(1, 2).reshape(c.batch, c.length, c.model)
            self.note("attention")
            y = F.linear(o, self.w_out, self.b_out)
            self.note("products")
            return y

        def feed_forward(self, x):
            gate = F.linear(x, self.w_gate) if self.case.gated else None
            y = F.linear(x, self.w_up, self.b_up)
            self.note("products")
            if self.case.gated:
                y = F.silu(gate) * y
            else:
                y = F.gelu(y, approximate="tanh" if self.case.block == "GPT-2" else "none")
            self.note("activation")
            y = F.linear(y, self.w_down, self.b_down)
            self.note("products")
            return y

        def forward(self, x):
            one, two = (self.norm1, self.norm1_bias), (self.norm2, self.norm2_bias)
            if self.case.norms_first:
                x = x + self.attention(self.norm(x, *one))
                self.note("products")
                x = x + self.feed_forward(self.norm(x, *two))
                self.note("products")
                return x
            x = x + self.attention(x)
            self.note("products")
            x = self.norm(x, *one)
            x = x + self.feed_forward(x)
            self.note("products")
            return self.norm(x, *two)


class TorchEager(Torch):
    kinds = ("block",)

    def function(self, case, data):
        block, x = TorchBlock(case, data), data["x"]
        clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter

        def stages():
            spent, last = dict.fromkeys(blocks.STAGES, 0.0), [clock()]

            def note(stage):
                now = clock()
                spent[stage] += now - last[0]
                last[0] = now

            block.note = note
            block(x)
            block.note = lambda stage: None
            return spent

        self.stages = stages
        return lambda: block(x).view(-1, case.model)


class TorchCompiled(Torch):
    """torch.compile of the same, of fixed shapes; it needs a C++ compiler and up to a minute for each, the first time."""

    kinds = ("block",)

    def function(self, case, data):
        torch._dynamo.reset()
        x = data["x"]
        compiled = torch.compile(TorchBlock(case, data), dynamic=False)
        return lambda: compiled(x).view(-1, case.model)


# ---- OpenVINO ----


class OpenVino:
    """The same block through OpenVINO's converter, told to compute in float32, one stream."""

    clock = time.process_time  # on one thread too it computes in a thread of its own

    def __init__(self):
        if openvino is None:
            raise Missing("openvino is not installed")
        if torch is None:
            raise Missing("torch is not installed, which its converter reads")

    def prepare(self, case, data, threads):
        if case.scalar != "float32":
            raise Missing("measured in float32 only")
        arrays = {n: torch.from_numpy(a) for n, a in data.items()}
        model = openvino.convert_model(TorchBlock(case, arrays), example_input=arrays["x"])
        options = {
            "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1,
            "ENABLE_CPU_PINNING": False,
        }  # fmt: skip
        request = openvino.Core().compile_model(model, "CPU", options).create_infer_request()
        y = np.full_like(data["x"], np.nan)
        request.set_input_tensor(openvino.Tensor(data["x"], shared_memory=True))
        request.set_output_tensor(openvino.Tensor(y, shared_memory=True))
        return request.infer, lambda: y.reshape(-1, case.model)


# ---- ONNX Runtime ----


class OnnxBlock(Onnx):
    """BERT of the operators that ONNX Runtime's optimizer makes of one: Attention, SkipLayerNormalization, BiasGelu."""

    kinds = ("block",)

    def model(self, case, data):
        if case.block != "BERT":
            raise Missing("measured for BERT only")
        y = np.full_like(data["x"], np.nan)
        constants = {n: data[n].T.copy() if n.startswith("w_") else data[n] for n in case.array_shapes() if n != "x"}
        fused = {"domain": "com.microsoft"}
        skip = {"epsilon": case.eps, **fused}
        make = onnx.helper.make_node
        nodes = [
            make("Attention", ["x", "w_qkv", "b_qkv"], ["heads"], num_heads=case.heads, **fused),
            make("MatMul", ["heads", "w_out"], ["attended"]),
            make("SkipLayerNormalization", ["attended", "x", "norm1", "norm1_bias", "b_out"], ["h"], **skip),
            make("MatMul", ["h", "w_up"], ["up"]),
            make("BiasGelu", ["up", "b_up"], ["hidden"], **fused),
            make("MatMul", ["hidden", "w_down"], ["down"]),
            make("SkipLayerNormalization", ["down", "h", "norm2", "norm2_bias", "b_down"], ["y"], **skip),
        ]
        return nodes, {"x": data["x"]}, {"y": y}, constants, lambda: y.reshape(-1, case.model)


PEERS = {
    "PyTorch eager": TorchEager,
    "torch.compile": TorchCompiled,
    "OpenVINO": OpenVino,
    "ONNX Runtime": OnnxBlock,
}


def versions():
    return {} if openvino is None else {"openvino": openvino.__version__.split("-")[0]}
