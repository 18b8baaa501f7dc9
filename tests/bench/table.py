"""The rows of the benchmark: what is compared with what, what must be reached, and how it is shown."""

import statistics
from dataclasses import dataclass, field

# How a figure of ours is judged, and which way is good.
#   more    ours / base, at least the target          (a rate)
#   less    ours / base, at most the target           (a time)
#   faster  base / ours, at least the target          (a time, said as a speed-up)
#   value   ours alone, at most the target
MORE, LESS, FASTER, VALUE = "more", "less", "faster", "value"
QUICK_SLACK = 1.5


@dataclass
class Row:
    """One line of the table: the figure `key` of the work `work`, ours beside that of `base`."""

    label: str
    work: str
    key: str
    unit: str
    kind: str = LESS
    base: str = "native"
    ours: str = "preloaded"
    target: float | None = None  # what is due now
    final: float | None = None  # DESIGN section 6
    samples: dict = field(default_factory=dict)  # by variant: the values of all runs
    threads: dict = field(default_factory=dict)
    trouble: dict = field(default_factory=dict)  # by variant: why it does not count

    def fill(self, results, void=None):
        """Takes the runs of this row's two variants: results[work][variant] is a list of results or a reason; void has reasons too."""
        for variant in (self.base, self.ours):
            if why := (void or {}).get((self.work, variant)):
                self.trouble[variant] = why
                continue
            of_work = results.get(self.work, {}).get(variant)
            if isinstance(of_work, str):
                self.trouble[variant] = of_work
            elif of_work:
                self.threads[variant] = max(run["threads"] for run in of_work)
                if all(self.key in run for run in of_work):
                    self.samples[variant] = [run[self.key] for run in of_work]
                else:
                    self.trouble[variant] = f"no figure {self.key}"

    def median(self, variant):
        return statistics.median(self.samples[variant]) if variant in self.samples else None

    def score(self):
        """The number that the targets are about, or None."""
        ours, base = self.median(self.ours), self.median(self.base)
        if ours is None or self.trouble:
            return None
        if self.kind == VALUE:
            return ours
        if not base or not ours:
            return None
        return base / ours if self.kind == FASTER else ours / base

    def reaches(self, target, slack=1.0):
        """Whether the score reaches the target, None when there is nothing to judge."""
        score = self.score()
        if score is None or target is None:
            return None
        return score >= target / slack if self.kind in (MORE, FASTER) else score <= target * slack

    def show_target(self, target):
        if target is None:
            return "-"
        sign = ">=" if self.kind in (MORE, FASTER) else "<="
        suffix = {MORE: "x", LESS: "x", FASTER: "x faster", VALUE: self.unit}[self.kind]
        return f"{sign} {target:g} {suffix}"

    def show_score(self):
        if self.trouble:
            return "invalid"
        ours, base, score = self.median(self.ours), self.median(self.base), self.score()
        if score is None:
            return "-"
        if self.kind == FASTER:
            return f"{score:.2f} x faster"
        return f"{ours / base:.2f} x" if base else "-"

    def show_side(self, variant):
        if variant in self.trouble:
            return "invalid"
        if variant not in self.samples:
            return "-"
        values, unit = self.samples[variant], self.unit
        if unit == "ns" and statistics.median(values) >= 1000:
            values, unit = [value / 1000 for value in values], "us"
        text = number(statistics.median(values))
        if len(values) > 1:
            text += f" ({number(min(values))}..{number(max(values))})"
        return f"{text} {unit}"

    def verdict(self, quick):
        if self.trouble:
            return "invalid"
        reached = self.reaches(self.target)
        if reached is None:
            return "-"
        if reached:
            return "ok"
        return "near" if quick and self.reaches(self.target, QUICK_SLACK) else "NO"

    def as_json(self, quick):
        sides = {
            variant: {
                "median": statistics.median(values),
                "min": min(values),
                "max": max(values),
                "values": values,
                "peak_threads": self.threads[variant],
            }
            for variant, values in self.samples.items()
        }
        return {
            "work": self.label,
            "unit": self.unit,
            "base": self.base,
            "ours": self.ours,
            "kind": self.kind,
            "sides": sides,
            "score": self.score(),
            "target": self.target,
            "verdict": self.verdict(quick),
            "final_target": self.final,
            "final_reached": self.reaches(self.final),
            "invalid": self.trouble,
        }


def number(value):
    """Three or four significant digits, thousands as k."""
    if value >= 100_000:
        return f"{value / 1000:.0f}k"
    if value >= 10_000:
        return f"{value / 1000:.1f}k"
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def render(rows, quick):
    """The table as lines of plain text. Columns: work, both sides, threads, ratio, target and verdict now and in the end."""
    head = ["work", "beside", "its figure", "preloaded", "threads", "ratio", "target", "", "final", ""]
    lines = [head]
    for row in rows:
        reached = row.reaches(row.final)
        threads = "/".join(str(row.threads.get(variant, "-")) for variant in (row.base, row.ours))
        lines.append(
            [
                row.label,
                row.base,
                row.show_side(row.base),
                row.show_side(row.ours),
                threads,
                row.show_score(),
                row.show_target(row.target),
                row.verdict(quick),
                row.show_target(row.final),
                "-" if reached is None else "ok" if reached else "not yet",
            ]
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines]
    return [text[0], "-" * max(len(line) for line in text), *text[1:]]
