#!/usr/bin/env python3
"""What does it cost that threads wait? CPU time of 1,000 parked threads over 10 s, from /proc/PID/stat, natively and preloaded.

idle.py [--lib build/libvthr.so] [--build build] [--threads 1000] [--seconds 10]

Fails if the preloaded program uses 0.5 % of a core or more, or did not run as fibers.
"""

import argparse
import os
import sys

sys.dont_write_bytecode = True
import runs  # noqa: E402
import works  # noqa: E402

LIMIT_PERCENT = 0.5


def main():
    parser = argparse.ArgumentParser(description="CPU time of parked threads")
    parser.add_argument("--build", default=os.environ.get("BUILD", "build"))
    parser.add_argument("--lib", default=os.environ.get("LIB"))
    parser.add_argument("--threads", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=10)
    options = parser.parse_args()
    library = options.lib or os.path.join(options.build, "libvthr.so")

    runs.end_children_on_signal()
    runs.raise_file_limit()
    program = runs.build("parked", options.build)
    print(f"{options.threads} parked threads, {options.seconds:g} s")
    good = True
    for label, preload in (("native", None), ("preloaded", library)):
        if preload and not os.path.exists(preload):
            print(f"{label:<10} {preload} is missing")
            good = False
            continue
        try:
            run = works.parked(program, preload, options.threads, options.seconds)
        except runs.Trouble as trouble:
            print(f"{label:<10} invalid: {trouble}")
            good = False
            continue
        verdict = ""
        if preload:
            within = run["percent"] < LIMIT_PERCENT
            good = good and within
            verdict = f"  (< {LIMIT_PERCENT} %: {'ok' if within else 'NO'})"
        print(f"{label:<10} {run['cpu_ms']:.0f} ms = {run['percent']:.3f} % of a core, {run['threads']} kernel threads{verdict}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
