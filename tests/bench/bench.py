#!/usr/bin/env python3
"""make bench: the same programs natively and under the library, in turn, in one table.

bench.py [--lib build/libvthr.so] [--build build] [--runs 5] [--quick] [--native] [--only sleepers,http,micro,idle]

Native and preloaded runs (and, for HTTP, an epoll server written by hand) alternate; the table shows medians with the smallest and
largest value, the peak number of kernel threads, the targets due now and the final ones. build/bench.json has every sample.
Needs wrk and Google Benchmark. All traffic is on loopback. Exit: 0 all targets reached, 1 not, 2 nothing could be compared.
--quick makes one short run of each in less than a minute and fails only on a figure 1.5 x worse than its target.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True
import runs  # noqa: E402
import works  # noqa: E402
from table import FASTER, LESS, MORE, VALUE, Row, render  # noqa: E402

PEER_ADVANTAGE = 1.3  # an epoll server slower than this, compared with native threads at 64 connections, is no peer
FILES_BESIDE_CONNECTIONS = 300
ON_EPOLL = "on epoll"  # the library without io_uring
GROUPS = ("sleepers", "http", "micro", "idle")

SLEEPERS = [
    Row("10,000 threads sleep 2 s", "sleepers", "total_s", "s", VALUE, target=2.1, final=2.1),
    Row("  of it: to make them", "sleepers", "created_s", "s"),
]
MICRO = [
    Row("create + join", "micro", "create_join", "ns", FASTER, target=5, final=10),
    Row("mutex, uncontended", "micro", "mutex_uncontended", "ns", LESS, target=1.3, final=1.15),
    Row("mutex, 64 threads", "micro", "mutex_crowd", "ns", LESS, final=1.2),
    Row("condition variable, a hop", "micro", "cond_hop", "ns", LESS, final=0.15),
    Row("semaphore, a hop", "micro", "sem_hop", "ns", LESS, final=0.15),
    Row("socketpair, a hop", "micro", "socketpair_hop", "ns", LESS, final=0.5),
    Row("read or write, ready", "micro", "socketpair_ready", "ns", LESS),
    Row("poll, ready", "micro", "poll_ready", "ns", LESS),
]
IDLE = [Row("1,000 parked threads", "idle", "percent", "% CPU", VALUE, target=0.5, final=0.5)]


def http_rows(connections):
    work, title = f"http {connections}", f"HTTP {connections:,}"
    due = {64: 1.2, 1000: 1.3}.get(connections)
    return [
        Row(f"{title}: requests/s", work, "rate", "/s", MORE, target=due),
        Row(f"{title}: requests/s", work, "rate", "/s", MORE, base="epoll", final=0.95),
        Row(f"{title}: requests/s on VTHR_IO=epoll", work, "rate", "/s", MORE, base="preloaded", ours=ON_EPOLL, target=0.85, final=0.85),
        Row(f"{title}: CPU a request", work, "cpu_us", "us", LESS),
        Row(f"{title}: CPU a request", work, "cpu_us", "us", LESS, base="epoll", final=1.15),
        Row(f"{title}: p99", work, "p99_ms", "ms", LESS),
        Row(f"{title}: p99", work, "p99_ms", "ms", LESS, base="epoll", final=1.3 if connections == 10000 else None),
    ]


def progress(text):
    """What is being run, on a terminal only; the next text replaces it."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


class Bench:
    def __init__(self, options, library, groups):
        self.options, self.library = options, library
        self.results = {}  # [work][variant]: list of results, or why there is none
        self.void = {}  # (work, variant): why its results, though there, do not count
        self.rows = []
        self.notes = []
        self.seconds = 2 if options.quick else 3
        self.programs = {}
        needed = {"sleepers": ["sleepers"], "http": ["http_threads", "http_epoll"], "micro": ["micro"], "idle": ["parked"]}
        for group in groups:
            for name in needed[group]:
                self.programs[name] = runs.build(name, options.build)
            getattr(self, group)()

    def alternate(self, work, variants, times):
        """Runs the variants {name: function} in turn, `times` rounds, each round beginning with another. One failure ends a variant."""
        order = list(variants)
        kept = self.results.setdefault(work, {name: [] for name in order})
        for round_number in range(times):
            turn = round_number % len(order)
            for name in order[turn:] + order[:turn]:
                if isinstance(kept[name], str):
                    continue
                progress(f"  {work}: run {round_number + 1} of {times}, {name}")
                try:
                    kept[name].append(variants[name]())
                except runs.Trouble as trouble:
                    kept[name] = str(trouble)
        progress("")

    def both(self, work, run, times):
        """The variants native and, if there is a library, preloaded."""
        variants = {"native": lambda: run(None)}
        if self.library:
            variants["preloaded"] = lambda: run(self.library)
        self.alternate(work, variants, times)

    def sleepers(self):
        self.both("sleepers", lambda lib: works.sleepers(self.programs["sleepers"], lib, 10000, 2), self.options.runs)
        self.rows += SLEEPERS

    def http(self):
        threads, epoll = self.programs["http_threads"], self.programs["http_epoll"]
        levels = (64, 1000) if self.options.quick else (64, 1000, 10000)
        limit = runs.raise_file_limit()
        for connections in levels:
            if connections + FILES_BESIDE_CONNECTIONS > limit:
                self.notes.append(f"HTTP {connections:,}: left out, the limit of open files is {limit}")
                continue
            # So many connections take a second to come up, and that is part of the run.
            seconds = self.seconds + (2 if connections >= 10000 else 0)
            variants = {
                "native": lambda c=connections, s=seconds: works.http(threads, None, c, s),
                "epoll": lambda c=connections, s=seconds: works.http(epoll, None, c, s),
            }
            if self.library:
                variants["preloaded"] = lambda c=connections, s=seconds: works.http(threads, self.library, c, s)
                variants[ON_EPOLL] = lambda c=connections, s=seconds: works.http(threads, self.library, c, s, {"VTHR_IO": "epoll"})
            self.alternate(f"http {connections}", variants, self.options.runs)
            self.rows += http_rows(connections)
        self.judge_peer()

    def judge_peer(self):
        """The epoll server counts only if it shows what the machine can do."""
        probe = Row("", "http 64", "rate", "/s", MORE)
        probe.fill({"http 64": {"native": self.results["http 64"]["native"], "preloaded": self.results["http 64"]["epoll"]}})
        advantage = probe.score()
        if advantage is None or advantage >= PEER_ADVANTAGE:
            return
        why = f"the epoll server reached {advantage:.2f} x native threads at 64 connections, {PEER_ADVANTAGE} x is needed"
        self.void |= {(work, "epoll"): why for work in self.results if work.startswith("http ")}

    def micro(self):
        min_time = 0.05 if self.options.quick else 0.2
        self.both("micro", lambda lib: works.micro(self.programs["micro"], lib, min_time), self.options.runs)
        self.rows += MICRO

    def idle(self):
        """Once only: nothing happens in it, so nothing varies."""
        seconds = 4 if self.options.quick else 10
        self.both("idle", lambda lib: works.parked(self.programs["parked"], lib, 1000, seconds), 1)
        self.rows += IDLE

    def close(self):
        """Fills the rows, collects what there is to say below the table; returns whether the command succeeds."""
        good = True
        for row in self.rows:
            row.fill(self.results, self.void)
            verdict = row.verdict(self.options.quick)
            peer_only = self.options.quick and set(row.trouble) == {"epoll"}
            good = good and (verdict in ("ok", "near", "-") or peer_only)
        self.notes += [f"{work}, {variant}: invalid: {why}" for (work, variant), why in self.void.items()]
        starts = set()
        for work, variants in self.results.items():
            for name, kept in variants.items():
                if isinstance(kept, str):
                    self.notes.append(f"{work}, {name}: invalid: {kept}")
                    continue
                said = [run["notes"] for run in kept if run["notes"]]
                starts |= {note["start"] for note in said}
                for event in ("pins", "alarms"):
                    if total := sum(note[event] for note in said):
                        self.notes.append(f"{work}, {name}: {total} {event} logged")
        self.notes += [f"library: {line}" for line in sorted(starts)]
        return good


def parse_options():
    parser = argparse.ArgumentParser(description="native and preloaded performance, side by side")
    parser.add_argument("--build", default=os.environ.get("BUILD", "build"), help="folder of the programs and of bench.json")
    parser.add_argument("--lib", default=os.environ.get("LIB"), help="the library, BUILD/libvthr.so by default")
    parser.add_argument("--runs", type=int, help="alternating runs of each work, 5 by default, 1 with --quick")
    parser.add_argument("--quick", action="store_true", help="less than a minute; fails only far from a target")
    parser.add_argument("--native", action="store_true", help="native figures and the peer only, on purpose")
    parser.add_argument("--only", default=",".join(GROUPS), help="some of " + ",".join(GROUPS))
    options = parser.parse_args()
    options.lib = options.lib or os.path.join(options.build, "libvthr.so")
    options.runs = options.runs or (1 if options.quick else 5)
    groups = options.only.split(",")
    if not set(groups) <= set(GROUPS):
        parser.error(f"--only takes some of {','.join(GROUPS)}")
    if "http" in groups and not works.have_wrk():
        parser.error("wrk is not installed (packages.list, section bench)")
    return options, groups


def main():
    options, groups = parse_options()
    missing = not options.native and not os.path.exists(options.lib)
    library = None if options.native or missing else options.lib
    if missing:
        print(f"bench: {options.lib} is missing: native figures only", file=sys.stderr)

    runs.end_children_on_signal()
    runs.raise_file_limit()
    start, load = time.monotonic(), os.getloadavg()[0]
    bench = Bench(options, library, groups)
    good = bench.close()
    passed = time.monotonic() - start

    kernel = os.uname().release
    print(f"{runs.CPUS} CPUs, Linux {kernel}, {options.runs} alternating run(s), medians (smallest..largest), {passed:.0f} s in all")
    print("threads: the most kernel threads of the measured process; final: DESIGN section 6")
    print("\n".join(render(bench.rows, options.quick)))
    if load > runs.CPUS / 2:
        bench.notes.append(f"the machine was busy: load {load:.1f} at the start, so the figures say little")
    for note in bench.notes:
        print(note)
    if missing:
        print(f"{options.lib} is missing: nothing was compared")

    report = {
        "cpus": runs.CPUS,
        "kernel": kernel,
        "load_at_start": load,
        "quick": options.quick,
        "runs": options.runs,
        "preloaded": library is not None,
        "rows": [row.as_json(options.quick) for row in bench.rows],
        "notes": bench.notes,
        "results": bench.results,
    }
    path = Path(options.build) / "bench.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(f"written: {path}")
    return 2 if missing else 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
