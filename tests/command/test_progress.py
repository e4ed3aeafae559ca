# SPDX-License-Identifier: MIT
"""The progress bar: drawn on stderr where that is a terminal, and nowhere else."""
import os
import pty
import subprocess

from support import SMALL, TAMIS, good, main, make


def on_terminal(*args):
    """What the command writes to a terminal that is its stderr, and its stdout, which is a pipe."""
    ours, theirs = pty.openpty()
    run = subprocess.Popen([TAMIS, *args], stdout=subprocess.PIPE, stderr=theirs, text=True)
    os.close(theirs)
    drawn = b""
    try:
        while part := os.read(ours, 65536):
            drawn += part
    except OSError:  # EIO: the other side is closed
        pass
    os.close(ours)
    out = run.communicate()[0]
    assert run.returncode == 0, (args, run.returncode, drawn)
    return drawn.decode(), out


def test_progress(folder):
    trace, result = make(folder)
    for label, args in (("gen", ["gen", os.path.join(folder, "g.st"), *SMALL]), ("run", ["run", trace, "-o", result]),
                        ("check", ["check", trace, result])):
        drawn, out = on_terminal(*args)
        first = drawn.split("\r")[1]
        assert first.startswith(label) and first.endswith("[" + "." * 40 + "]   0%"), drawn
        assert drawn.endswith("\r\033[K"), drawn  # the bar is wiped: results stand alone
        assert out and "\r" not in out and "\033" not in out, out
        quiet = good(*args)  # which says that a pipe as stderr got nothing
        assert "[...." not in quiet.out and "\r" not in quiet.out, quiet.out


main(globals())
