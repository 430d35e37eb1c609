# SPDX-License-Identifier: Apache-2.0
"""Functions of a shared object of ours, with their types."""

import ctypes
import types


def functions(path, prefix, typed):
    """prefix_name as an attribute `name`, for each (name, result, arguments)."""
    binary, bound = ctypes.CDLL(str(path)), types.SimpleNamespace()
    for name, result, arguments in typed:
        function = getattr(binary, prefix + "_" + name)
        function.restype, function.argtypes = result, arguments
        setattr(bound, name, function)
    return bound


def checked(message):
    """Raises what a function returned that says what went wrong, or nothing."""
    if message is not None:
        raise RuntimeError(message.decode())
