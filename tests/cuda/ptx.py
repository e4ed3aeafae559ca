# SPDX-License-Identifier: MIT
"""Kernel sources as a CPU can run them: each asm statement becomes a call of emulated_ptx.h.

ptx.py OUT SOURCE ...: writes OUT/<name of SOURCE>, with #line, so that faults name the source. An
instruction that is not known here ends it: nothing is left out silently.
"""

import re
import sys
from pathlib import Path

# What begins a template, and the statement, of operands {0}, {1}, ..
PLAIN = [
    ("prmt.b32", "{0} = emulated::prmt({1}, {2}, {3});"),
    ("add.rn.sat.f32", "{0} = emulated::saturated({1} + {2});"),
    ("mul.rn.sat.f32", "{0} = emulated::saturated({1} * {2});"),
    ("dp2a.lo.u32.u32", "{0} = emulated::dp2a({1}, {2}, {3});"),
    ("dp4a.u32.u32", "{0} = __dp4a((uint32_t)({1}), (uint32_t)({2}), (uint32_t)({3}));"),
    ("lop3.b32 %0,%1,%2,%3,0xCA;", "{0} = emulated::choose({1}, {2}, {3});"),
    ("ld.shared.v4.u32", "emulated::load_shared({4}, {{&{0}, &{1}, &{2}, &{3}}});"),
    ("ld.shared.v2.u32", "emulated::load_shared({2}, {{&{0}, &{1}}});"),
    ("ld.shared.u32", "emulated::load_shared({1}, {{&{0}}});"),
    ("ld.shared.u8", "{0} = *(const uint8_t *)__cvta_shared_to_generic({1});"),
    ("ld.global.nc.v4.b32", "emulated::load({4}, {{&{0}, &{1}, &{2}, &{3}}});"),
    ("ld.global.nc.b32", "emulated::load({1}, {{&{0}}});"),
    ("cp.async.ca.shared.global [%0],[%1],4;", "emulated::copy({0}, {1}, 4);"),
    ("cp.async.cg.shared.global [%0],[%1],16;", "emulated::copy({0}, {1}, 16);"),
    ("cp.async.commit_group", "emulated::end_copies();"),
    ("cp.async.wait_group 3", "emulated::wait_for_copies(3);"),
    ("{.reg .u16 h; ld.global.nc.u16 h,[%1]; cvt.u32.u16 %0,h;}", "{0} = *(const uint16_t *)({1});"),
    (
        "{.reg .pred p; setp.ne.b32 p,%5,0; @!p ld.global.nc.u32 %0,[%4];",
        "emulated::load_bytes({4}, ({5}) == 0, {{&{0}, &{1}, &{2}, &{3}}});",
    ),
    ("atom.acq_rel.gpu.global.add.u32 %0,[%1],1;", "{0} = atomicAdd({1}, 1u);"),
    ("fence.proxy.async", ";"),
    ("wgmma.fence", ";"),
    ("wgmma.commit_group", ";"),
    ("wgmma.wait_group", ";"),
    ("griddepcontrol", ";"),
]


def split(text: str, separator: str) -> list[str]:
    """At separators outside of parentheses and strings."""
    parts, depth, quoted, start, i = [], 0, False, 0, 0
    while i < len(text):
        c = text[i]
        if c == '"' and text[i - 1] != "\\":
            quoted = not quoted
        elif not quoted:
            depth += (c in "([{") - (c in ")]}")
            if c == separator and depth == 0:
                parts.append(text[start:i])
                start = i + 1
        i += 1
    return [*parts, text[start:]]


def operands(text: str) -> list[str]:
    found = []
    for operand in filter(None, map(str.strip, split(text, ","))):
        expression = re.fullmatch(r'"[^"]+"\s*\((.*)\)', operand, re.S)
        array = re.fullmatch(r"TAMIS_LINE\d+\((\w+), *\d+\)", operand)  # a product's result
        if expression:
            found.append(expression[1])
        elif array and array[1] not in found:
            found.append(array[1])
    return found


def product(template: str, o: list[str]) -> str:
    is_unsigned = "true" if ".u8.s8" in template else "false"
    if template.startswith("mma.sync"):
        to = ", ".join(f"(uint32_t *)&{x}" for x in o[:4])
        start = ", ".join([o[10]] * 4 if len(o) > 10 else o[:4])
        a, b = ", ".join(o[4:8]), ", ".join(o[8:10])
        return f"emulated::mma<{is_unsigned}>({{{to}}}, {{{a}}}, {{{b}}}, {{{start}}});"
    if len(o) == 3:  # both matrices in shared memory, nothing to add to
        return f"emulated::wgmma_of_shared({o[0]}, {o[1]}, {o[2]});"
    add = o[6] if len(o) > 6 else template.rstrip(";")[-1]
    return f"emulated::wgmma<{is_unsigned}>({o[0]}, {{{', '.join(o[1:5])}}}, {o[5]}, {add});"


def call(statement: str) -> str:
    parts = split(statement.replace("::", ": :"), ":")
    template = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', parts[0]))
    o = [x for part in parts[1:3] for x in operands(part)]
    if template == "":
        return ";"
    if ".mma_async" in template or template.startswith("mma.sync"):
        return product(template, o)
    for begin, text in PLAIN:
        if template.startswith(begin):
            return text.format(*o)
    raise SystemExit(f"ptx.py: not known: {template}")


def end_of(text: str, at: int) -> int:
    """Of the parenthesis that opens at `at`."""
    depth, quoted = 0, False
    for i in range(at, len(text)):
        if text[i] == '"' and text[i - 1] != "\\":
            quoted = not quoted
        elif not quoted:
            depth += (text[i] == "(") - (text[i] == ")")
            if depth == 0:
                return i
    raise SystemExit("ptx.py: an asm statement without end")


def translate(text: str) -> str:
    out, at = [], 0
    for found in re.finditer(r"\basm(?: volatile)?\(", text):
        end = end_of(text, found.end() - 1)
        lines = "\n" * text.count("\n", found.start(), end)
        out += [text[at : found.start()], call(text[found.end() : end]), lines]
        at = text.index(";", end) + 1
    out.append(text[at:])
    dynamic = r"extern __shared__ (?:__align__\(\d+\) )?(\w+) (\w+)\[\];"
    return re.sub(dynamic, r"\1 *const \2 = (\1 *)emulated::dynamic_shared();", "".join(out))


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for source in map(Path, sys.argv[2:]):
        head = f'#pragma GCC system_header\n#line 1 "{source}"\n'  # nvcc's warnings, not g++'s
        (out / source.name).write_text(head + translate(source.read_text()))


if __name__ == "__main__":
    main()
