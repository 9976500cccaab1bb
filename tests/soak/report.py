"""Writes what a soak showed: a table in Markdown, a picture, and every sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from attackers import Attackers
from flatness import Trend, trend_of
from picture import Panel, Points, draw
from samples import Sample, Subject, write_csv

# By column of Sample: its name, its unit, and whether only quiet samples count (Sample.is_quiet).
WATCHED = {
    "rss_mib": ("resident memory", "MiB", False),
    "descriptors": ("descriptors", "", True),
    "threads": ("threads", "", False),
    "device_mib": ("device memory", "MiB", False),
    "batches_mib": ("device memory of batches", "MiB", False),
}


@dataclass(frozen=True)
class Limits:
    """The most growth after the warm-up, for each column of WATCHED."""

    rss_mib: float = 32
    descriptors: float = 8
    threads: float = 4
    device_mib: float = 16
    # A device stream keeps the memory of its largest batch, and a burst may form a larger batch at any time.
    batches_mib: float = 2048


@dataclass
class Ending:
    """The end of a server."""

    seconds: float = math.nan  # from SIGTERM to the end of the process
    status: int | None = None
    answered: int = 0  # calls that were in flight when SIGTERM came
    refused: int = 0  # calls that came after it
    left: dict[str, float] = field(default_factory=dict)  # metrics that did not return to 0 after the last request


def trends(samples: Sequence[Sample], server: str, warm_up: float) -> dict[str, Trend]:
    """Returns the trend of each column of WATCHED of one server."""
    own = [sample for sample in samples if sample.server == server]
    found = {}
    for column, (_, _, is_quiet_alone) in WATCHED.items():
        used = [sample for sample in own if sample.is_quiet or not is_quiet_alone]
        trend = trend_of([s.seconds for s in used], [getattr(s, column) for s in used], warm_up)
        found[column] = replace(trend, most=float(np.nanmax([getattr(s, column) for s in own])))
    return found


def growths(found: dict[str, Trend], limits: Limits, server: str) -> list[str]:
    """Returns what grew by more than its limit."""
    return [
        f"{server}: {WATCHED[column][0]} grew by {trend.growth:.1f} {WATCHED[column][1]}".rstrip()
        + f", more than {getattr(limits, column):g}"
        for column, trend in found.items()
        if trend.growth > getattr(limits, column)
    ]


def write(
    folder: Path,
    title: str,
    samples: Sequence[Sample],
    subjects: Sequence[Subject],
    found: dict[str, dict[str, Trend]],
    warm_up: float,
    endings: dict[str, Ending],
    attackers: Attackers,
    problems: Sequence[str],
) -> str:
    """Writes soak.csv, soak.svg and soak.md, and returns the text of the last."""
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(folder / "soak.csv", samples)
    (folder / "soak.svg").write_text(picture_of(title, samples))
    text = "\n\n".join(
        [
            f"# {title}",
            "![Memory, descriptors, threads, answers and their times](soak.svg)",
            _trend_table(found, warm_up),
            _client_table(subjects, endings),
            _operations(subjects),
            _attack_table(attackers),
            "## Problems\n\n" + ("\n".join(f"- {problem}" for problem in problems) or "None."),
        ]
    )
    (folder / "soak.md").write_text(text + "\n")
    return text


def picture_of(title: str, samples: Sequence[Sample]) -> str:
    servers = sorted({sample.server for sample in samples}, reverse=True)

    def lines(value: Callable[[Sample], float], suffix: str = "") -> dict[str, Points]:
        return {name + suffix: [(s.seconds, value(s)) for s in samples if s.server == name] for name in servers}

    def rates(column: str, suffix: str = "") -> dict[str, Points]:
        out: dict[str, Points] = {}
        for name in servers:
            own = [s for s in samples if s.server == name]
            out[name + suffix] = [
                (b.seconds, (getattr(b, column) - getattr(a, column)) / max(b.seconds - a.seconds, 1e-9))
                for a, b in pairwise(own)
            ]
        return out

    times = lines(lambda s: s.p99_ms, ", p99")
    panels = [
        Panel("resident memory, MiB", lines(lambda s: s.rss_mib)),
        Panel("device memory, MiB", lines(lambda s: s.device_mib + s.batches_mib)),
        Panel("descriptors", lines(lambda s: s.descriptors)),
        Panel("threads", lines(lambda s: s.threads)),
        Panel("good clients: ms to an answer", {**lines(lambda s: s.p50_ms, ", p50"), **times}),
        Panel("good clients: answers a second", rates("good_answered")),
        Panel("all clients: refusals a second", rates("refused")),
    ]
    return draw(title, panels, _bands([s for s in samples if s.server == servers[0]]))


def _bands(samples: Sequence[Sample]) -> list[tuple[float, float]]:
    """Returns the times (begin, end) of attacks, in seconds."""
    found: list[tuple[float, float]] = []
    for a, b in pairwise(samples):
        if b.attack:
            if found and found[-1][1] == a.seconds and a.attack == b.attack:
                found[-1] = (found[-1][0], b.seconds)
            else:
                found.append((a.seconds, b.seconds))
    return found


def table(header: Sequence[str], rows: Sequence[Sequence[object]], num_texts: int = 1) -> str:
    rule = ["---"] * num_texts + ["--:"] * (len(header) - num_texts)
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in [header, rule, *rows])


def _trend_table(found: dict[str, dict[str, Trend]], warm_up: float) -> str:
    rows = [
        [server, f"{WATCHED[column][0]} {WATCHED[column][1]}".rstrip()]
        + [f"{value:.1f}" for value in (t.first, t.last, t.slope, t.growth, t.most)]
        for server, of_server in found.items()
        for column, t in of_server.items()
    ]
    header = ["server", "", "median, first third", "median, last third", "slope an hour", "growth", "most"]
    return table(header, rows, 2) + f"\n\nAfter the first {warm_up:.0f} s; \"most\" is of all the time."


def _client_table(subjects: Sequence[Subject], endings: dict[str, Ending]) -> str:
    rows = []
    for subject in subjects:
        tally, ending = subject.tally, endings.get(subject.name, Ending())
        times = [np.percentile(tally.seconds, p) * 1e3 for p in (50, 99, 100)] if tally.seconds else [math.nan] * 3
        rows.append(
            [
                *(subject.name, tally.sent, *(tally.outcomes[name] for name in ("equal", "close", "wrong"))),
                *(tally.num_refused(), *(f"{ms:.0f}" for ms in times)),
                f"{ending.answered} and {ending.refused}; {ending.seconds:.1f} s, exit {ending.status}",
            ]
        )
    header = ["good clients of", "sent", "equal labels", "close", "wrong", "refused", "p50 ms", "p99 ms", "most ms"]
    return table([*header, "after SIGTERM answered and refused; its end"], rows)


def _operations(subjects: Sequence[Subject]) -> str:
    rows = [[subject.name, what, count] for subject in subjects for what, count in sorted(subject.tally.done.items())]
    rows += [
        [subject.name, f"outcome {what}", count]
        for subject in subjects
        for what, count in sorted(subject.tally.outcomes.items())
        if what not in ("equal", "close", "wrong")
    ]
    return table(["server", "done", "times"], rows, 2)


def _attack_table(attackers: Attackers) -> str:
    rows = []
    for title, times in attackers.made.items():
        counts = [f"{name.replace('_', ' ')} {value:,.0f}" for name, value in attackers.counts[title].items() if value]
        rows.append([title, times, ", ".join(counts)])
    return table(["attack", "times", "counts"], rows)
