# SPDX-License-Identifier: Apache-2.0
"""Pictures of a run: attention over the length beside others, the masks, and where a layer's time goes.

report.py draws them; alone: python3 benchmarks/plot.py benchmarks/results/MACHINE.json  →  benchmarks/results/MACHINE/
"""

import json
import math
import sys
from pathlib import Path

STYLE = """
    .g { fill: #ffffff; }
    text { font: 13px system-ui, sans-serif; fill: #1f2328; }
    .s { font-size: 12px; fill: #59636e; }
    .h { font-size: 14px; font-weight: 600; }
    .m { text-anchor: middle; }
    .e { text-anchor: end; }
    .grid { stroke: #8c959f; stroke-opacity: .3; stroke-width: 1; }
    .axis { stroke: #59636e; stroke-width: 1.2; }
    .peak { stroke: #59636e; stroke-width: 1.3; stroke-dasharray: 6 4; }
    @media (prefers-color-scheme: dark) {
      .g { fill: #0d1117; }
      text { fill: #e6edf3; }
      .s { fill: #9da7b3; }
      .axis, .peak { stroke: #9da7b3; }
    }"""
# Chosen to be told apart on white and on black.
COLORS = {
    "mha": "#2f81f7",
    "PyTorch SDPA": "#e0762c",
    "FlexAttention, compiled": "#b5893a",
    "ONNX Runtime": "#3f9a6b",
    "Eigen, -march=native": "#a371b8",
}


class Svg:
    def __init__(self, width, height, title, description):
        self.width, self.height = width, height
        self.parts = [
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" '
            'aria-labelledby="t d">' % (width, height, width, height),
            "  <!-- SPDX-License-Identifier: Apache-2.0 -->",
            '  <title id="t">%s</title>' % escape(title),
            '  <desc id="d">%s</desc>' % escape(description),
            "  <style>%s\n  </style>" % STYLE,
            '  <rect class="g" width="%d" height="%d"/>' % (width, height),
        ]

    def text(self, x, y, words, kind=""):
        self.parts.append('  <text x="%.1f" y="%.1f" class="%s">%s</text>' % (x, y, kind, escape(words)))

    def line(self, x0, y0, x1, y1, kind):
        self.parts.append('  <path class="%s" d="M%.1f %.1fL%.1f %.1f"/>' % (kind, x0, y0, x1, y1))

    def curve(self, points, color, bold):
        path = "L".join("%.1f %.1f" % p for p in points)
        style = 'fill="none" stroke="%s" stroke-width="%s" stroke-linejoin="round"' % (color, 3 if bold else 1.8)
        self.parts.append('  <path d="M%s" %s/>' % (path, style))
        for x, y in points:
            self.parts.append('  <circle cx="%.1f" cy="%.1f" r="%s" fill="%s"/>' % (x, y, 4 if bold else 2.8, color))

    def bar(self, x, y, width, height, color):
        place = 'x="%.1f" y="%.1f" width="%.1f" height="%.1f"' % (x, y, width, height)
        self.parts.append('  <rect %s fill="%s"/>' % (place, color))

    def legend(self, x, y, entries):
        for name, color in entries:
            self.bar(x, y - 10, 12, 12, color)
            self.text(x + 18, y, name)
            x += 940 / max(4, len(entries))

    def write(self, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(self.parts + ["</svg>"]) + "\n")


def escape(text):
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def steps(top):
    """Round numbers from 0 to top, four or five of them."""
    size = 10 ** math.floor(math.log10(top))
    step = next(s * size for s in (0.1, 0.2, 0.25, 0.5, 1, 2) if top / (s * size) <= 5)
    return [i * step for i in range(int(top / step) + 1)]


class Panel:
    """A plot area with its axes; x are categories at equal distances."""

    def __init__(self, svg, left, top, width, height, categories, highest):
        self.svg, self.left, self.top, self.width, self.height = svg, left, top, width, height
        self.categories, self.highest = categories, highest
        for value in steps(highest):
            svg.line(left, self.y(value), left + width, self.y(value), "grid" if value > 0 else "axis")
            svg.text(left - 8, self.y(value) + 4, "%g" % value, "s e")
        for i, name in enumerate(categories):
            svg.text(self.x(i), top + height + 18, str(name), "s m")

    def x(self, i):
        return self.left + self.width * (i + 0.5) / len(self.categories)

    def y(self, value):
        return self.top + self.height * (1 - value / self.highest)


def rates(row):
    """GFLOP/s of a row by who it is; of ONNX Runtime's operators the fastest."""
    found = {n: r["rate"] for n, r in row["results"].items()}
    onnx = [rate for n, rate in found.items() if n.startswith("ONNX Runtime")]
    return {**found, **({"ONNX Runtime": max(onnx)} if onnx else {})}


def peer_rows(run, group, threads):
    pieces = [p for name, p in run["pieces"].items() if name.startswith("peers-")]
    return [r for p in pieces for r in p["rows"] if r["group"] == group and r["threads"] == threads and "results" in r]


def draw_attention(run, path, threads=1):
    rows = peer_rows(run, "attention", threads)
    if not rows:
        return
    lengths = sorted({r["sizes"]["keys"] for r in rows})
    peak = sorted(r["peak"] for r in rows)[len(rows) // 2]
    people = [n for n in COLORS if any(n in rates(r) for r in rows)]
    svg = Svg(
        980,
        640,
        "Attention, float32, %s: GFLOP/s of visible work over the length" % run["name"],
        "Four panels, head sizes 64 and 128, without a mask and causal. Lines: %s; dashed: the measured peak of "
        "multiply-adds." % ", ".join(people),
    )
    svg.text(20, 28, "GFLOP/s of visible work, float32, %s" % count(threads, "thread"), "h")
    svg.text(960, 28, run["name"], "s e")
    svg.legend(20, 54, [(name, COLORS[name]) for name in people])
    for i, dim in enumerate((64, 128)):
        for j, mask in enumerate(("full", "causal")):
            panel = Panel(svg, 60 + 475 * j, 100 + 265 * i, 425, 205, lengths, 1.08 * peak)
            svg.text(panel.left, panel.top - 8, "head size %d, %s" % (dim, "causal" if j else "no mask"))
            svg.line(panel.left, panel.y(peak), panel.left + panel.width, panel.y(peak), "peak")
            svg.text(panel.left + panel.width, panel.y(peak) - 5, "FMA peak %.0f" % peak, "s e")
            at = {r["sizes"]["keys"]: rates(r) for r in rows if r["sizes"]["dim"] == dim and r["mask"] == mask}
            for name in reversed(people):
                line = [(panel.x(lengths.index(n)), panel.y(at[n][name])) for n in lengths if name in at.get(n, {})]
                svg.curve(line, COLORS[name], name == "mha")
    svg.text(272, 630, "length", "s m")
    svg.text(747, 630, "length", "s m")
    svg.write(path)


def draw_masks(run, path):
    """Ours and others under each mask, L 2048, D 64."""
    rows = [r for r in peer_rows(run, "attention", 1) if r["sizes"]["keys"] == 2048 and r["sizes"]["dim"] == 64]
    rows += peer_rows(run, "masks", 1)
    if not any(r["group"] == "masks" for r in rows):
        return
    people = [n for n in COLORS if any(n in rates(r) for r in rows)]
    peak = sorted(r["peak"] for r in rows)[len(rows) // 2]
    svg = Svg(
        980,
        360,
        "Masks and scores, float32, %s: GFLOP/s of visible work" % run["name"],
        "Bars for each mask at length 2048, head size 64: %s." % ", ".join(people),
    )
    svg.text(20, 28, "GFLOP/s of visible work by mask or score, float32, L 2048, head size 64, one thread", "h")
    svg.text(960, 28, run["name"], "s e")
    svg.legend(20, 54, [(name, COLORS[name]) for name in people])
    panel = Panel(svg, 60, 80, 900, 235, [r["mask"] for r in rows], 1.08 * peak)
    svg.line(panel.left, panel.y(peak), panel.left + panel.width, panel.y(peak), "peak")
    svg.text(panel.left + panel.width, panel.y(peak) - 5, "FMA peak %.0f" % peak, "s e")
    width = 0.8 * panel.width / len(rows) / len(people)
    for i, row in enumerate(rows):
        found = rates(row)
        for j, name in enumerate(people):
            if name not in found:
                continue
            x = panel.x(i) + (j - len(people) / 2) * width
            svg.bar(x, panel.y(found[name]), width - 2, panel.top + panel.height - panel.y(found[name]), COLORS[name])
            if name == "mha":
                svg.text(x + width / 2, panel.y(found[name]) - 5, "%.0f" % found[name], "s m")
    svg.write(path)


def draw_stages(run, path):
    """The shares of a layer's time over the length, and of its FLOP as a line."""
    rows = run["pieces"].get("stages", {}).get("rows", [])
    rows = [r for r in rows if r["name"].startswith("stages/")]
    if not rows:
        return
    attention = ("attention", "attention_ms", COLORS["mha"])
    # attention stands on the axis, to be read off
    stages = (attention, ("projections", "projection_ms", "#8f9aa6"), ("output", "output_ms", "#c5ccd4"))
    svg = Svg(
        980,
        340,
        "Where a layer's time goes, %s" % run["name"],
        "Stacked shares of projections, attention and output over the length, without a mask and causal; the dots are "
        "attention's share of the FLOP.",
    )
    svg.text(20, 28, "Share of a layer's time, % (d_model 512, 8 heads, float32, one thread)", "h")
    svg.text(960, 28, run["name"], "s e")
    by_flop = ("attention's share of the FLOP", "#e0762c")
    svg.legend(20, 54, [(name, color) for name, _, color in stages] + [by_flop])
    for j, mask in enumerate(("full", "causal")):
        these = {int(r["name"].split("L:")[1].split("/")[0]): r for r in rows if "/" + mask in r["name"]}
        lengths = sorted(these)
        panel = Panel(svg, 60 + 475 * j, 100, 425, 190, lengths, 104)
        svg.text(panel.left, 92, "causal" if j else "no mask")
        dots = []
        for i, length in enumerate(lengths):
            r, below = these[length], 0.0
            total = sum(r[key] for _, key, _ in stages)
            for _, key, color in stages:
                share = 100 * r[key] / total
                top = panel.y(below + share)
                svg.bar(panel.x(i) - 24, top, 48, panel.y(below) - top, color)
                below += share
            dots.append((panel.x(i), panel.y(100 * r["attention_of_flop"])))
        svg.curve(dots, by_flop[1], False)
    svg.text(272, 332, "length", "s m")
    svg.text(747, 332, "length", "s m")
    svg.write(path)


def count(n, what):
    return "one " + what if n == 1 else "%d %ss" % (n, what)


def draw(run, folder):
    """The names of the pictures that the run has data for."""
    pictures = {"attention.svg": draw_attention, "masks.svg": draw_masks, "stages.svg": draw_stages}
    for name, make in pictures.items():
        make(run, folder / name)
    return [name for name in pictures if (folder / name).exists()]


if __name__ == "__main__":
    source = Path(sys.argv[1])
    draw(json.loads(source.read_text()), source.with_suffix(""))
