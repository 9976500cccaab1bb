"""Tests run_programs.py on a program that behaves like GoogleTest's: its tests pass, fail, skip, hang, or end it."""

import pathlib
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest

RUN_PROGRAMS = pathlib.Path(__file__).parent.parent / "run_programs.py"

# Writes its XML at the end, as GoogleTest does, so a test that ends the process leaves none.
PROGRAM = """#!{python}
import os, sys, time
tests = {tests!r}
arguments = dict(argument[2:].partition("=")[::2] for argument in sys.argv[1:])
if "gtest_list_tests" in arguments:
    print("A.")
    print("".join(f"  {{name}}\\n" for name in tests), end="")
    sys.exit(0)
flags = open(arguments["gtest_flagfile"]).read().split("=", 1)[1].strip().split(":")
cases, status = "", 0
for name in tests:
    if f"A.{{name}}" not in flags:
        continue
    print(f"[ RUN      ] A.{{name}}", flush=True)
    kind = name.rstrip("0123456789")
    if kind == "Dies":
        os._exit(3)
    if kind == "Hangs":
        time.sleep(60)
    inner = '<failure message="no"/>' if kind == "Fails" else ""
    status |= kind == "Fails"
    print(f"[  FAILED  ] A.{{name}} (0 ms)" if kind == "Fails" else f"[       OK ] A.{{name}} (0 ms)", flush=True)
    cases += f'<testcase classname="A" name="{{name}}" status="run">{{inner}}</testcase>'
with open(arguments["gtest_output"].split(":", 1)[1], "w") as xml:
    xml.write(f'<testsuites name="AllTests"><testsuite name="A">{{cases}}</testsuite></testsuites>')
os._exit({exit_status} or status)
"""


class Build:
    """A build folder with the program a_test."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.output = ""

    def run(
        self, tests: list[str], *options: str, shards: int = 1, exit_status: int = 0
    ) -> tuple[int, dict[str, str | None]]:
        """Returns the runner's exit status, and for each test None or its failure's message."""
        (self.folder / "tests").mkdir(exist_ok=True)
        program = self.folder / "tests" / "a_test"
        program.write_text(PROGRAM.format(python=sys.executable, tests=tests, exit_status=exit_status))
        program.chmod(0o755)
        (self.folder / "tests" / "programs.txt").write_text(f"tests/a_test {shards} any\n")
        results = self.folder / "results"
        ran = subprocess.run(
            [sys.executable, RUN_PROGRAMS, self.folder, results, *options], capture_output=True, text=True, timeout=120
        )
        self.output = ran.stdout + ran.stderr
        cases: dict[str, str | None] = {}
        for path in results.glob("*.xml"):
            for case in ElementTree.parse(path).iter("testcase"):
                failure = case.find("failure")
                cases[case.get("name", "")] = None if failure is None else failure.get("message")
        return ran.returncode, cases


@pytest.fixture
def build(tmp_path: pathlib.Path) -> Build:
    return Build(tmp_path)


def test_every_test_runs_once_in_several_processes(build: Build) -> None:
    tests = [f"Passes{number}" for number in range(7)]
    assert build.run(tests, shards=3) == (0, dict.fromkeys(tests))
    assert len(list((build.folder / "results").glob("*.xml"))) == 3


def test_a_failure_is_told_with_its_output(build: Build) -> None:
    assert build.run(["Passes", "Fails"]) == (0, {"Passes": None, "Fails": "no"})
    assert "[ RUN      ] A.Fails" in build.output
    assert "[ RUN      ] A.Passes" not in build.output


def test_tests_behind_one_that_ends_the_process_run_too(build: Build) -> None:
    status, cases = build.run(["Passes0", "Fails", "Dies", "Passes1", "Dies2", "Passes3"])
    assert status == 0
    assert {name for name, failure in cases.items() if failure is None} == {"Passes0", "Passes1", "Passes3"}
    assert cases["Fails"] == "see the log"
    assert cases["Dies"] == cases["Dies2"] == "the process ended with 3"


def test_a_test_that_hangs_is_ended(build: Build) -> None:
    status, cases = build.run(["Hangs", "Passes"], "--test-seconds", "1")
    assert (status, cases) == (0, {"Hangs": "the process printed nothing for 1.0 s", "Passes": None})


def test_an_exit_status_after_tests_that_passed_is_a_failure(build: Build) -> None:
    """A sanitizer reports leaks and races when the process ends."""
    status, cases = build.run(["Passes"], exit_status=66)
    assert status == 0
    assert cases == {"Passes": None, "process": "the process ended with 66, though its tests passed"}


def test_filters(build: Build) -> None:
    tests = ["Passes0", "Passes1", "Fails"]
    assert build.run(tests, "--filter", r"A\.Passes\d") == (0, {"Passes0": None, "Passes1": None})
    assert build.run(tests, "--filter", "NoSuchTest")[0] == 0


def test_tests_that_are_left_out(build: Build) -> None:
    assert build.run(["Passes0", "Passes1", "Fails"], "--leave-out", "*Fails:A.*1") == (0, {"Passes0": None})


def test_an_unknown_program_is_an_error_that_lists_the_known(build: Build) -> None:
    status, _ = build.run(["Passes"], "--jobs", "1", "b_test")
    assert status == 2
    assert "no test program is named b_test; there are: a_test" in build.output


def test_an_emulator_runs_the_programs(build: Build) -> None:
    emulator = build.folder / "emulator"
    emulator.write_text('#!/bin/sh\necho "$*" >>"$0.log"\nshift\nexec "$@"\n')
    emulator.chmod(0o755)
    assert build.run(["Passes", "Fails"], "--emulator", f"{emulator} -L") == (0, {"Passes": None, "Fails": "no"})
    listed, ran = (build.folder / "emulator.log").read_text().splitlines()
    assert listed.startswith(f"-L {build.folder}/tests/a_test --gtest_list_tests")
    assert ran.startswith(f"-L {build.folder}/tests/a_test --gtest_flagfile=")
