#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Registers, spills and SASS instructions of every CUDA kernel against bench/gpu/gate.txt.

Usage: tools/gpu-gate.py check|accept

Nothing runs: the kernels are compiled as cmake/cuda.cmake does, for sm_80 and sm_90a, and measured
by ptxas and the size of their code (16 bytes an instruction). check fails where a kernel spills
more, takes more registers or has over 3% more instructions than committed; accept writes the new
figures: commit them with the reason.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FIGURES = ROOT / "bench" / "gpu" / "gate.txt"
ARCHS = ("sm_80", "sm_90a")
GROWTH = 1.03
NVCC = shutil.which("nvcc", path=os.environ.get("PATH", "") + ":/usr/local/cuda/bin")


def start(arch, cubin):
    flags = ["-std=c++17", "-O3", "-fmad=false", "-Xptxas", "-v", f"-arch={arch}", f"-I{ROOT}/include", f"-I{ROOT}/src"]
    return subprocess.Popen([NVCC, "-cubin", *flags, f"{ROOT}/src/kernels/cuda/kernels.cu", "-o", cubin],
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def registers_and_spills(log):
    """kernel -> (registers, bytes of spill stores and loads), from ptxas -v"""
    found = {}
    for text in log.split("Compiling entry function '")[1:]:
        spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", text)
        found[text.split("'")[0]] = (int(re.search(r"Used (\d+) registers", text).group(1)),
                                     sum(map(int, spills.groups())))
    return found


def instructions(cubin):
    """kernel -> instructions: the size of its section of code"""
    sections = subprocess.run(["readelf", "-SW", cubin], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"\.text\.(\w+)\s+PROGBITS\s+\w+\s+\w+\s+(\w+)", sections)
    return {name: int(size, 16) // 16 for name, size in found}


def measure():
    """(kernel, arch) -> (registers, spilled bytes, instructions)"""
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        jobs = [(arch, f"{folder}/{arch}.cubin") for arch in ARCHS]
        for (arch, cubin), job in [(pair, start(*pair)) for pair in jobs]:
            log = job.communicate()[0]
            if job.returncode:
                sys.exit(f"{log}gpu-gate: FAILED: {arch} did not compile")
            counts, used = instructions(cubin), registers_and_spills(log)
            if not used or set(counts) != set(used):
                sys.exit("gpu-gate: FAILED: ptxas and the compiled code do not name the same kernels")
            figures |= {(name, arch): (*used[name], counts[name]) for name in used}
    return figures


def compare(was, now):
    bad = False
    for key in sorted(set(was) | set(now)):
        name = f"gpu-gate: {key[0]} {key[1]}"
        if key not in now or key not in was:
            print(f"{name}: {'no longer compiled' if key in was else 'has no committed figures'}: FAILED")
            bad = True
            continue
        (registers, spill, count), (registers0, spill0, count0) = now[key], was[key]
        worse = registers > registers0 or spill > spill0 or count > GROWTH * count0
        if was[key] != now[key]:
            print(f"{name}: registers {registers0} -> {registers}, spilled bytes {spill0} -> {spill}, "
                  f"instructions {count0} -> {count}{': FAILED' if worse else ''}")
        bad |= worse
    return bad


def accept(now, version):
    lines = [f"# nvcc {version}: kernel, architecture, registers, spilled bytes, SASS instructions"]
    lines += [" ".join(map(str, (*key, *now[key]))) for key in sorted(now)]
    new = FIGURES.with_suffix(".tmp")
    new.write_text("\n".join(lines) + "\n")
    os.replace(new, FIGURES)


def main():
    if sys.argv[1:] not in (["check"], ["accept"]):
        sys.exit("usage: tools/gpu-gate.py check|accept")
    if NVCC is None:
        print("gpu-gate: SKIPPED: no nvcc on this machine")
        return 0
    text = subprocess.run([NVCC, "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"V([0-9.]+)", text).group(1)
    if sys.argv[1] == "accept":
        accept(measure(), version)
        return 0
    head, *rest = FIGURES.read_text().splitlines()
    if not head.startswith(f"# nvcc {version}:"):
        print(f"gpu-gate: SKIPPED: figures are of '{head[2:].split(':')[0]}', this is nvcc {version}")
        return 0
    now = measure()
    bad = compare({tuple(f[:2]): tuple(map(int, f[2:])) for f in map(str.split, rest)}, now)
    print(f"gpu-gate: {len(now)} kernels compared with the committed figures{': FAILED' if bad else ''}")
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
