"""Runs one program, natively or under the library, and says what it used.

LD_PRELOAD is set in the environment of the measured program only. Every program has a time limit and dies with this process.
A preloaded run counts only if its own log says mode=fibers.
"""

import ctypes
import os
import re
import resource
import signal
import subprocess
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
TICK = os.sysconf("SC_CLK_TCK")
CPUS = len(os.sched_getaffinity(0))
_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1


class Trouble(Exception):
    """A run that does not count, and why."""


def raise_file_limit():
    """All descriptors that we may have, for us and our children; returns how many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def build(name, build_dir):
    """The program `name` of this folder, built when it is missing or older than its sources (normally make has done it)."""
    source = next(path for path in (HERE / f"{name}.c", HERE / f"{name}.cc") if path.exists())
    program = Path(build_dir) / "tests" / "bench" / name
    newest = max(path.stat().st_mtime for path in (source, *HERE.glob("*.h")))
    if program.exists() and program.stat().st_mtime >= newest:
        return program
    program.parent.mkdir(parents=True, exist_ok=True)
    compiler = os.environ.get("CC", "gcc") if source.suffix == ".c" else os.environ.get("CXX", "g++")
    own_flags = " ".join(re.findall(r"^// cflags: *(.*)$", source.read_text(), re.M)).split()
    command = [*compiler.split(), "-O2", "-g", "-pthread", str(source), *own_flags, "-o", str(program)]
    if subprocess.run(command, check=False).returncode != 0:
        raise SystemExit(f"bench: {source.name} does not compile")
    return program


class Child:
    """A running program; leave the `with` block and it is gone.

    `library` is the library to preload or None, `settings` are variables for it. Standard output and error go to files of a scratch folder."""

    def __init__(self, command, library=None, settings=None):
        self.library = library
        self.peak_threads = 0
        self._scratch = tempfile.TemporaryDirectory(prefix="vthr-bench-")
        folder = Path(self._scratch.name)
        self._out, self._err, self._log = folder / "out", folder / "err", folder / "log"
        environment = {
            name: value
            for name, value in os.environ.items()
            if name != "LD_PRELOAD" and (library or not name.startswith("VTHR_"))
        }
        if library:
            environment |= {
                "LD_PRELOAD": str(Path(library).resolve()),
                "VTHR_LOG": str(self._log),
                "VTHR_LOG_FORMAT": "text",
                "VTHR_LOG_LEVEL": "info",
            } | (settings or {})
        self._started = time.monotonic()
        with open(self._out, "wb") as out, open(self._err, "wb") as err:
            self._process = subprocess.Popen(
                [str(word) for word in command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=lambda: _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
            )
        self.pid = self._process.pid
        self.name = Path(command[0]).name

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        stubborn = False
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                stubborn = True
                self._process.kill()
                self._process.wait()
        self._scratch.cleanup()
        if stubborn and kind is None:
            raise Trouble(f"{self.name} did not end on SIGTERM")

    def output(self):
        return self._out.read_text(errors="replace")

    def complaint(self):
        """The last line of standard error, for messages."""
        lines = self._err.read_text(errors="replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""

    def ended(self):
        """The exit code, or None while it runs. Looks at the number of threads each time."""
        code = self._process.poll()
        if code is None:
            self.peak_threads = max(self.peak_threads, self.status("Threads"))
        return code

    def status(self, field):
        """A number from /proc/PID/status, 0 if it is not there."""
        try:
            text = Path(f"/proc/{self.pid}/status").read_text()
        except OSError:
            return 0
        found = re.search(rf"^{field}:\s*(\d+)", text, re.M)
        return int(found[1]) if found else 0

    def cpu_seconds(self):
        """User and system time of all its threads, from /proc/PID/stat."""
        stat = Path(f"/proc/{self.pid}/stat").read_text()
        fields = stat.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICK

    def wait_for_line(self, start, limit):
        """Waits until a line of the output begins with `start`; returns the rest of the line."""
        while True:
            found = re.search(rf"^{start}(.*)\n", self.output(), re.M)
            if found:
                return found[1].strip()
            if self.ended() is not None:
                raise Trouble(f"{self.name} ended with {self._process.returncode}{self.complaint()}")
            if time.monotonic() - self._started > limit:
                raise Trouble(f"{self.name} did not get ready in {limit:g} s")
            time.sleep(0.01)

    def wait(self, limit):
        """Waits for the end, which must be exit code 0 within `limit` seconds of the start."""
        while (code := self.ended()) is None:
            if time.monotonic() - self._started > limit:
                raise Trouble(f"{self.name} did not end in {limit:g} s")
            time.sleep(0.02)
        if code != 0:
            raise Trouble(f"{self.name} ended with {code}{self.complaint()}")

    def prove_fibers(self):
        """For a preloaded program: its start line, which must say mode=fibers. Also the number of pins and alarms in its log."""
        if not self.library:
            return {}
        log = self._log.read_text(errors="replace") if self._log.exists() else ""
        starts = re.findall(r"^vthr: (start .*)$", log, re.M)
        if not any(re.search(r"\bmode=fibers\b", line) for line in starts):
            raise Trouble(f"not run as fibers: {starts[-1] if starts else 'the library logged no start line'}")
        return {
            "start": starts[0],
            "pins": len(re.findall(r"^vthr: pin ", log, re.M)),
            "alarms": len(re.findall(r"^vthr: alarm ", log, re.M)),
        }


def end_children_on_signal():
    """SIGTERM, SIGHUP and SIGINT end us through the `with` blocks, so that no child is left."""

    def leave(number, _):
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, leave)
