# SPDX-License-Identifier: Apache-2.0
"""Habits that the whole tree keeps: sizes, layers, licence lines, documents and their links."""

import json
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CODE_FOLDERS = ["include", "src", "cli", "python", "tests", "fuzz", "bench", "examples", "docs"]


def files(folders, *suffixes):
    found = [
        path
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in suffixes and path.is_file()
    ]
    assert found or folders == ["fuzz"], f"no {suffixes} in {folders}"
    return found


def cpp(*folders):
    return files(list(folders), ".h", ".cc")


def code_of(path):
    """The text without comments and string literals."""
    text = path.read_text(encoding="utf-8")
    text = re.sub(r'R"(\w*)\(.*?\)\1"', '""', text, flags=re.S)
    return re.sub(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', '""', text, flags=re.S)


def includes_of(path):
    return re.findall(r'^#include ([<"][^>"]+[>"])', path.read_text(encoding="utf-8"), flags=re.M)


def name_of(path):
    return str(path.relative_to(ROOT))


def check(paths, complain):
    found = [f"{name_of(path)}: {text}" for path in paths for text in complain(path)]
    assert not found, "\n" + "\n".join(found)


def test_every_source_names_its_licence_and_says_what_it_holds():
    def complain(path):
        lines = path.read_text(encoding="utf-8").splitlines()
        comment = "// " if path.suffix in (".h", ".cc") else "# "
        if not lines or lines[0] != comment + "SPDX-License-Identifier: Apache-2.0":
            yield "line 1 is not the SPDX line"
        elif len(lines) < 2 or not re.match(r'(// |# |""")[\w`]', lines[1]):
            yield "line 2 does not say what the file holds"

    check(files(CODE_FOLDERS, ".h", ".cc", ".py"), complain)


def is_kernel(path):
    """Compiled once for each instruction set, in the way that Highway prescribes."""
    compiled = [ROOT / "src/kernels/kernels.cc", ROOT / "cli/yardstick.cc"]
    return path.name.endswith("-inl.h") or path in compiled


def test_headers_are_included_once():
    def complain(path):
        if path.name.endswith("-inl.h"):
            if "defined(HWY_TARGET_TOGGLE)" not in path.read_text(encoding="utf-8"):
                yield "no guard per target"
        elif "#pragma once" not in path.read_text(encoding="utf-8").splitlines():
            yield "no #pragma once"

    check(files(CODE_FOLDERS, ".h"), complain)


def test_files_stay_small():
    def complain(path):
        lines = path.read_text(encoding="utf-8").splitlines()
        limit = 60 if path.parent == ROOT / "src/schemes" else 500
        if len(lines) > limit:
            yield f"{len(lines)} lines, limit {limit}"
        for number, line in enumerate(lines, 1):
            if len(line) > 100 and "http" not in line:
                yield f"line {number} has {len(line)} columns, limit 100"

    check(files(CODE_FOLDERS, ".h", ".cc", ".py"), complain)


def test_public_headers_include_the_standard_library_only():
    def complain(path):
        for include in includes_of(path):
            if not re.fullmatch(r'<[a-z0-9_]+>|"attndrop/[a-z0-9_]+\.h"', include):
                yield include

    check(cpp("include"), complain)


# Instructions that Highway 1.0.3 does not know.
RAW_INTRINSICS = ["bf16_kernels.cc", "keep_words_gfni.cc"]


@pytest.mark.parametrize(
    "folder, allowed",
    [
        ("src/schemes", r'"attndrop/[a-z0-9_]+\.h"'),
        ("src/rng", r'"(attndrop|rng|core)/[a-z0-9_]+\.h"'),
        ("src/compat", r'"(attndrop|rng|core|compat)/[a-z0-9_]+\.h"'),
        ("src", r'"((attndrop|[a-z]+)/[a-z0-9_]+(-inl)?\.h|scheme_(includes|types)\.inc)"'),
    ],
)
def test_dependencies_point_one_way(folder, allowed):
    """The library includes neither the tool nor anything that only the tool or the tests use."""

    def complain(path):
        for include in includes_of(path):
            standard = re.fullmatch(r"<[a-z0-9_]+>|<(pthread|sys/\w+|unistd)\.h>", include)
            if path.name in RAW_INTRINSICS and include == "<immintrin.h>":
                continue
            outside = re.match('"(cli|tests|support)/', include)
            if include.startswith('"hwy/') and not is_kernel(path):
                yield f"{include}: Highway is for src/kernels"
            if not standard and (outside or not re.fullmatch(allowed, include)):
                yield include

    check(cpp(folder), complain)


def test_the_library_neither_throws_nor_prints_nor_aborts():
    forbidden = re.compile(
        r"\b(throw|abort|exit|terminate|dynamic_cast|typeid|cout|cerr|clog|printf|puts)\b"
    )

    def complain(path):
        for number, line in enumerate(code_of(path).splitlines(), 1):
            if match := forbidden.search(line):
                yield f"{match.group()} ({line.strip()}, near line {number})"

    check(cpp("include", "src"), complain)


def test_macros_are_defined_in_one_place():
    def complain(path):
        if path == ROOT / "include/attndrop/export.h":
            return
        if is_kernel(path):
            guards = r"^\s*#\s*define (?!ATTNDROP_\w+_INL_H_$|HWY_).*"
            yield from re.findall(guards, code_of(path), flags=re.M)
        else:
            yield from re.findall(r"^\s*#\s*define .*", code_of(path), flags=re.M)

    check(cpp("include", "src", "cli"), complain)


def test_nothing_is_left_half_done():
    word = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")

    def complain(path):
        yield from word.findall(path.read_text(encoding="utf-8"))

    check(files(CODE_FOLDERS + ["cmake", "docs"], ".h", ".cc", ".py", ".cmake", ".md"), complain)


def test_every_scheme_has_its_page():
    def complain(path):
        if not (ROOT / f"docs/math/{path.stem}.md").is_file():
            yield f"there is no docs/math/{path.stem}.md"

    check(files(["src/schemes"], ".h"), complain)


def test_links_between_documents_lead_somewhere():
    def complain(path):
        text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.S)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if not re.match(r"[a-z]+:|#", target):
                if not (path.parent / target.split("#")[0]).exists():
                    yield f"broken link to {target}"

    check(sorted(ROOT.glob("*.md")) + files(["docs"], ".md"), complain)


def test_mutants_still_apply():
    """A fault whose text is gone breaks nothing, and nobody would notice until all are run."""
    mutants = json.loads((ROOT / "tests/mutants/mutants.json").read_text(encoding="utf-8"))
    gone = [
        mutant["name"]
        for mutant in mutants
        if (ROOT / mutant["file"]).read_text(encoding="utf-8").count(mutant["search"]) != 1
    ]
    assert not gone
