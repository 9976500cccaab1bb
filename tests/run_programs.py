"""Runs a build's GoogleTest programs, a process for each share of a program's tests, and writes JUnit files.

    run_programs.py BUILD RESULTS [--filter REGEX] [--leave-out PATTERNS] [--jobs N] [--test-seconds S]
                    [--emulator COMMAND] [PROGRAM...]

BUILD/tests/programs.txt lists the programs (tests/CMakeLists.txt writes it). A test that ends its process, or that
prints nothing for S seconds, fails, and the tests after it run in another process. The output of failed tests is
printed; everything else is in BUILD/logs/tests. Exits with 2 if it could not run a program at all; tests/summary.py
judges the tests themselves.
"""

import argparse
import concurrent.futures
import dataclasses
import fnmatch
import pathlib
import re
import shlex
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree


@dataclasses.dataclass(frozen=True)
class Program:
    path: pathlib.Path
    shards: int

    @property
    def name(self) -> str:
        return self.path.name


def read_programs(build: pathlib.Path) -> list[Program]:
    lines = (build / "tests" / "programs.txt").read_text(encoding="utf-8").splitlines()
    fields = [line.split() for line in lines if line]
    return [Program(build / path, int(shards)) for path, shards, _device in fields]


def list_tests(program: Program, emulator: list[str]) -> list[str]:
    """Returns the names of the program's tests, in the order in which they run."""
    command = [*emulator, str(program.path), "--gtest_list_tests"]
    listing = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    if listing.returncode != 0:
        raise RuntimeError(f"{program.path} cannot list its tests: {listing.stderr.strip() or listing.returncode}")
    names, suite = [], ""
    for line in listing.stdout.splitlines():
        word = line.split("#")[0].strip()
        if line.startswith("  "):
            names.append(suite + word)
        elif word.endswith("."):
            suite = word
    return names


class Share:
    """Some tests of one program. They run in one process, unless one of them ends it."""

    def __init__(self, program: Program, number: int, tests: list[str], options: argparse.Namespace) -> None:
        self.program = program
        self.tests = tests
        self.name = program.name if number == 0 else f"{program.name}-{number}"
        self.log = options.build / "logs" / "tests" / f"{self.name}.log"
        self.results = options.results / f"{self.name}.xml"
        self.test_seconds = options.test_seconds
        self.emulator: list[str] = options.emulator

    def run(self) -> None:
        """Runs the tests and writes the JUnit file."""
        begin = time.monotonic()
        suites = ElementTree.Element("testsuites", name="AllTests")
        self.log.unlink(missing_ok=True)
        tests = self.tests
        while tests:
            ended = self._run_process(tests, suites)
            if ended is None:
                break
            # The process ended inside a test; those behind it have not run.
            tests = tests[tests.index(ended) + 1 :]
        ElementTree.ElementTree(suites).write(self.results, encoding="utf-8")
        print(f"    {self.name}: {len(self.tests)} tests, {time.monotonic() - begin:.0f} s", flush=True)

    def _run_process(self, tests: list[str], suites: ElementTree.Element) -> str | None:
        """Runs the tests in one process and adds their results. Returns the test that ended the process, or None if
        all of them ran.
        """
        flags, xml = self.results.with_suffix(".flags"), self.results.with_suffix(".part")
        flags.write_text(f"--gtest_filter={':'.join(tests)}\n", encoding="utf-8")
        xml.unlink(missing_ok=True)
        command = [*self.emulator, str(self.program.path), f"--gtest_flagfile={flags}", f"--gtest_output=xml:{xml}"]
        with self.log.open("ab") as log:
            begin = log.tell()
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
            hung = self._wait(process)
        output = self.log.read_bytes()[begin:].decode("utf-8", "replace")
        flags.unlink()
        try:
            root = ElementTree.parse(xml).getroot()
        except (OSError, ElementTree.ParseError):
            why = f"printed nothing for {self.test_seconds} s" if hung else f"ended with {process.returncode}"
            return self._add_printed_results(tests, output, f"the process {why}", suites)
        xml.unlink()
        suites.extend(root)
        if process.returncode == 1 and root.find(".//failure") is not None:
            self._print_failures(output)
        elif process.returncode != 0:
            # A sanitizer's report at the end, or a destructor of the program.
            why = f"the process ended with {process.returncode}, though its tests passed"
            suite = ElementTree.SubElement(suites, "testsuite", name=self.program.name)
            case = ElementTree.SubElement(suite, "testcase", classname=self.name, name="process", status="run")
            ElementTree.SubElement(case, "failure", message=why)
            print(f"--- {self.name}: {why} ---\n{output[-8000:]}", flush=True)
        return None

    def _wait(self, process: subprocess.Popen) -> bool:
        """Waits for the process. Kills it and returns True where a test prints nothing for too long."""
        size, quiet_since = -1, time.monotonic()
        while True:
            try:
                process.wait(timeout=0.5)
                return False
            except subprocess.TimeoutExpired:
                now, printed = time.monotonic(), self.log.stat().st_size
                if printed != size:
                    size, quiet_since = printed, now
                elif now - quiet_since > self.test_seconds:
                    process.kill()
                    process.wait()
                    return True

    def _add_printed_results(self, tests: list[str], output: str, why: str, suites: ElementTree.Element) -> str:
        """Adds the results that a process printed before it ended inside a test, and returns that test."""
        words = {
            name: word for word, name in re.findall(r"^\[ +(OK|FAILED|SKIPPED) +\] ([^\s,]+)", output, re.MULTILINE)
        }
        started = re.findall(r"^\[ RUN +\] (\S+)", output, re.MULTILINE)
        ended = started[-1] if started else tests[0]
        suite = ElementTree.SubElement(suites, "testsuite", name=self.program.name)
        for test in tests[: tests.index(ended) + 1]:
            classname, name = test.split(".", 1)
            case = ElementTree.SubElement(suite, "testcase", classname=classname, name=name, status="run")
            word = words.get(test)
            if test == ended:
                ElementTree.SubElement(case, "failure", message=why)
            elif word == "SKIPPED":
                ElementTree.SubElement(case, "skipped", message="its process ended in a later test; see the log")
            elif word != "OK":
                ElementTree.SubElement(case, "failure", message="see the log")
        self._print_failures(output)
        print(f"{self.name}: {why}, in {ended}", flush=True)
        return ended

    def _print_failures(self, output: str) -> None:
        """Prints what failed tests printed, and the end of the output where the process ended inside a test."""
        parts = re.split(r"^(?=\[ RUN +\] )", output, flags=re.MULTILINE)[1:]
        for part in parts:
            is_open = not re.search(r"^\[ +(?:OK|FAILED|SKIPPED) +\] ", part, re.MULTILINE)
            has_failed = re.search(r"^\[  FAILED  \] \S+.* \(\d+ ms\)$", part, re.MULTILINE)
            if has_failed or (is_open and part is parts[-1]):
                print(f"--- {self.name} ---\n{part[-8000:]}", flush=True)


def make_shares(program: Program, options: argparse.Namespace) -> list[Share]:
    tests = list_tests(program, options.emulator)
    if options.filter:
        tests = [test for test in tests if re.search(options.filter, test)]
    left_out = [pattern for pattern in options.leave_out.split(":") if pattern]
    tests = [test for test in tests if not any(fnmatch.fnmatchcase(test, pattern) for pattern in left_out)]
    shares = [tests[number :: program.shards] for number in range(program.shards)]
    return [Share(program, number, share, options) for number, share in enumerate(shares) if share]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("--filter", default="", help="only tests whose name matches this regular expression")
    parser.add_argument("--leave-out", default="", help="GoogleTest patterns, between colons, of tests that do not run")
    parser.add_argument("--jobs", type=int, default=2, help="processes that run side by side")
    parser.add_argument("--test-seconds", type=float, default=300, help="a test that prints nothing for so long fails")
    parser.add_argument(
        "--emulator", type=shlex.split, default=[], help="the command that runs programs built for another processor"
    )
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help="names of programs; none: all of them")
    options = parser.parse_intermixed_args()
    options.results.mkdir(parents=True, exist_ok=True)
    (options.build / "logs" / "tests").mkdir(parents=True, exist_ok=True)
    programs = read_programs(options.build)
    unknown = set(options.programs) - {program.name for program in programs}
    if unknown:
        known = ", ".join(sorted(program.name for program in programs))
        print(f"no test program is named {', '.join(sorted(unknown))}; there are: {known}", file=sys.stderr)
        return 2
    if options.programs:
        programs = [program for program in programs if program.name in options.programs]

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        try:
            shares = [share for made in pool.map(lambda p: make_shares(p, options), programs) for share in made]
        except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
            print(error, file=sys.stderr)
            return 2
        # Programs with several shares take longest, so they begin first.
        shares.sort(key=lambda share: -share.program.shards)
        list(pool.map(Share.run, shares))
    return 0


if __name__ == "__main__":
    sys.exit(main())
