#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the core as two files, tamis.h and tamis.c, for hosts that vendor source.

usage: amalgamate.py OUTDIR

`cc -O3 -c tamis.c` builds it: files of a higher tier stand between pragmas that give their functions the
instructions they need, and contraction is switched off in the source. Names that are static in more than one
file get their file's name in front; everything else is the source as it is. docs/vendoring.md is the manual.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SRC, INCLUDE = ROOT / "src", ROOT / "include"
CORE = ["*.c", "format/*.c", "config/*.c", "cache/*.c", "kernels/*.c", "kernels/ref/*.c", "plan/*.c", "indexer/*.c",
        "shards/*.c"]
# Headers whose calls are not in CORE: kernels for a GPU need a compiler of their own.
APART = [INCLUDE / "tamis" / "cuda.h"]
# A tier's files, the machines that have it, and what its functions may use.
TIERS = [("kernels/x86/*_avx2.c", "defined(__x86_64__)", "avx2,fma,bmi,bmi2,popcnt")]
WORD = re.compile(r"[A-Za-z_]\w*")
# Comments and literals stay as they are; a member's name after . or -> is not the static of that name.
TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|(?:\.|->)\s*[A-Za-z_]\w*|[A-Za-z_]\w*',
                   re.S)
LICENCE = "/* SPDX-License-Identifier: MIT */\n"

OPENING = """
#if defined(__FAST_MATH__)
#error "tamis.c: build it without -ffast-math: results are defined to the bit"
#endif
/* Contraction is off: FMA stands only where it is written. */
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
#endif
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif
#include "tamis.h"
"""

TIER_OPENS = """
#if {machines}
#include <immintrin.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("{target}"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("{target}")
#endif
"""

TIER_CLOSES = """
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
"""


def read(path):
    text = path.read_text()
    if not text.startswith(LICENCE):
        sys.exit(f"amalgamate: {path}: no licence line")
    return text[len(LICENCE):]


class Writer:
    """Text with each of our headers where it is first included; lists (.inc) wherever they are."""

    def __init__(self, folders):
        self.folders = folders
        self.seen = set()

    def find(self, name, near):
        for folder in [near] + self.folders:
            if (folder / name).is_file():
                return (folder / name).resolve()
        return None

    def expand(self, path, skip=None):
        """The text of a file with our includes in place. skip: headers of this folder are left out."""
        out = []
        for line in read(path).splitlines():
            include = re.match(r'#include [<"]([\w./]+)[>"]', line)
            found = include and self.find(include.group(1), path.parent)
            if not found:
                out.append(line)
            elif found.suffix == ".inc" or (found not in self.seen and not (skip and skip in found.parents)):
                self.seen.add(found)
                out.append(self.expand(found, skip))
        return "\n".join(out)


def statics(text):
    """Names of a file's own functions, variables, types and constants, and its macros."""
    code = re.sub(r"/\*.*?\*/|__attribute__\(\(.*?\)\)", "", text, flags=re.S)
    names = set()
    for match in re.finditer(r"^static\s+([^=;{(]*?)(\w+)\s*(?:\[[^\]]*\]\s*)*[=;(]", code, re.M):
        names.add(match.group(2))
    for match in re.finditer(r"^typedef struct (\w+)", code, re.M):
        names.add(match.group(1))
    for match in re.finditer(r"^typedef [^{;]*?(\w+)(?:\([^;]*\))?;", code, re.M):
        names.add(match.group(1))
    for match in re.finditer(r"^enum\s*\w*\s*\{(.*?)\}", code, re.M | re.S):
        for item in match.group(1).split(","):
            word = WORD.search(item)
            if word and not item.lstrip().startswith("#"):
                names.add(word.group(0))
    macros = set(re.findall(r"^#define (\w+)", code, re.M)) - set(re.findall(r"^#undef (\w+)", code, re.M))
    return {n for n in names if not n.lower().startswith("tamis_")}, macros


def rename(text, names, prefix):
    def one(match):
        token = match.group(0)
        return prefix + token if token in names else token

    return TOKEN.sub(one, text)


def c_file(writer, path, clashes):
    own, macros = statics(read(path))
    body = rename(writer.expand(path, skip=INCLUDE), own & clashes, path.stem + "_")
    undefs = "".join(f"#undef {macro}\n" for macro in sorted(macros))
    return f"\n/* ==== src/{path.relative_to(SRC)} ==== */\n{body}\n{undefs}"


def core(version):
    files = [path for pattern in CORE for path in sorted(SRC.glob(pattern))]
    tiers = [(sorted(SRC.glob(pattern)), machines, target) for pattern, machines, target in TIERS]
    count = {}
    for path in files + [path for tier in tiers for path in tier[0]]:
        for name in statics(read(path))[0]:
            count[name] = count.get(name, 0) + 1
    clashes = {name for name, files_with in count.items() if files_with > 1}
    writer = Writer([SRC, INCLUDE])
    text = LICENCE + f"/* tamis.c: tamis {version}, made by tools/amalgamate.py: do not edit. */\n" + OPENING
    for path in files:
        text += c_file(writer, path, clashes)
    for paths, machines, target in tiers:
        text += TIER_OPENS.format(machines=machines, target=target)
        for path in paths:
            text += c_file(writer, path, clashes)
        text += TIER_CLOSES
    return text


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: amalgamate.py OUTDIR")
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    header_writer = Writer([INCLUDE])
    header_writer.seen.update(APART)
    header = header_writer.expand(INCLUDE / "tamis" / "tamis.h")
    for path in APART:
        header = re.sub(rf" \*   {re.escape(path.name)} .*\n", "", header)
    number = dict(re.findall(r"#define TAMIS_VERSION_(\w+) (\d+)", header))
    version = "{MAJOR}.{MINOR}.{PATCH}".format(**number)
    note = f"/* tamis.h: tamis {version}, made by tools/amalgamate.py: do not edit. */\n"
    (out / "tamis.h").write_text(LICENCE + note + header + "\n")
    (out / "tamis.c").write_text(core(version))


if __name__ == "__main__":
    main()
