"""Counts what happened to the good clients' calls and frames."""

from __future__ import annotations

import threading
from collections import Counter

import grpc

import voxserve
from workload import Labels, compare


class Tally:
    """Counts outcomes. Thread-safe. `allowed`: reasons of refusals that are no problem, such as OUT_OF_MEMORY where
    faults are injected.
    """

    def __init__(self, allowed: frozenset[str] = frozenset(), exact: bool = False) -> None:
        self.allowed = allowed
        self.exact = exact  # whether an answer must be equal to the expected one in every label
        self._lock = threading.Lock()
        self._recent: list[float] = []
        self.seconds: list[float] = []  # the duration of every answered call and frame
        self.sent = 0  # calls and frames, each of which must have one outcome
        self.outcomes: Counter[str] = Counter()  # "equal", "close", "wrong", "not compared", or the reason of a refusal
        self.codes: Counter[str] = Counter()  # gRPC status codes, as the server's metrics count them
        self.done: Counter[str] = Counter()  # what operators did, and calls that were cancelled
        self.problems: Counter[str] = Counter()  # problems that fail the soak, by text

    def send(self) -> None:
        with self._lock:
            self.sent += 1

    def answer(self, labels: Labels, expected: Labels | None, seconds: float) -> None:
        """Counts an answer. expected: None if it is not known."""
        outcome = "not compared" if expected is None else compare(labels, expected)
        with self._lock:
            self.outcomes[outcome] += 1
            self.codes["OK"] += 1
            self.seconds.append(seconds)
            self._recent.append(seconds)
            if outcome == "wrong" or (self.exact and outcome == "close"):
                self.problems["an answer that is not the expected one"] += 1

    def refuse(self, error: voxserve.InferenceError, count: int = 1) -> None:
        """Counts `count` calls or frames that ended with an error; 0: it ended a stream of which no frame waited."""
        reason = error.reason or error.code.name
        with self._lock:
            self.outcomes[reason] += count
            self.codes[error.code.name] += count
            if reason not in self.allowed and not isinstance(error, voxserve.SupersededError):
                self.problems[f"refused: {error}"[:300]] += max(1, count)

    def miss_sweeps(self) -> None:
        """Counts an answer from fewer sweeps than were sent: the server had no memory to keep them all."""
        with self._lock:
            self.done["answers of fewer sweeps"] += 1
            if not self.allowed:
                self.problems["an answer of fewer sweeps than came"] += 1

    def lose(self, what: str, count: int) -> None:
        """Counts calls or frames that got no outcome."""
        if count:
            self.problem(f"{what} got no result", count)

    def problem(self, text: str, count: int = 1) -> None:
        with self._lock:
            self.problems[text[:300]] += count

    def did(self, what: str) -> None:
        with self._lock:
            self.done[what] += 1

    def may_fail(self, error: voxserve.InferenceError) -> bool:
        return (error.reason or error.code.name) in self.allowed

    def take_recent(self) -> list[float]:
        """Returns the durations, in seconds, of the answers since the last call of this function."""
        with self._lock:
            recent, self._recent = self._recent, []
            return recent

    def num_answered(self) -> int:
        return self.codes["OK"]

    def num_refused(self) -> int:
        return sum(self.codes.values()) - self.codes["OK"]

    def unequal_counts(self, metrics: dict[str, float], model: str) -> list[str]:
        """Compares the client's counts of a model with the server's, and returns the differences. Nobody else may use
        the model. If refusals are allowed, only answers are compared: when a stream ends, the client counts each
        open frame, and the server counts one.
        """
        theirs: Counter[str] = Counter()
        for key, value in metrics.items():
            if key.startswith("voxserve_requests_total{") and f'model="{model}"' in key:
                theirs[key.partition('code="')[2].partition('"')[0]] += int(value)
        names = ["OK"] if self.allowed else [code.name for code in grpc.StatusCode]
        return [
            f"{code}: the clients count {self.codes[code]}, the server {theirs[code]}"
            for code in names
            # ABORTED: the client itself may have replaced a frame by a newer one, so the server never saw that frame.
            if (self.codes[code] < theirs[code] if code == "ABORTED" else self.codes[code] != theirs[code])
        ]
