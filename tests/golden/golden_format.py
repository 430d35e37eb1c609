# SPDX-License-Identifier: Apache-2.0
"""Writes the text format that tests/support/golden.hpp reads."""

import math


def number(value):
    """The shortest decimal that reads back as the same double."""
    value = float(value)
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return repr(value)


def single(value):
    """A float32 in the nine digits that read back as the same float32."""
    return "%.9g" % value


def escaped(text):
    """One line of printable text for any bytes: a backslash is doubled, other bytes become \\xHH."""
    line = ""
    for character in text.decode("utf-8", "surrogateescape"):
        if character == "\\":
            line += "\\\\"
        elif character.isprintable():
            line += character
        else:
            line += "".join("\\x%02x" % byte for byte in character.encode("utf-8", "surrogateescape"))
    return line[:-1] + "\\x20" if line.endswith(" ") else line


class Writer:
    def __init__(self, path, header):
        self.lines = ["# " + line for line in header]
        self.path = path
        self.cases = 0

    def case(self, name):
        self.lines += ["", "case " + name]
        self.cases += 1

    def int(self, key, value):
        self.lines.append("int %s %d" % (key, value))

    def real(self, key, value):
        self.lines.append("real %s %s" % (key, number(value)))

    def text(self, key, value):
        value = value if isinstance(value, bytes) else value.encode()
        self.lines.append(("text %s %s" % (key, escaped(value))).rstrip())

    def tensor(self, key, extents, values, show=number):
        values = list(values)
        assert math.prod(extents) == len(values), key
        words = [str(len(extents))] + [str(n) for n in extents] + [show(v) for v in values]
        self.lines.append("tensor %s %s" % (key, " ".join(words)))

    def end(self):
        self.lines.append("end")

    def save(self):
        text = "\n".join(self.lines) + "\n"
        with open(self.path, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        print("%s: %d cases, %d bytes" % (self.path, self.cases, len(text.encode())))
