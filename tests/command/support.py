# SPDX-License-Identifier: MIT
"""What the command's tests share: running it, and safetensors files read and written with the standard library alone."""
import array
import json
import os
import struct
import subprocess
import sys
import tempfile

TYPES = {"I32": "i", "I64": "q", "F32": "f", "U8": "B"}
TAMIS = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else "tamis"
SMALL = ["--positions", "3000", "--rows", "12", "--topk", "64", "--blocks", "100", "--heads", "8", "--dim", "64", "--layers", "2"]


class Run:
    """One run of the command: status, out, err."""

    def __init__(self, *args, env=None):
        done = subprocess.run([TAMIS, *map(str, args)], capture_output=True, text=True, env={**os.environ, **(env or {})})
        self.status, self.out, self.err = done.returncode, done.stdout, done.stderr

    def last(self):
        return self.out.rstrip("\n").split("\n")[-1]


def good(*args, **more):
    run = Run(*args, **more)
    assert run.status == 0, (args, run.status, run.out, run.err)
    assert run.err == "", run.err
    return run


def bad(*args, **more):
    """The command refuses: status 2, one line on stderr, nothing on stdout."""
    run = Run(*args, **more)
    assert run.status == 2, (args, run.status, run.out, run.err)
    assert run.err.count("\n") == 1 and run.err.startswith("tamis"), run.err
    assert run.out == "", run.out
    return run.err


class File:
    """Tensors of a safetensors file as arrays with shapes."""

    def __init__(self, path):
        data = open(path, "rb").read()
        size = struct.unpack("<Q", data[:8])[0]
        self.header = json.loads(data[8:8 + size])
        self.metadata = self.header.pop("__metadata__", {})
        self.shape, self.dtype, self.data = {}, {}, {}
        end = 0
        for name, tensor in sorted(self.header.items(), key=lambda item: item[1]["data_offsets"]):
            first, last = tensor["data_offsets"]
            assert first == end, (name, "holes between tensors")
            end = last
            values = array.array(TYPES[tensor["dtype"]])
            values.frombytes(data[8 + size + first:8 + size + last])
            self.shape[name], self.dtype[name], self.data[name] = tensor["shape"], tensor["dtype"], values
        assert 8 + size + end == len(data)

    def names(self):
        return set(self.data)

    def row(self, name, r):
        width = self.shape[name][-1]
        return self.data[name][r * width:(r + 1) * width]

    def set_row(self, name, r, values):
        width = self.shape[name][-1]
        assert len(values) == width
        self.data[name][r * width:(r + 1) * width] = array.array(TYPES[self.dtype[name]], values)

    def add(self, name, dtype, shape, values):
        self.shape[name], self.dtype[name], self.data[name] = shape, dtype, values

    def write(self, path):
        header, end = {"__metadata__": self.metadata}, 0
        for name, values in self.data.items():
            size = len(values) * values.itemsize
            header[name] = {"dtype": self.dtype[name], "shape": self.shape[name], "data_offsets": [end, end + size]}
            end += size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(path, "wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            for values in self.data.values():
                out.write(values.tobytes())


def make(folder, *options, name="trace.st"):
    """A small trace and the result of a run on it."""
    trace, result = os.path.join(folder, name), os.path.join(folder, "result.st")
    good("gen", trace, *SMALL, *options)
    good("run", trace, "-o", result)
    return trace, result


def device(cuda):
    """Whether `info`'s CUDA part describes a machine whose first GPU can be used."""
    return cuda["built"] and cuda["driver"] is not None and len(cuda["devices"]) > 0 and cuda["devices"][0]["supported"]


def main(tests):
    """Runs the test named on the command line in an empty folder, which must be left without temporaries."""
    what = sys.argv[2]
    with tempfile.TemporaryDirectory() as folder:
        tests["test_" + what](folder)
        left = [name for name in os.listdir(folder) if ".tmp" in name]
        assert not left, left


def skip(why):
    print("SKIPPED:", why)
    sys.exit(77)
