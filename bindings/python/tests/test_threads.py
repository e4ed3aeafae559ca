# SPDX-License-Identifier: MIT
"""Calls release the GIL and may run at once; importing loads numpy and nothing larger."""

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from problems import Problem

import tamis


def run(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_calls_release_the_gil():
    """While one thread is inside a long call, this one goes on counting. Were the GIL held, the
    longest gap between two counts would be the call."""
    p = Problem(1, rows=1, heads=32, length=300_000, page_size=512)
    backend = tamis.Backend("ref")
    took = []

    def work():
        start = time.perf_counter()
        tamis.stages.mqa_logits(p.k, p.rows, p.query, backend=backend)
        took.append(time.perf_counter() - start)

    thread = threading.Thread(target=work)
    thread.start()
    longest, last = 0.0, time.perf_counter()
    while thread.is_alive():
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    thread.join()
    assert took[0] > 0.05, "the call is too short to tell"
    assert longest < took[0] / 2


def test_one_backend_serves_several_threads_at_once():
    problems = [Problem(seed, rows=4, heads=32, length=3000) for seed in range(4)]
    want = [tamis.stages.source(p.k, p.rows, p.query, 64, 20) for p in problems]
    backend = tamis.Backend("auto", 2)
    got = [None] * 4
    errors = []

    def work(i):
        p = problems[i]
        try:
            for _ in range(5):
                got[i] = tamis.stages.source(p.k, p.rows, p.query, 64, 20, backend=backend)
                bad = p.rows._replace(ke=p.rows.ke + 10**6)
                with pytest.raises(tamis.errors.LengthError, match=r"rows.ke\["):
                    tamis.stages.source(p.k, bad, p.query, 64, 20, backend=backend)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for a, b in zip(got, want):
        assert np.array_equal(a.blocks, b.blocks)
        assert np.array_equal(a.selection.positions, b.selection.positions)


def test_a_child_of_fork_has_threads_of_its_own():
    code = (
        "import os, numpy as np, tamis\n"
        "b = tamis.Backend('auto', 2)\n"
        "k = tamis.KCache.rows(np.zeros((99, 68), np.uint8))\n"
        "q = [np.zeros((9, 4, n), np.uint8) for n in (64, 4)]\n"
        "q = tamis.Query(*q, np.ones((9, 4), 'f4'))\n"
        "rows = tamis.Rows(np.full(9, 99, np.int32))\n"
        "call = lambda: tamis.stages.source(k, rows, q, 8, backend=b).selection.counts.sum()\n"
        "assert call() == 72\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os._exit(0 if call() == 72 else 3)\n"
        "print(os.waitpid(child, 0)[1], call())\n"
    )
    done = run(code)
    assert done.stdout == "0 72\n", done.stderr


def test_importing_loads_neither_torch_nor_the_driver():
    code = (
        "import sys, tamis\n"
        "maps = open('/proc/self/maps').read()\n"
        "print('torch' in sys.modules, 'libcuda' in maps, 'libtamis' in maps)\n"
    )
    assert run(code).stdout == "False False True\n"


def test_a_missing_or_foreign_library_is_named(tmp_path):
    foreign = tmp_path / "libtamis.so"
    source = tmp_path / "other.c"
    source.write_text("int tamis_abi_version(void) { return 7; }\n")
    subprocess.run(["cc", "-shared", "-o", foreign, source], check=True)
    done = run("import tamis", TAMIS_LIBRARY=str(foreign))
    assert done.returncode == 1
    assert f"ImportError: {foreign}: required a libtamis of this version" in done.stderr
    done = run("import tamis", TAMIS_LIBRARY=str(tmp_path / "none.so"))
    assert done.returncode == 1 and "none.so" in done.stderr


def test_every_public_thing_is_documented():
    import inspect

    names = [name for name in tamis.__all__ if name != "errors"]
    things = [getattr(tamis, name) for name in names]
    things += [getattr(tamis.stages, name) for name in tamis.stages.__all__]
    for thing in things:
        assert inspect.getdoc(thing), thing
        if inspect.isclass(thing):
            for name, member in vars(thing).items():
                if callable(member) and not name.startswith("_"):
                    assert inspect.getdoc(member), (thing, name)
