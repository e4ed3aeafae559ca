# SPDX-License-Identifier: MIT
"""Completion for bash, sourced and asked as bash asks it; and the manual page: neither may miss an option."""
import os
import re
import subprocess

from support import TAMIS, good, main

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
SUBCOMMANDS = {"run", "check", "gen", "info", "bench", "plan", "replay"}
SCRIPT = os.path.join(ROOT, "completion", "tamis.bash")


def options_of(name):
    """Options as --help lists them, with the sign where they take a value."""
    return set(re.findall(r"^ {2,6}(?:-., )?(--[a-z-]+=?)", good(name, "--help").out, re.M))


def complete(*words):
    """What bash offers for the last of the words; --option=value comes cut, as readline cuts it."""
    cut = [TAMIS]
    for word in words:
        cut += re.match(r"(--[a-z-]+)(=)(.*)", word).groups() if re.match(r"--[a-z-]+=", word) else [word]
    if len(cut) > 2 and cut[-2:] == ["=", ""]:
        cut.pop()  # nothing after the sign: the sign is the word
    last = cut[-1]
    lines = ["source '%s'" % SCRIPT, "COMP_WORDS=(%s)" % " ".join("'%s'" % word for word in cut),
             "COMP_CWORD=%d" % (len(cut) - 1), "_tamis tamis '%s' '%s'" % (last, cut[-2]),
             'printf "%s\\n" "${COMPREPLY[@]}"']
    done = subprocess.run(["bash", "-uc", "\n".join(lines)], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "", done
    return done.stdout.split()


def test_completion_words(folder):
    assert set(complete("")) == SUBCOMMANDS | {"report", "--help", "--version"}
    assert complete("ch") == ["check"]
    for name in SUBCOMMANDS:
        options = options_of(name)
        assert {"--json", "--help"} <= options and set(complete(name, "-")) == options, (name, options)
    assert complete("plan", "--page-") == ["--page-align=", "--page-size=", "--page-stride="]
    assert complete("gen", "--ha") == ["--hazard="]
    hazards = ["ties", "zeros", "nan", "spans", "heavy-tail", "negative-weights", "random-bits"]
    assert complete("gen", "--hazard", "") == complete("gen", "out.st", "--hazard=") == hazards
    assert complete("gen", "--hazard=n") == ["nan", "negative-weights"]
    shapes = good("bench", "--list").out.replace(" default", "").split()
    assert complete("bench", "--shape", "") == shapes and len(shapes) > 4
    assert complete("bench", "--shape=prefill-1m-5") == ["prefill-1m-512"]
    header = open(os.path.join(ROOT, "include", "tamis", "stages.h")).read()
    stages = re.findall(r"X\((\w+)\)", re.search(r"#define TAMIS_STAGE_LIST\(X\)(.*?[^\\])\n", header, re.S).group(1))
    assert sorted(complete("bench", "--stage", "")) == sorted(stages)
    assert complete("bench", "--cache=") == ["warm", "cold", "both"]
    assert complete("bench", "--clock", "c") == ["cpu"]
    assert complete("run", "--numerics", "") == ["exact", "bf16"]
    assert complete("check", "--numerics", "ref") == ["ref_bf16"]
    assert complete("run", "--tier", "re") == ["ref"]
    assert complete("plan", "--tier=re") == ["ref"]
    for name in ("run", "check", "bench", "plan", "replay"):
        assert complete(name, "--backend", "") == ["cpu", "cuda"] and complete(name, "--backend=cu") == ["cuda"]


def test_completion_files(folder):
    """Where a file is wanted nothing is offered, so that bash offers files."""
    assert complete("run", "") == [] and complete("plan", "c") == [] and complete("run", "-o", "r") == []
    assert complete("bench", "--shape", "./my") == [] and complete("plan", "--attention", "") == []
    out = subprocess.run(["bash", "-c", "source '%s'; complete -p tamis" % SCRIPT], capture_output=True, text=True).stdout
    assert out == "complete -o default -F _tamis tamis\n", out


def test_manual(folder):
    manual = open(os.path.join(ROOT, "docs", "tamis.1")).read().replace("\\-", "-")
    for name in SUBCOMMANDS:
        section = manual if name == "info" else re.search(r"\.SH %s\n(.*?)\.SH " % name.upper(), manual, re.S).group(1)
        for option in options_of(name) - {"--json", "--help", "--usage", "--version"}:
            assert option in section, (name, option)


main(globals())
