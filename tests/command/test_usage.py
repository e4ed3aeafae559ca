# SPDX-License-Identifier: MIT
"""Help, exit codes, JSON, bad input and the promise that nothing is left half written."""
import json
import os
import signal
import subprocess
import time

from support import SMALL, TAMIS, File, Run, bad, good, main, make

SUBCOMMANDS = ["run", "check", "gen", "info", "bench", "plan", "replay"]


def test_help(folder):
    top = good("--help").out
    for name in SUBCOMMANDS:
        assert name in top
        text = good(name, "--help").out
        assert "--json" in text and len(text.split()) > 30, text
    for hazard in "ties zeros nan spans heavy-tail negative-weights random-bits".split():
        assert hazard in good("gen", "--help").out
    version = good("--version").out
    assert version.startswith("tamis ") and version == good("run", "--version").out


def test_exit_codes(folder):
    trace, result = make(folder)
    assert good("check", trace, result).status == 0
    broken = File(result)
    broken.set_row("selected.1", 3, list(broken.row("selected.2", 3)))
    broken.write(result)
    assert Run("check", trace, result).status == 1
    for args in ([], ["walk"], ["run"], ["check"], ["gen"], ["run", trace, trace], ["run", "--no-such", trace],
                 ["run", trace, "--threads", "0"], ["run", trace, "--threads", "4x"], ["run", trace, "--scores"],
                 ["run", trace, "--numerics", "fp8"], ["run", trace, "--layers", "1,x"], ["run", trace, "--layers", "77"],
                 ["run", trace, "--backend", "gpu"], ["run", trace, "--backend", "cuda", "--tier", "ref"],
                 ["check", trace, result, "--backend", "cuda"],
                 ["check", trace, result, result], ["check", trace, result, "--rows", "0"], ["check", trace],
                 ["gen", os.path.join(folder, "g"), "--hazard", "none"], ["gen", os.path.join(folder, "g"), "--dim", "96"],
                 ["gen", os.path.join(folder, "g"), "--positions", "1048577"],
                 ["gen", os.path.join(folder, "g"), "--positions", "8", "--rows", "9"], ["info", "more"]):
        run = Run(*args)
        assert run.status == 2 and run.out == "" and run.err.startswith("tamis"), (args, run.status, run.err)
    assert not os.path.exists(os.path.join(folder, "g"))


def test_json(folder):
    trace = os.path.join(folder, "t.st")
    result = os.path.join(folder, "r.st")
    made = json.loads(good("gen", trace, "--positions", "2000", "--rows", "4", "--layers", "1", "--json").out)
    assert made["positions"] == 2000 and made["rows"] == 4 and made["layers"] == 2
    ran = json.loads(good("run", trace, "-o", result, "--json").out)
    assert [layer["role"] for layer in ran["layers"]] == ["source", "consumer"]
    assert all(layer["selected"] == 4 * 512 and layer["ns_per_row"] > 0 for layer in ran["layers"])
    assert ran["layers"][0]["positions_scored"] == 1997 + 1998 + 1999 + 2000 and ran["result"] == result
    held = json.loads(good("check", trace, result, "--json").out)
    assert held["verdict"] == "exact" and held["rows"] == 4 and held["layers"] == 2 and held["differences"] == []
    assert {entry["class"] for entry in held["classes"]} == {"result", "exact", "bf16", "dg_bf16", "ref_bf16"}
    info = json.loads(good("info", "--json").out)
    assert info["tiers"][0] == {"name": "ref", "supported": True} and set(info["cuda"]) == {"built", "compiler", "driver", "devices"}
    assert info["cuda"]["built"] == (info["cuda"]["compiler"] is not None)
    broken = File(result)
    broken.set_row("selected.1", 0, [-1] * 512)
    broken.write(result)
    run = Run("check", trace, result, "--json")
    differences = json.loads(run.out)["differences"]
    assert run.status == 1 and differences[0]["row"] == 0 and differences[0]["list"] == "layer 1"


def test_bad_input(folder):
    trace, result = make(folder)
    whole = open(trace, "rb").read()
    out = os.path.join(folder, "out.st")
    path = os.path.join(folder, "bad\n.st")
    for data in (b"", whole[:7], whole[:200], whole[:-1], whole + b"x", b"\xff" * 64, whole.replace(b'"position"', b'"positiom"', 1)):
        open(path, "wb").write(data)
        message = bad("run", path, "-o", out)
        assert message.startswith("tamis: " + path.replace("\n", "?")), message
        bad("check", path, result)
        if data != whole.replace(b'"position"', b'"positiom"', 1):
            bad("check", trace, path)
        assert not os.path.exists(out)
    bad("run", os.path.join(folder, "missing"))
    bad("check", trace, os.path.join(folder, "missing"))
    half = File(trace)
    del half.data["w.1"]
    half.write(path)
    assert "w.1" in bad("run", path)
    odd = File(result)
    odd.shape["selected.1"] = [6, 128]
    odd.write(path)
    assert "selected.1" in bad("check", trace, path)
    odd = File(result)
    odd.shape["count.1"] = [3, 4]
    odd.write(path)
    assert "count.1" in bad("check", trace, path)


def test_output_whole(folder):
    trace, result = make(folder)
    before = open(result, "rb").read()
    bad("run", trace, "-o", os.path.join(folder, "no", "r.st"))
    bad("gen", os.path.join(folder, "no", "r.st"))
    bad("run", os.path.join(folder, "missing"), "-o", result)
    bad("run", trace, "-o", result, "--tier", "none")
    assert open(result, "rb").read() == before
    assert "TRACE" in bad("run", trace, "-o", trace)
    with open("/dev/full", "w") as full:
        done = subprocess.run([TAMIS, "run", trace], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done
    limited = "ulimit -f 40; trap '' XFSZ; exec \"$0\" \"$@\""
    done = subprocess.run(["sh", "-c", limited, TAMIS, "gen", os.path.join(folder, "g.st")], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done
    assert not os.path.exists(os.path.join(folder, "g.st"))


def begin(folder, *args, **more):
    """A run that has begun to write its file."""
    run = subprocess.Popen([TAMIS, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)
    while not any(".tmp" in name for name in os.listdir(folder)):
        assert run.poll() is None, run.communicate()
        time.sleep(0.002)
    return run


def test_output_refused(folder):
    """A file that cannot take its name is an error as any other: the writer is gone by then."""
    trace, _ = make(folder)
    for args in (["run", trace, "-o"], ["gen"]):
        bad(*args, "")
        bad(*args, folder)
    long, out = os.path.join(folder, "long.st"), os.path.join(folder, "out.st")
    good("gen", long, "--positions", "16384", "--rows", "32", "--layers", "0")
    for args in (["run", long, "--tier", "ref", "-o", out], ["gen", out]):
        run = begin(folder, *args)
        os.mkdir(out)
        message = run.communicate()[1]
        assert run.returncode == 2 and message.count("\n") == 1 and out in message, (run.returncode, message)
        os.rmdir(out)
        assert os.listdir(folder).count("out.st") == 0


def test_output_names(folder):
    """A name as long as the filesystem takes; a link to a file that is not there yet."""
    trace, _ = make(folder)
    long, link = os.path.join(folder, "n" * 250), os.path.join(folder, "link")
    good("run", trace, "-o", long)
    good("gen", long, *SMALL)
    os.symlink("made.st", link)
    good("run", trace, "-o", link)
    assert os.path.islink(link) and "blocks" in File(os.path.join(folder, "made.st")).names()


def test_tier(folder):
    trace, _ = make(folder)
    assert "tier ref" in good("run", trace, "--tier", "ref").out
    assert "tier ref" in good("run", trace, env={"TAMIS_TIER": "ref"}).out
    assert "tier ref" in good("run", trace, "--tier", "ref", env={"TAMIS_TIER": "none"}).out
    assert "--tier" in bad("run", trace, "--tier", "none")
    assert "TAMIS_TIER" in bad("run", trace, env={"TAMIS_TIER": "none"})
    assert "TAMIS_TIER" in bad("info", env={"TAMIS_TIER": "none"})
    assert good("run", trace, "--json", env={"TAMIS_TIER": ""}).out and good("info", env={"TAMIS_TIER": ""}).out


def writers(folder):
    """Runs that write for a while, each with its file."""
    trace, out = os.path.join(folder, "t.st"), os.path.join(folder, "r.st")
    good("gen", trace, "--positions", "65536", "--rows", "500", "--layers", "0")
    return [(["run", trace, "-o", out, "--tier", "ref"], out), (["gen", out], out)]


def test_stopped(folder):
    """A signal ends a run without a result and without its temporary."""
    for args, out in writers(folder):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            run = begin(folder, *args)
            run.send_signal(number)
            message = run.communicate()[1]
            assert run.returncode == 2 and message == f"tamis: stopped by signal {int(number)}\n", (args, run.returncode, message)
            assert sorted(os.listdir(folder)) == ["t.st"], (args, number, os.listdir(folder))


def test_not_stopped(folder):
    """A signal that the caller ignores, as nohup does, ends nothing."""
    args, out = writers(folder)[1]
    run = begin(folder, *args, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    run.send_signal(signal.SIGHUP)
    message = run.communicate()[1]
    assert run.returncode == 0 and message == "" and os.path.exists(out), (run.returncode, message)


def lost(args, shell):
    """The command, its streams set by a shell, fails in one line."""
    done = subprocess.run(["sh", "-c", shell, TAMIS, *args], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and done.stderr.startswith("tamis: "), (args, shell, done)


def test_output_lost(folder):
    """A report that does not arrive leaves no file; neither does a limit on file size; help is output, too."""
    trace, result = make(folder)
    os.remove(result)
    for args in (["run", trace, "-o", result], ["gen", result, *SMALL]):
        for more in ([], ["--json"]):
            for shell in ('exec "$0" "$@" >&-', 'exec "$0" "$@" >/dev/full', 'ulimit -f 1; exec "$0" "$@"'):
                lost([*args, *more], shell)
                assert os.listdir(folder) == ["trace.st"], (args, shell, os.listdir(folder))
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run([TAMIS, *args], stdout=write, stderr=subprocess.PIPE, text=True)
        os.close(write)
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done
        assert os.listdir(folder) == ["trace.st"], os.listdir(folder)
    for args in (["--help"], ["--version"], ["--usage"], ["run", "--help"], ["check", "--version"], ["info"], ["info", "--json"]):
        lost(args, 'exec "$0" "$@" >/dev/full')
        lost(args, 'exec "$0" "$@" >&-')


def test_one_line(folder):
    """Whatever is wrong with the arguments is told in one line."""
    for name in ("run", "check", "gen", "info", "bench", "plan"):
        for args in (["--no-such"], ["--no\nsuch"], ["-\n"], ["--json=3"], ["--help=3"]):
            message = bad(name, *args)
            assert message.startswith(f"tamis {name}: ") and message.endswith(f"; see tamis {name} --help\n"), message
    assert "'--no?such'" in bad("run", "--no\nsuch") and "'--no?such'" in bad("--no\nsuch")
    assert "'a?b'" in bad("a\nb") and "'a?b'" in bad("run", "a", "a\nb") and "'a?b'" in bad("run", "a", "--numerics", "a\nb")
    assert "requires an argument" in bad("run", "a", "-o")
    trace, _ = make(folder)
    assert "--layers" in bad("run", trace, "--layers=") and "--layers" in bad("run", trace, "--layers=1,")


def test_not_utf8(folder):
    """JSON is valid whatever bytes a name has: those that are no UTF-8 are replaced."""
    trace, result = (os.path.join(os.fsencode(folder), name) for name in (b"t\xff\xc3\xa9\xed\xa0\x80\xe2\x82.st", b"r\xff.st"))
    shown = [os.path.join(folder, name) for name in ("t\ufffd\u00e9" + "\ufffd" * 5 + ".st", "r\ufffd.st")]

    def printed(*args):
        done = subprocess.run([os.fsencode(TAMIS), *args, b"--json"], capture_output=True)
        assert done.returncode == 0 and done.stderr == b"", done
        return json.loads(done.stdout.decode())

    assert printed(b"gen", trace, *map(str.encode, SMALL))["trace"] == shown[0]
    out = printed(b"run", trace, b"-o", result)
    assert [out["trace"], out["result"]] == shown and os.path.exists(result)
    held = printed(b"check", trace, result)
    assert [held["trace"], held["result"]] == shown


main(globals())
