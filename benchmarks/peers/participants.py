# SPDX-License-Identifier: Apache-2.0
"""Who takes part in compare.py. prepare(case, data, threads) returns a call to be timed and what reads its result, in
the shape of cases.py, or raises Missing."""

import ctypes
from ctypes import c_char_p, c_double, c_int, c_size_t, c_void_p

import numpy as np

import bound
from cases import PASSES, RAGGED, as_float32, visible
from turns import Missing

try:
    import torch

    torch.set_grad_enabled(False)
except ImportError:
    torch = None
try:
    import onnx
    import onnxruntime
except ImportError:
    onnx = onnxruntime = None


# ---- ours and Eigen, through the library of ours.cpp ----


class Library:
    class Shape(ctypes.Structure):
        _fields_ = [(n, c_int) for n in ("queries", "keys", "heads", "kv_heads", "dim")]

    def __init__(self, path):
        table = (
            ("machine", c_char_p, []),
            ("threads", c_int, []),
            ("peak", c_double, [c_int]),
            ("visible_pairs", c_double, [c_char_p, c_int, c_int]),
            ("unit", c_char_p, []),
            ("missing_unit", c_char_p, []),
            ("unit_peak", c_double, [c_int]),
            ("read", c_double, [c_int, c_void_p, c_void_p, c_size_t]),
            ("attention", c_char_p, [c_void_p, c_char_p, c_char_p, c_int] + 4 * [c_void_p]),
            ("unit_attention", c_char_p, [c_void_p, c_int, c_int] + 4 * [c_void_p]),
            ("ragged", c_char_p, [c_void_p, c_int] + 2 * [c_void_p] + [c_int, c_char_p] + 2 * [c_int] + 4 * [c_void_p]),
            ("eigen_attention", c_char_p, [c_void_p, c_int] + 4 * [c_void_p]),
            ("layer", c_void_p, 3 * [c_int] + [c_char_p] + 4 * [c_void_p]),
            ("step", c_void_p, 3 * [c_int] + [c_double] + 4 * [c_void_p]),
            ("backward", c_void_p, [c_void_p, c_int, c_char_p, c_int, c_double] + 2 * [c_void_p]),
            ("gradients", None, 2 * [c_void_p]),
            ("linear", c_void_p, 2 * [c_int] + [c_char_p] + 2 * [c_void_p]),
            ("cache", c_void_p, [c_void_p, c_char_p] + 2 * [c_void_p]),
            ("run", c_char_p, [c_void_p, c_int, c_int, c_void_p, c_void_p]),
            ("end", None, [c_void_p]),
            ("eigen_linear", c_char_p, 3 * [c_int] + 4 * [c_void_p]),
        )
        vars(self).update(vars(bound.functions(path, "peer", table)))

    def limit(self, case, data, threads):
        """What the machine can do at most: GB/s of reading keys and values, or GFLOP/s of the unit or of Cpu."""
        if case.unit == "GB/s":
            return self.read(int(threads > 1), *addresses(data["k"], data["v"]), data["k"].nbytes // 4)
        return self.unit_peak(threads) if case.on_matrix_unit else self.peak(threads)

    def description(self):
        return "%s; matrix unit %s" % (self.machine().decode(), self.unit().decode())

    def shape(self, case):
        return ctypes.byref(self.Shape(case.queries, case.keys, case.heads, case.kv_heads, case.dim))

    def pairs(self, pattern, queries, keys):
        return self.visible_pairs(pattern.encode(), queries, keys)


def addresses(*arrays):
    return [a.ctypes.data for a in arrays]


def call(function, *arguments):
    """A call of the library that raises what the library says."""

    def run():
        message = function(*arguments)
        if message is not None:
            raise RuntimeError(message.decode())

    return run


class Ours:
    def __init__(self, library):
        self.kernels = library

    def prepare(self, case, data, threads):
        many = int(threads > 1)
        if case.on_matrix_unit and self.kernels.unit() == b"portable":
            raise Missing("no matrix unit: " + (self.kernels.missing_unit().decode() or "switched off"))
        if case.kind in ("step", *PASSES):
            return self.passes(case, data, many)
        if case.kind in ("layer", "linear"):
            self.module = Module(self.kernels, case, data)
            rows, columns = data["x"].shape[0], case.columns if case.kind == "linear" else case.model
            y = np.empty((rows, columns), data["x"].dtype)
            arguments = (self.module.handle, many, rows, *addresses(data["x"], y))
            return call(self.kernels.run, *arguments), lambda: as_float32(y)
        out = np.empty_like(data["q"])
        pointers = addresses(data["q"], data["k"], data["v"], out)
        if case.kind in RAGGED:
            self.offsets = case.query_offsets, case.key_offsets  # the call reads them
            sequences = (len(case.lengths), *addresses(*self.offsets))
            which = (int(case.pattern == "causal"), case.scalar.encode(), int(case.on_matrix_unit), many)
            run = call(self.kernels.ragged, self.kernels.shape(case), *sequences, *which, *pointers)
            return run, lambda: by_head(as_float32(out))
        if case.on_matrix_unit:
            arguments = (self.kernels.shape(case), int(case.pattern == "causal"), many, *pointers)
            return call(self.kernels.unit_attention, *arguments), lambda: as_float32(out)
        arguments = (self.kernels.shape(case), case.pattern.encode(), case.scalar.encode(), many, *pointers)
        return call(self.kernels.attention, *arguments), lambda: as_float32(out)


    def passes(self, case, data, many):
        module = self.module = Module(self.kernels, case, data)
        layer = case.kind == "step"
        names = ("x", "w_in", "b_in", "w_out", "b_out") if layer else ("q", "k", "v")
        rows, x, y = (case.length, data["x"], np.empty_like(data["x"])) if layer else (case.keys, data["q"], data["do"])
        step, plain = (call(self.kernels.run, module.handle, many, n, *addresses(x, y)) for n in (rows, -rows))

        def read():
            plain()
            to = [np.full(data[n].shape, np.nan, np.float32) for n in names]
            flat = np.concatenate([a.ravel() for a in to])
            self.kernels.gradients(module.handle, flat.ctypes.data)
            parts = np.split(flat, np.cumsum([a.size for a in to])[:-1])
            return [y, *parts] if layer else parts

        return step, read


class OursInCache:
    """Short queries over a cache of ours, whose last rows each call appends, as GroupQueryAttention does."""

    def __init__(self, library):
        self.kernels = library

    def prepare(self, case, data, threads):
        if case.kind != "short":
            raise Missing("computes no %s" % case.kind)
        out = np.empty_like(data["q"])
        self.module = Module(self.kernels, case, data)
        arguments = (self.module.handle, int(threads > 1), case.queries, *addresses(data["q"], out))
        return call(self.kernels.run, *arguments), lambda: as_float32(out)


class Module:
    """A layer or dense product of the library, its weights packed, or a cache of it."""

    def __init__(self, library, case, data):
        self.end, scalar = library.end, case.scalar.encode()
        if case.kind == "layer":
            weights = addresses(*(data[n] for n in ("w_in", "b_in", "w_out", "b_out")))
            self.handle = library.layer(case.model, case.heads, int(case.pattern == "causal"), scalar, *weights)
        elif case.kind == "step":
            weights = addresses(*(data[n] for n in ("w_in", "b_in", "w_out", "b_out")))
            self.handle = library.step(case.model, case.heads, int(case.pattern == "causal"), case.dropout, *weights)
        elif case.kind in PASSES:
            which = (int(case.pattern == "causal"), scalar, int(case.kind == "both"), case.dropout)
            self.handle = library.backward(library.shape(case), *which, *addresses(data["k"], data["v"]))
        elif case.kind == "short":
            self.handle = library.cache(library.shape(case), scalar, *addresses(data["k"], data["v"]))
        else:
            self.handle = library.linear(case.inner, case.columns, scalar, *addresses(data["w"], data["b"]))

    def __del__(self):
        self.end(self.handle)


class Eigen:
    """The materialised form as one writes it, and the dense product; compiled with -march=native, on one thread."""

    def __init__(self, library):
        self.kernels = library

    def prepare(self, case, data, threads):
        if threads > 1:
            raise Missing("one thread only")
        if case.scalar != "float32":
            raise Missing("written for float32, full and causal")
        if case.kind == "linear":
            y = np.empty((case.rows, case.columns), np.float32)
            pointers = addresses(data["x"], data["w"], data["b"], y)
            return call(self.kernels.eigen_linear, case.rows, case.inner, case.columns, *pointers), lambda: y
        if case.kind != "attention":
            raise Missing("computes no %s" % case.kind)
        if case.pattern not in ("full", "causal"):
            raise Missing("written for float32, full and causal")
        out = np.empty_like(data["q"])
        pointers = addresses(data["q"], data["k"], data["v"], out)
        causal = int(case.pattern == "causal")
        return call(self.kernels.eigen_attention, self.kernels.shape(case), causal, *pointers), lambda: out


def by_head(rows):
    """(ΣL, H, D) → (1, H, ΣL, D)."""
    return rows.swapaxes(0, 1)[None]


# ---- PyTorch ----


def parts(tensor, offsets):
    """The rows of each sequence."""
    return [tensor[begin:end] for begin, end in zip(offsets, offsets[1:])]


class Torch:
    kinds = ()
    rest = 20e-3  # its OpenMP threads spin 300,000 times: 6 ms on a Zen 4

    def __init__(self):
        if torch is None:
            raise Missing("torch is not installed")

    def prepare(self, case, data, threads):
        if case.kind not in self.kinds:
            raise Missing("computes no %s" % case.kind)
        torch.set_num_threads(threads)
        arrays = {n: self.tensor(a) for n, a in data.items()}
        function = self.function(case, arrays)
        last = []

        def run():
            last[:] = [function()]

        return run, lambda: self.rows(case, last[0]).float().numpy()

    @staticmethod
    def rows(case, result):
        """The result in the shape of cases.py."""
        return result

    @staticmethod
    def tensor(array):
        tensor = torch.from_numpy(array)
        return tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor


class Sdpa(Torch):
    kinds = ("attention", "short")

    def function(self, case, data):
        if case.pattern == "softcap":
            raise Missing("no soft cap")
        options = {"enable_gqa": case.heads != case.kv_heads}
        if case.pattern == "causal":
            options["is_causal"] = True
        elif case.pattern != "full":
            index = torch.arange(case.keys)
            shown = visible(case, index[:, None], index[None, :])
            options["attn_mask"] = shown.expand(case.keys, case.keys).contiguous()
        return lambda: torch.nn.functional.scaled_dot_product_attention(data["q"], data["k"], data["v"], **options)


class SdpaPadded(Torch):
    """A rectangle of all sequences, padded behind. A causal mask hides the padding from the rows that count."""

    kinds = RAGGED

    def function(self, case, data):
        offsets = {"q": case.query_offsets, "k": case.key_offsets, "v": case.key_offsets}
        q, k, v = (torch.nn.utils.rnn.pad_sequence(parts(data[n], at), True) for n, at in offsets.items())
        options = {"enable_gqa": case.heads != case.kv_heads}
        if case.pattern == "causal":
            options["is_causal"] = True
        else:
            own = torch.arange(max(case.lengths)) < torch.tensor(case.lengths)[:, None]
            options["attn_mask"] = own[:, None, None, :]
        q, k, v = (x.transpose(1, 2).contiguous() for x in (q, k, v))
        return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)

    @staticmethod
    def rows(case, result):
        lengths = np.diff(case.query_offsets)
        return torch.cat([result[b, :, :length] for b, length in enumerate(lengths)], dim=1)[None]


class SdpaEach(Torch):
    """A call for each sequence."""

    kinds = RAGGED

    def function(self, case, data):
        offsets = {"q": case.query_offsets, "k": case.key_offsets, "v": case.key_offsets}
        sequences = list(zip(*([x.transpose(0, 1)[None] for x in parts(data[n], at)] for n, at in offsets.items())))
        options = {"enable_gqa": case.heads != case.kv_heads, "is_causal": case.pattern == "causal"}
        attend = torch.nn.functional.scaled_dot_product_attention
        return lambda: [attend(*qkv, **options) for qkv in sequences]

    @staticmethod
    def rows(case, result):
        return torch.cat(result, dim=2)


class SdpaNested(Torch):
    """Nested tensors in the layout `jagged`."""

    kinds = RAGGED

    def function(self, case, data):
        if case.heads != case.kv_heads:
            raise Missing("no key/value heads that query heads share")
        q, k, v = (
            torch.nested.nested_tensor_from_jagged(data[n], torch.from_numpy(at)).transpose(1, 2)
            for n, at in (("q", case.query_offsets), ("k", case.key_offsets), ("v", case.key_offsets))
        )
        causal = case.pattern == "causal"
        return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    @staticmethod
    def rows(case, result):
        return by_head(result.transpose(1, 2).values())


class Flex(Torch):
    """Compiled FlexAttention of fixed shapes. Each takes half a minute to compile, so that not all are. Sequences of a
    ragged batch are documents of one row of tokens."""

    kinds = ("attention", "uneven")

    def function(self, case, data):
        if case.kind == "attention" and case.keys > 4096 or (case.keys != 2048 and torch.get_num_threads() > 1):
            raise Missing("compiled here for L up to 4096 only, on several threads L 2048")
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        torch._dynamo.reset()
        options = {}
        if case.kind == "uneven":
            data = {n: by_head(x) for n, x in data.items()}
            document = torch.repeat_interleave(torch.arange(len(case.lengths)), torch.tensor(case.lengths))
            shown = lambda b, h, q, k: (document[q] == document[k]) & visible(case, q, k)
            options["block_mask"] = create_block_mask(shown, None, None, case.keys, case.keys, device="cpu")
        elif case.pattern == "softcap":
            options["score_mod"] = lambda s, b, h, q, k: 30 * torch.tanh(s / 30)
        elif case.pattern != "full":
            shown = lambda b, h, q, k: visible(case, q, k)
            options["block_mask"] = create_block_mask(shown, None, None, case.keys, case.keys, device="cpu")
        compiled = torch.compile(flex_attention, dynamic=False)
        return lambda: compiled(data["q"], data["k"], data["v"], **options)


class TorchLayer(Torch):
    """nn.MultiheadAttention for inference: batch_first, without the weights."""

    kinds = ("layer",)

    def function(self, case, data):
        scalar = getattr(torch, case.scalar)
        layer = torch.nn.MultiheadAttention(case.model, case.heads, batch_first=True, dtype=scalar).eval()
        layer.in_proj_weight.copy_(data["w_in"])
        layer.in_proj_bias.copy_(data["b_in"])
        layer.out_proj.weight.copy_(data["w_out"])
        layer.out_proj.bias.copy_(data["b_out"])
        options = {"need_weights": False}
        if case.pattern == "causal":
            hidden = torch.ones(case.length, case.length, dtype=torch.bool).triu(1)
            options.update(is_causal=True, attn_mask=hidden)
        x = data["x"][None]
        return lambda: layer(x, x, x, **options)[0][0]


class TorchStep(Torch):
    """nn.MultiheadAttention forward and backward, in training mode; eager, as it is mostly trained."""

    kinds = ("step",)

    def prepare(self, case, data, threads):
        if case.kind not in self.kinds:
            raise Missing("computes no %s" % case.kind)
        torch.set_num_threads(threads)
        arrays = {n: self.tensor(a) for n, a in data.items()}
        layer = torch.nn.MultiheadAttention(case.model, case.heads, dropout=case.dropout, batch_first=True)
        layer.in_proj_weight.copy_(arrays["w_in"])
        layer.in_proj_bias.copy_(arrays["b_in"])
        layer.out_proj.weight.copy_(arrays["w_out"])
        layer.out_proj.bias.copy_(arrays["b_out"])
        options = {"need_weights": False}
        if case.pattern == "causal":
            hidden = torch.ones(case.length, case.length, dtype=torch.bool).triu(1)
            options.update(is_causal=True, attn_mask=hidden)
        dy = arrays["x"][None]
        x = dy.clone().requires_grad_(True)

        def run():
            layer.zero_grad(set_to_none=True)
            x.grad = None
            with torch.enable_grad():
                layer(x, x, x, **options)[0].backward(dy)

        def read():
            layer.eval()
            layer.zero_grad(set_to_none=True)
            x.grad = None
            with torch.enable_grad():
                y = layer(x, x, x, **options)[0]
                y.backward(dy)
            layer.train()
            projections = (layer.in_proj_weight, layer.in_proj_bias, layer.out_proj.weight, layer.out_proj.bias)
            return [y.detach().numpy(), *(p.grad.numpy() for p in (x, *projections))]

        return run, read


class SdpaBackward(Torch):
    """Attention's backward pass by autograd, or both passes. `kernel` says which of its own PyTorch chose."""

    kinds = PASSES

    def prepare(self, case, data, threads):
        if case.kind not in self.kinds:
            raise Missing("computes no %s" % case.kind)
        torch.set_num_threads(threads)
        arrays = {n: self.tensor(a) for n, a in data.items()}
        inputs = [arrays[n].clone().requires_grad_(True) for n in "qkv"]
        causal = case.pattern == "causal"

        def forward(dropout):
            attend = torch.nn.functional.scaled_dot_product_attention
            return attend(*inputs, is_causal=causal, dropout_p=dropout)

        def gradients(out, **options):
            return torch.autograd.grad(out, inputs, arrays["do"], **options)

        def both(dropout=case.dropout):
            with torch.enable_grad():
                return gradients(forward(dropout))

        with torch.enable_grad():
            out = forward(case.dropout)
            choice = torch._fused_sdp_choice(*inputs, is_causal=causal, dropout_p=case.dropout)
        self.kernel = torch.nn.attention.SDPBackend(choice).name
        backward = lambda: gradients(out, retain_graph=True)
        run = both if case.kind == "both" else backward
        return run, lambda: [g.float().numpy() for g in (both(0) if case.dropout else run())]


class TorchLinear(Torch):
    kinds = ("linear",)

    def function(self, case, data):
        return lambda: torch.nn.functional.linear(data["x"], data["w"], data["b"])


# ---- ONNX Runtime ----


class Onnx:
    """A model made for the case, its inputs and outputs bound to memory once."""

    kinds = ()
    rest = 80e-3  # ONNX Runtime's threads spin a million times

    def __init__(self):
        if onnxruntime is None:
            raise Missing("onnxruntime or onnx is not installed")

    def prepare(self, case, data, threads):
        if case.kind not in self.kinds:
            raise Missing("computes no %s" % case.kind)
        if case.scalar != "float32":
            raise Missing("no bfloat16 on processors")
        nodes, inputs, outputs, constants, read = self.model(case, data)
        return self.session(nodes, inputs, outputs, constants, threads), read

    @staticmethod
    def session(nodes, inputs, outputs, constants, threads):
        from onnx import TensorProto, helper, numpy_helper

        def described(arrays):
            types = {"float32": TensorProto.FLOAT, "int32": TensorProto.INT32}
            return [helper.make_tensor_value_info(n, types[a.dtype.name], a.shape) for n, a in arrays.items()]

        initializers = [numpy_helper.from_array(a, n) for n, a in constants.items()]
        graph = helper.make_graph(nodes, "peer", described(inputs), described(outputs), initializers)
        versions = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=versions, ir_version=10)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 3
        try:
            text = model.SerializeToString()
            session = onnxruntime.InferenceSession(text, options, providers=["CPUExecutionProvider"])
        except Exception as failure:
            raise Missing(str(failure).splitlines()[0])
        binding = session.io_binding()
        for name, array in inputs.items():
            binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
        for name, array in outputs.items():
            binding.bind_ortvalue_output(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
        return lambda: session.run_with_iobinding(binding)


def by_rows(x):
    """(1, H, L, D) → (1, L, H·D), the layout of the operators."""
    return np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(1, x.shape[2], -1)


def by_heads(x, heads):
    return x.reshape(1, x.shape[1], heads, -1).transpose(0, 2, 1, 3)


class OnnxMultiHead(Onnx):
    """com.microsoft.MultiHeadAttention."""

    kinds = ("attention",)

    def model(self, case, data):
        if case.pattern not in ("full", "causal", "padding"):
            raise Missing("masks: full, causal, padding")
        inputs = {n: by_rows(data[n]) for n in "qkv"}
        names = ["q", "k", "v"]
        if case.pattern == "padding":
            inputs["lengths"] = visible(case, 0, np.arange(case.keys)).astype(np.int32)[None]
            names += ["", "lengths"]
        out = np.empty_like(inputs["q"])
        options = {"num_heads": case.heads, "unidirectional": int(case.pattern == "causal")}
        node = onnx.helper.make_node("MultiHeadAttention", names, ["o"], domain="com.microsoft", **options)
        return [node], inputs, {"o": out}, {}, lambda: by_heads(out, case.heads)


class OnnxGroupQuery(Onnx):
    """com.microsoft.GroupQueryAttention: causal, with the cache in place."""

    kinds = ("attention", "short")

    def model(self, case, data):
        if case.kind == "attention" and case.pattern not in ("causal", "window 256"):
            raise Missing("masks: causal, window")
        new = case.queries
        k_new, v_new = (np.ascontiguousarray(data[n][:, :, case.keys - new :]) for n in "kv")
        inputs = {"q": by_rows(data["q"]), "k": by_rows(k_new), "v": by_rows(v_new)}
        out = np.empty_like(inputs["q"])
        names, outputs = ["q", "k", "v", "", ""], {"o": out}
        if case.kind == "short":  # the row that is appended is already there
            inputs.update(past_k=data["k"], past_v=data["v"])
            outputs.update(all_k=data["k"], all_v=data["v"])
            names[3:] = ["past_k", "past_v"]
        else:
            outputs.update(all_k=np.empty_like(data["k"]), all_v=np.empty_like(data["v"]))
        inputs["last"] = np.array([case.keys - 1], np.int32)
        constants = {"total": np.array([case.keys], np.int32)}
        options = {"num_heads": case.heads, "kv_num_heads": case.kv_heads}
        if case.pattern == "window 256":
            options["local_window_size"] = 256
        node = onnx.helper.make_node(
            "GroupQueryAttention", names + ["last", "total"], list(outputs), domain="com.microsoft", **options
        )
        return [node], inputs, outputs, constants, lambda: by_heads(out, case.heads)


class OnnxAttention(Onnx):
    """The operator Attention of opset 23."""

    kinds = ("attention", "short")

    def model(self, case, data):
        inputs = {n: data[n] for n in "qkv"}
        out = np.empty_like(data["q"])
        options = {"is_causal": int(case.pattern == "causal")}
        if case.pattern == "softcap":
            options["softcap"] = 30.0
        names, constants = ["q", "k", "v"], {}
        if case.pattern not in ("full", "causal", "softcap"):
            positions = np.arange(case.keys)
            shown = visible(case, positions[:, None], positions[None, :])
            constants["mask"] = np.ascontiguousarray(np.broadcast_to(shown, (case.keys, case.keys)))
            names.append("mask")
        node = onnx.helper.make_node("Attention", names, ["o"], **options)
        return [node], inputs, {"o": out}, constants, lambda: out


class OnnxLayer(Onnx):
    """com.microsoft.Attention, which projects as well, and the output product."""

    kinds = ("layer",)

    def model(self, case, data):
        x, y = data["x"][None], np.empty_like(data["x"][None])
        constants = {
            "w_in": np.ascontiguousarray(data["w_in"].T),
            "b_in": data["b_in"],
            "w_out": np.ascontiguousarray(data["w_out"].T),
            "b_out": data["b_out"],
        }
        options = {"num_heads": case.heads, "unidirectional": int(case.pattern == "causal")}
        make = onnx.helper.make_node
        nodes = [
            make("Attention", ["x", "w_in", "b_in"], ["heads"], domain="com.microsoft", **options),
            make("MatMul", ["heads", "w_out"], ["product"]),
            make("Add", ["product", "b_out"], ["y"]),
        ]
        return nodes, {"x": x}, {"y": y}, constants, lambda: y[0]


class OnnxLinear(Onnx):
    """Gemm with constant weights, which ONNX Runtime packs once."""

    kinds = ("linear",)

    def model(self, case, data):
        y = np.empty((case.rows, case.columns), np.float32)
        node = onnx.helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=1)
        return [node], {"x": data["x"]}, {"y": y}, {"w": data["w"], "b": data["b"]}, lambda: y


PEERS = {
    "PyTorch SDPA": Sdpa,
    "PyTorch SDPA, padded": SdpaPadded,
    "PyTorch SDPA, one by one": SdpaEach,
    "PyTorch SDPA, nested": SdpaNested,
    "FlexAttention, compiled": Flex,
    "nn.MultiheadAttention": TorchLayer,
    "nn.MultiheadAttention, forward and backward": TorchStep,
    "PyTorch SDPA, autograd": SdpaBackward,
    "PyTorch linear": TorchLinear,
    "ONNX Runtime MultiHeadAttention": OnnxMultiHead,
    "ONNX Runtime GroupQueryAttention": OnnxGroupQuery,
    "ONNX Runtime Attention-23": OnnxAttention,
    "ONNX Runtime layer": OnnxLayer,
    "ONNX Runtime Gemm": OnnxLinear,
}


def versions():
    return {m.__name__: m.__version__ for m in (torch, onnxruntime, onnx) if m is not None}
