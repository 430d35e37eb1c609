# SPDX-License-Identifier: Apache-2.0
"""convert.py FOLDER: the Attention cases of the installed package onnx as text, one file each (see tests/golden).

Up to 1.22 the package carries the cases as files; later ones make them with the same code that made those.
"""

import math
import pathlib
import sys
import warnings

import numpy as np
import onnx
from onnx import numpy_helper

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "golden"))
import golden_format  # noqa: E402

INPUTS = ["Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"]
OUTPUTS = ["Y", "present_key", "present_value", "qk_matmul_output"]
INTEGERS = [
    "is_causal",
    "q_num_heads",
    "kv_num_heads",
    "qk_matmul_output_mode",
    "softmax_precision",
    "left_window_size",
    "right_window_size",
]
REALS = ["scale", "softcap"]


def is_wanted(name):
    return name.startswith("test_attention_") and not name.endswith("_expanded")


def packaged_cases():
    data = pathlib.Path(onnx.__file__).parent / "backend/test/data/node"
    for folder in sorted(data.glob("test_attention_*")):
        if not is_wanted(folder.name):
            continue
        sets = sorted(folder.glob("test_data_set_*"))
        assert len(sets) == 1, folder.name

        def tensors(kind, node_names, folder=sets[0]):
            given = [name for name in node_names if name]
            paths = [folder / ("%s_%d.pb" % (kind, i)) for i in range(len(given))]
            assert len(list(folder.glob(kind + "_*.pb"))) == len(given), folder
            return [numpy_helper.to_array(onnx.load_tensor(path)) for path in paths]

        model = onnx.load(folder / "model.onnx")
        node = model.graph.node[0]
        yield folder.name, model, tensors("input", node.input), tensors("output", node.output)


def made_cases():
    from onnx.backend.test.case import node as cases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # making the cases of all other operators warns of overflow
        all_cases = cases.collect_testcases("Attention")
    for case in sorted(all_cases, key=lambda case: case.name):
        if is_wanted(case.name):
            assert len(case.data_sets) == 1, case.name
            yield case.name, case.model, *case.data_sets[0]


def show(value):
    return "nan" if math.isnan(value) else golden_format.number(value)


def write(folder, name, model, inputs, outputs):
    (node,) = model.graph.node
    assert node.op_type == "Attention", name
    header = ["SPDX-License-Identifier: Apache-2.0", "Converted from the package onnx %s." % onnx.__version__]
    to = golden_format.Writer(str(folder / (name + ".txt")), header)
    to.case(name)
    to.int("opset", model.opset_import[0].version)
    for attribute in node.attribute:
        value = onnx.helper.get_attribute_value(attribute)
        if attribute.name in REALS:
            to.real(attribute.name, value)
        elif attribute.name in INTEGERS:
            to.int(attribute.name, value)
        else:
            sys.exit("convert.py: %s has the attribute %s, which the adapter does not know" % (name, attribute.name))
    for formal, actual, arrays in ((INPUTS, node.input, inputs), (OUTPUTS, node.output, outputs)):
        assert len(actual) <= len(formal), name
        present = [formal[i] for i, word in enumerate(actual) if word]
        assert len(present) == len(arrays), name
        for key, array in zip(present, arrays):
            to.text(key + ".type", str(array.dtype))
            to.tensor(key, array.shape, array.astype(np.float64).ravel().tolist(), show)
    to.end()
    to.save()


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    cases = list(packaged_cases()) or list(made_cases())
    if not cases:
        sys.exit("convert.py: onnx %s has no Attention cases" % onnx.__version__)
    for case in cases:
        write(folder, *case)
    print("onnx %s: %d Attention cases" % (onnx.__version__, len(cases)))


main()
