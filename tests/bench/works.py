"""The works of the benchmark: each function does one run and returns its figures by name.

A figure is a number; `threads` (the peak of the measured process) and `notes` (pins, alarms, the start line) are in every result.
"""

import json
import re
import shutil
import time

from runs import CPUS, Child, Trouble

UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def sleepers(program, library, count, seconds):
    """`count` threads that sleep `seconds` each: seconds until all have ended."""
    with Child([program, count, seconds], library) as child:
        child.wait(60 + 10 * seconds)
        words = dict(line.split() for line in child.output().splitlines())
        return {
            "created_s": float(words["created"]),
            "total_s": float(words["total"]),
            "threads": child.peak_threads,
            "notes": child.prove_fibers(),
        }


def http(program, library, connections, seconds, settings=None):
    """wrk with so many keep-alive connections against the server: rate, 99th percentile, CPU of the server a request."""
    with Child([program], library, settings) as server:
        port = server.wait_for_line("port", 20)
        before = server.cpu_seconds()
        command = ["wrk", f"-t{min(CPUS, 4, connections)}", f"-c{connections}", f"-d{seconds}s", "--timeout", "20s", "--latency"]
        with Child([*command, f"http://127.0.0.1:{port}/"]) as wrk:
            limit = time.monotonic() + seconds + 60
            while wrk.ended() is None:
                if server.ended() is not None:
                    raise Trouble(f"{server.name} died under load{server.complaint()}")
                if time.monotonic() > limit:
                    raise Trouble(f"wrk did not end in {seconds + 60} s")
                time.sleep(0.05)
            wrk.wait(seconds + 60)
            text = wrk.output()
        cpu = server.cpu_seconds() - before
        result = parse_wrk(text)
        return {
            "rate": result["rate"],
            "p99_ms": result["p99_ms"],
            "cpu_us": cpu / result["requests"] * 1e6,
            "peak_rss_mb": server.status("VmHWM") / 1024,
            "threads": server.peak_threads,
            "notes": server.prove_fibers(),
        }


def parse_wrk(text):
    """The figures of wrk's report; any wrong or broken answer makes the run worthless."""
    errors = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", text)
    if errors and any(int(number) for number in errors.groups()):
        raise Trouble(errors[0])
    if wrong := re.search(r"Non-2xx.*", text):
        raise Trouble(wrong[0])
    requests = re.search(r"(\d+) requests in", text)
    rate = re.search(r"Requests/sec:\s*([\d.]+)", text)
    p99 = re.search(r"^\s*99%\s*([\d.]+)(us|ms|s|m|h)\s*$", text, re.M)
    if not (requests and rate and p99) or int(requests[1]) == 0:
        raise Trouble("wrk's report was not understood")
    return {"requests": int(requests[1]), "rate": float(rate[1]), "p99_ms": float(p99[1]) * UNITS[p99[2]] * 1e3}


def have_wrk():
    return shutil.which("wrk") is not None


def micro(program, library, min_time):
    """All micro benchmarks once: nanoseconds an operation, by name."""
    with Child([program, f"--benchmark_min_time={min_time}", "--benchmark_format=json"], library) as child:
        child.wait(120 + 100 * min_time)
        notes = child.prove_fibers()
        try:
            benchmarks = json.loads(child.output())["benchmarks"]
        except (ValueError, KeyError) as error:
            raise Trouble("the report of Google Benchmark was not understood") from error
    result = {"threads": child.peak_threads, "notes": notes}
    for benchmark in benchmarks:
        if benchmark.get("error_occurred"):
            raise Trouble(f"{benchmark['name']}: {benchmark.get('error_message')}")
        name = benchmark["name"].split("/")[0]
        if rate := benchmark.get("items_per_second"):
            result[name] = 1e9 / rate
        else:
            result[name] = benchmark["real_time"]
    return result


def parked(program, library, count, seconds):
    """`count` threads that all wait: percent of a core used while nothing happens for `seconds`."""
    with Child([program, count], library) as child:
        child.wait_for_line("parked", 60)
        settle_until = time.monotonic() + 1
        while time.monotonic() < settle_until:
            child.ended()
            time.sleep(0.1)
        before, start = child.cpu_seconds(), time.monotonic()
        time.sleep(seconds)
        if child.ended() is not None:
            raise Trouble(f"{child.name} ended{child.complaint()}")
        used, passed = child.cpu_seconds() - before, time.monotonic() - start
        return {
            "percent": 100 * used / passed,
            "cpu_ms": 1000 * used,
            "threads": child.peak_threads,
            "notes": child.prove_fibers(),
        }
