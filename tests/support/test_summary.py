"""Tests the summary that tests/run.sh prints, on result files like those of ctest 3.25 and pytest."""

import pathlib
import subprocess
import sys

SUMMARY = pathlib.Path(__file__).parent.parent / "summary.py"

CTEST = """<?xml version="1.0" encoding="UTF-8"?>
<testsuite name="Linux-c++" tests="5" failures="1" disabled="0" skipped="2" hostname="" time="1">
  <testcase name="A.Passes" classname="A.Passes" time="0.1" status="run"><system-out>ok</system-out></testcase>
  <testcase name="A.Fails" classname="A.Fails" time="0.1" status="fail"><failure message="Failed"/></testcase>
  <testcase name="A.Skips" classname="A.Skips" time="0.1" status="notrun">
    <skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>
    <system-out>[ RUN      ] A.Skips
/src/a_test.cc:12: Skipped
no scan at
/nowhere

[  SKIPPED ] A.Skips (0 ms)
[  SKIPPED ] 1 test, listed below:
</system-out></testcase>
  <testcase name="a_test_NOT_BUILT" classname="a_test_NOT_BUILT" time="0" status="notrun">
    <skipped message="Unable to find executable"/></testcase>
  <testcase name="A.Off" classname="A.Off" time="0" status="disabled"><skipped message="Disabled"/></testcase>
</testsuite>
"""
PYTEST = """<?xml version="1.0" encoding="utf-8"?>
<testsuites><testsuite name="pytest" errors="1" failures="1" skipped="1" tests="4">
  <testcase classname="test_a" name="test_passes" time="0.1" />
  <testcase classname="test_a" name="test_fails" time="0.1"><failure message="assert 0">trace</failure></testcase>
  <testcase classname="" name="test_b" time="0"><error message="collection failure">trace</error></testcase>
  <testcase classname="test_a" name="test_skips" time="0"><skipped type="pytest.skip" message="no server">x</skipped></testcase>
</testsuite></testsuites>
"""  # fmt: skip
PASSING = '<testsuite><testcase name="A.Passes" status="run"/></testsuite>'


def summarize(*paths):
    result = subprocess.run([sys.executable, SUMMARY, *paths], capture_output=True, text=True)
    return result.returncode, result.stdout.splitlines()


def write(folder, name, text):
    path = folder / name
    path.write_text(text)
    return path


def test_counts_and_reasons_of_both(tmp_path):
    code, lines = summarize(write(tmp_path, "ctest.xml", CTEST), write(tmp_path, "python.xml", PYTEST))
    assert code == 1
    assert lines[-1] == "2 passed, 4 failed, 3 skipped"
    reason = lines.index("  no scan at /nowhere")
    assert lines[reason + 1] == "    A.Skips"
    assert lines[lines.index("  no server") + 1] == "    test_a::test_skips"
    assert lines[lines.index("  disabled") + 1] == "    A.Off"
    failures = lines[lines.index("failed, 4:") + 1 : -1]
    assert failures == ["  A.Fails", "  a_test_NOT_BUILT: Unable to find executable", "  test_a::test_fails", "  ::test_b"]


def test_all_passed(tmp_path):
    assert summarize(write(tmp_path, "ctest.xml", PASSING)) == (0, ["1 passed, 0 failed, 0 skipped"])


def test_a_missing_or_broken_file_is_a_failure(tmp_path):
    good = write(tmp_path, "ctest.xml", PASSING)
    for bad in (tmp_path / "none.xml", write(tmp_path, "cut.xml", CTEST[:300])):
        code, lines = summarize(good, bad)
        assert code == 1
        assert lines[-1] == "1 passed, 1 failed, 0 skipped"
        assert str(bad) in lines[1]


def test_no_test_at_all_is_a_failure(tmp_path):
    code, lines = summarize(write(tmp_path, "ctest.xml", "<testsuite/>"))
    assert code == 1
    assert lines == ["no test ran", "0 passed, 0 failed, 0 skipped"]
