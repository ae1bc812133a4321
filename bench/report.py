# SPDX-License-Identifier: Apache-2.0
"""Measures every row of the tables in docs/benchmarks.md and prints the tables.

python bench/report.py BUILD_DIR                to standard output
python bench/report.py BUILD_DIR --write        into docs/benchmarks.md
python bench/report.py BUILD_DIR --python BIN   with the second table: BIN has torch and attndrop
"""

import argparse
import json
import os
import pathlib
import platform
import re
import subprocess
import sys

from report_rows import ROWS
from report_rows_python import PYTHON_ROWS

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/benchmarks.md"
BEGIN, END = "<!-- figures: written by bench/report.py -->\n", "<!-- end of figures -->\n"

ONE_THREAD = [
    "q2048 k2048 d64",
    "q2048 k2048 d128",
    "q2048 k2048 d64 causal",
    "q2048 k2048 d32 p=0.1",
    "q2048 k2048 d64 p=0.1",
    "q2048 k2048 d128 p=0.1",
    "q2048 k2048 d128 bf16",
    "q2048 k2048 d64 empty_row=redraw p=0.1",
    "q2048 k2048 d64 empty_row=keep_self p=0.1",
    "q2048 k2048 d64 stage=logits p=0.1",
    "q2048 k2048 d64 scheme=symmetric p=0.1",
    "q2048 k2048 d64 scheme=shared p=0.1",
    *[
        f"q2048 k2048 d64 scheme={scheme} stage={stage} p=0.5"
        for stage in ("logits", "weights")
        for scheme in ("key", "word", "block")
    ],
    "q2048 k2048 d64 scheme=query p=0.5",
    "h8 q2048 k2048 d64 scheme=head p=0.5 seed=2",  # drops 4 of the 8 heads
]
GROUPS = {
    "A": (ONE_THREAD, []),
    "B": (["q2048 k2048 d64"], ["--target", "avx2"]),
    "C": (["h8 q2048 k2048 d64", "q2048 k2048 d64"], ["--threads", "1"]),
    "D": (["h8 q2048 k2048 d64", "q2048 k2048 d64"], ["--threads", "2"]),
}
LONG = "q65536 k65536 d64"


class Figures:
    """What was measured; a row of the table asks for what it shows."""

    def __init__(self):
        self.bench = {}  # (group, line, direction) -> object of attndrop bench
        self.peer = {}  # (case, direction) -> object of peers.py
        self.scratch = {}
        self.keep_cells = 0.0
        self.python = {}  # part -> rows of python_peers.py; empty without --python

    def of(self, group, line, direction):
        return self.bench[group, line, direction]

    def fraction(self, group, line, direction):
        return self.of(group, line, direction)["peak_fraction"]

    def seconds(self, line, *directions):
        return sum(self.of("A", line, direction)["median_s"] for direction in directions)

    def to_p0(self, line, direction):
        return self.of("A", line, direction)["ratio_to_p0"]

    def peer_ratio(self, case, direction, name):
        return self.peer[case, direction]["peers"][name]["ratio"]


def run_json(words, **environment):
    done = subprocess.run(
        [str(word) for word in words],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    return json.loads(done.stdout)


def commands(build, python):
    """The commands behind the letters; lines are left out."""
    tool = build / "cli/attndrop"
    found = {}
    for letter, (lines, flags) in GROUPS.items():
        problems = [word for line in lines for word in ("--problem", line)]
        found[letter] = [tool, "bench", "--json", "--direction", "both", *flags, *problems]
    found["E"] = [tool, "bench", "--explain", "--json", "--problem", LONG]
    found["F"] = [sys.executable, ROOT / "bench/peers.py", "--json"]
    found["G"] = [
        build / "bench/keep_mask_benchmark",
        "--benchmark_filter=KeepMask/element/2048",
        "--benchmark_format=json",
        "--benchmark_repetitions=5",
    ]
    if python:
        found["H"] = [python, ROOT / "bench/python_peers.py", "--json"]
    return found


def measure(build, python, repeats, clock):
    figures = Figures()
    for letter, words in commands(build, python).items():
        print(f"measuring {letter} ...", file=sys.stderr, flush=True)
        if letter in GROUPS:
            chosen = "wall" if letter == "D" else clock
            rows = run_json([*words, "--repeats", repeats, "--clock", chosen])
            keys = [(line, way) for line in GROUPS[letter][0] for way in ("forward", "backward")]
            for (line, way), row in zip(keys, rows, strict=True):
                figures.bench[letter, line, way] = row
        elif letter == "E":
            figures.scratch = run_json(words)[0]
        elif letter == "F":
            library = str(build / "bench/libattndrop_c.so")
            more = ["--repeats", repeats, "--clock", clock]
            for row in run_json([*words, *more], ATTNDROP_C=library):
                figures.peer[row["case"], row["direction"]] = row
        elif letter == "H":
            figures.python = run_json([*words, "--repeats", repeats, "--clock", clock])
        else:
            rows = run_json(words)["benchmarks"]
            figures.keep_cells = next(
                row["items_per_second"] for row in rows if row["name"].endswith("_median")
            )
    return figures


def processor():
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    return re.search(r"model name\s*: (.*)", text).group(1)


def describe_machine(build, figures, load, clock):
    version = run_json([build / "cli/attndrop", "--version", "--json"])
    wide = figures.of("A", "q2048 k2048 d64", "forward")
    narrow = figures.of("B", "q2048 k2048 d64", "forward")
    two = figures.of("D", "q2048 k2048 d64", "forward")
    busy = "" if load < 0.5 else f"; **other work was running (load average {load:.1f})**"
    rates = ", ".join(
        f"{row['target']} on {row['threads']} thread{'s' * (row['threads'] > 1)} "
        f"{row['peak_flops'] / 1e9:.0f}"
        for row in (wide, narrow, two)
    )
    return (
        f"{processor()}, {os.cpu_count()} processors, {platform.system()}; "
        f"{version['compiler']}; {clock} time{busy}. "
        f"Multiply-add peak, 10^9 operations a second: {rates}.\n"
    )


def shown(words, build):
    """A command as one may type it, problems left out."""
    text = " ".join(str(word) for word in words)
    text = re.sub(r"( --problem (?:(?! --).)*)+", " --problem LINE ...", text)
    text = text.replace(f"{build}/cli/", "").replace(f"{build}/", "build/bench/")
    text = text.replace(sys.executable, "python").replace(f"{ROOT}/", "")
    text = re.sub(r"^\S*/python\S*(?= bench/)", "python", text)
    return f"`{text}`"


def bounds(values):
    """Numbers of a floor or an aim, equal neighbours once; a dash where there is none."""
    texts = ["-" if value is None else f"{value:g}" for value in values]
    return " / ".join(x for i, x in enumerate(texts) if i == 0 or x != texts[i - 1])


def mark(values, bounds, at_least):
    """A reached figure; bold where it misses the floor."""
    texts = []
    for value, bound in zip(values, bounds, strict=True):
        text = f"{value:.3g}"
        is_met = bound is None or (value >= bound if at_least else value <= bound)
        texts.append(text if is_met else f"**{text}**")
    return texts


def table(rows, figures):
    lines = ["| what | floor | aim | reached | from |", "|---|---|---|---|---|"]
    missed = 0
    for row in rows:
        reached = mark(row.values(figures), row.floor, row.at_least)
        missed += sum(text.startswith("**") for text in reached)
        cells = [row.what, bounds(row.floor), bounds(row.aim), " / ".join(reached), row.source]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n", missed


def report(figures, machine, legend):
    text, missed = table(ROWS, figures)
    text = f"{machine}\n{text}\n"
    if figures.python:
        second, missed_there = table(PYTHON_ROWS, figures)
        text += f"From PyTorch, on one thread:\n\n{second}\n"
        missed += missed_there
    return text + legend, missed


def main():
    parser = argparse.ArgumentParser(description="the table of docs/benchmarks.md")
    parser.add_argument("build", type=pathlib.Path, help="a build with ATTNDROP_BENCHMARKS=ON")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--python", help="a Python with torch and attndrop, for the second table")
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    load = os.getloadavg()[0]
    figures = measure(build, arguments.python, arguments.repeats, arguments.clock)
    legend = "".join(
        f"- {letter}: {shown(words, build)}\n"
        for letter, words in commands(build, arguments.python).items()
    )
    machine = describe_machine(build, figures, load, arguments.clock)
    text, missed = report(figures, machine, legend)
    print(text)
    print(f"{missed} figures miss their floor", file=sys.stderr)
    if arguments.write:
        page = PAGE.read_text(encoding="utf-8")
        begin, end = page.index(BEGIN) + len(BEGIN), page.index(END)
        PAGE.write_text(page[:begin] + text + page[end:], encoding="utf-8")


if __name__ == "__main__":
    main()
