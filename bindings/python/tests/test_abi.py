# SPDX-License-Identifier: MIT
"""Every mirror and prototype against the headers: a C program prints what the compiler laid out."""

import ctypes
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tamis import _abi, errors

INCLUDE = Path(__file__).resolve().parents[3] / "include"
#: Ranks that share a request's positions are C's: no Python transport asks for them.
NOT_MIRRORED = {"shards.h"}


def headers():
    for path in sorted((INCLUDE / "tamis").glob("*.h")):
        if path.name not in NOT_MIRRORED:
            text = path.read_text()
            yield re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


def declared_structs():
    out = {}
    for text in headers():
        for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", text, re.DOTALL):
            names = []
            for declaration in body.split(";")[:-1]:
                for part in declaration.split(","):
                    names.append(re.search(r"(\w+)(?:\[[^\]]*\])*\s*$", part).group(1))
            out[name] = names
    return out


def declared_calls():
    out = {}
    for text in headers():
        text = re.sub(r"^#.*(?:\\\n.*)*", "", text, flags=re.MULTILINE)
        for result, name, arguments in re.findall(
            r"TAMIS_API\s+([\w\s*]+?)(\w+)\((.*?)\);", text, re.DOTALL
        ):
            depth = 0
            parts = [""]
            for c in arguments:
                depth += (c == "(") - (c == ")")
                if c == "," and depth == 0:
                    parts.append("")
                else:
                    parts[-1] += c
            parts = [part.strip() for part in parts]
            out[name] = (result.strip(), [] if parts == ["void"] else parts)
    return out


def test_every_struct_is_mirrored_and_field_by_field():
    declared = declared_structs()
    assert len(declared) > 25
    assert set(declared) == set(_abi.STRUCTS)
    for name, fields in declared.items():
        assert [field[0] for field in _abi.STRUCTS[name]._fields_] == fields, name


def test_sizes_and_offsets_are_the_compilers(tmp_path):
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    lines = ["#include <stddef.h>", "#include <stdio.h>", "#include <tamis/tamis.h>"]
    lines.append('#define SIZE(t) printf(#t " %zu\\n", sizeof(t));')
    lines.append(
        '#define AT(t, f) printf(#t "." #f " %zu %zu\\n", offsetof(t, f), sizeof(((t *)0)->f));'
    )
    lines.append("int main(void) {")
    for name, cls in _abi.STRUCTS.items():
        lines.append(f"SIZE({name})")
        lines += [f"AT({name}, {field[0]})" for field in cls._fields_]
    lines.append("return 0; }")
    source = tmp_path / "layout.c"
    source.write_text("\n".join(lines))
    program = tmp_path / "layout"
    subprocess.run([compiler, f"-I{INCLUDE}", source, "-o", program], check=True)
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    found = dict(line.split(" ", 1) for line in printed.splitlines())
    for name, cls in _abi.STRUCTS.items():
        assert found[name] == str(ctypes.sizeof(cls)), name
        for field in cls._fields_:
            mine = getattr(cls, field[0])
            assert found[f"{name}.{field[0]}"] == f"{mine.offset} {mine.size}", (name, field[0])


def kind(declaration):
    """The ctypes type of a C parameter or result."""
    if "*" in declaration or "(" in declaration or declaration.endswith("]"):
        return "pointer"
    word = declaration.replace("const", "").split()[0]
    return {"tamis_status": "int32_t"}.get(word, word)


KINDS = {
    None: "void",
    ctypes.c_int32: "int32_t",
    ctypes.c_uint32: "uint32_t",
    ctypes.c_int64: "int64_t",
    ctypes.c_void_p: "pointer",
    ctypes.c_char_p: "pointer",
}


def test_every_call_has_its_prototype():
    declared = declared_calls()
    for stage in _abi.STAGES:  # TAMIS_STAGE_LIST declares these by a macro
        args = "const void *"
        run = [args, args, "int32_t ith", "int32_t nth", "tamis_error *error"]
        declared[f"tamis_{stage}"] = ("tamis_status", run)
        declared[f"tamis_{stage}_args_default"] = ("void", ["void *"])
        declared[f"tamis_cuda_{stage}"] = ("tamis_status", [args, args, "void *", "void *"])
    assert len(declared) > 100
    assert set(declared) == set(_abi.FUNCTIONS) | set(_abi.UNUSED)
    for name, (result, arguments) in _abi.FUNCTIONS.items():
        want_result, want = declared[name]
        assert KINDS[result] == kind(want_result), name
        assert [KINDS[argument] for argument in arguments] == [kind(part) for part in want], name


def test_stage_list_is_the_headers():
    text = (INCLUDE / "tamis" / "stages.h").read_text()
    listed = re.search(r"#define TAMIS_STAGE_LIST\(X\)((?:.*\\\n)*.*)", text).group(1)
    assert re.findall(r"X\((\w+)\)", listed) == list(_abi.STAGES)


def test_status_codes_and_texts_are_the_headers():
    text = (INCLUDE / "tamis" / "status.h").read_text()
    listed = re.search(r"#define TAMIS_STATUS_LIST\(X\)((?:.*\\\n)*.*)", text).group(1)
    codes = re.findall(r'X\((\w+), (-?\d+), "([^"]*)"\)', listed)
    assert len(codes) > 10
    assert {int(code): summary for _, code, summary in codes if code != "0"} == {
        code: cls.summary for code, cls in errors.BY_STATUS.items()
    }


def test_constants_are_the_headers():
    text = "".join(headers())
    values = dict(re.findall(r"TAMIS_(\w+)\s*=\s*(-?\d+)", text))
    for i, role in enumerate(_abi.ROLES):
        assert values[f"ROLE_{role.upper()}"] == str(i)
    for name, value in _abi.NUMERICS.items():
        assert values[f"NUMERICS_{name.upper()}"] == str(value)
    for name in ("F32", "BF16", "K_MXFP4_PAGE", "K_MXFP4_SPLIT", "K_MXFP4_ROW"):
        assert values[name] == str(getattr(_abi, name))
    assert values["EXPAND_KEEP_DUPLICATES"] == str(_abi.EXPAND_KEEP_DUPLICATES)
    assert values["EXPAND_FIXED_WIDTH"] == str(_abi.EXPAND_FIXED_WIDTH)
    assert [values[f"SPARSE_{name}"] for name in ("OFF", "ON", "AUTO")] == ["0", "1", "2"]
    assert _abi.SPARSE == {False: 0, True: 1, "auto": 2}
