"""Tests the summary that tests/run.sh prints, on result files like those of GoogleTest 1.12 and pytest."""

import pathlib
import subprocess
import sys

SUMMARY = pathlib.Path(__file__).parent.parent / "summary.py"

GOOGLETEST = """<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="5" failures="1" disabled="1" errors="0" time="1" timestamp="2026-01-01T00:00:00" name="AllTests">
  <testsuite name="A" tests="5" failures="1" disabled="1" skipped="1" errors="0" time="1">
    <testcase name="Passes" status="run" result="completed" time="0.1" classname="A" />
    <testcase name="Fails" status="run" result="completed" time="0.1" classname="A">
      <failure message="a_test.cc:9&#x0A;Failure" type=""><![CDATA[a_test.cc:9
Failure]]></failure>
    </testcase>
    <testcase name="Skips" status="run" result="skipped" time="0.1" classname="A">
      <skipped message="/src/a_test.cc:12&#x0A;no scan at&#x0A;/nowhere&#x0A;"><![CDATA[/src/a_test.cc:12
no scan at
/nowhere
]]></skipped>
    </testcase>
    <testcase name="DISABLED_Off" status="notrun" result="suppressed" time="0" classname="A" />
  </testsuite>
</testsuites>
"""
PYTEST = """<?xml version="1.0" encoding="utf-8"?>
<testsuites><testsuite name="pytest" errors="1" failures="1" skipped="1" tests="4">
  <testcase classname="test_a" name="test_passes" time="0.1" />
  <testcase classname="test_a" name="test_fails" time="0.1"><failure message="assert 0">trace</failure></testcase>
  <testcase classname="" name="test_b" time="0"><error message="collection failure">trace</error></testcase>
  <testcase classname="test_a" name="test_skips" time="0"><skipped type="pytest.skip" message="no server">x</skipped></testcase>
</testsuite></testsuites>
"""  # fmt: skip
PASSING = '<testsuites name="AllTests"><testcase classname="A" name="Passes" status="run"/></testsuites>'


def summarize(*paths):
    result = subprocess.run([sys.executable, SUMMARY, *paths], capture_output=True, text=True)
    return result.returncode, result.stdout.splitlines()


def write(folder, name, text):
    path = folder / name
    path.write_text(text)
    return path


def test_counts_and_reasons_of_both(tmp_path):
    code, lines = summarize(write(tmp_path, "programs.xml", GOOGLETEST), write(tmp_path, "python.xml", PYTEST))
    assert code == 1
    assert lines[-1] == "2 passed, 3 failed, 3 skipped"
    reason = lines.index("  no scan at /nowhere")
    assert lines[reason + 1] == "    A.Skips"
    assert lines[lines.index("  no server") + 1] == "    test_a::test_skips"
    assert lines[lines.index("  disabled") + 1] == "    A.DISABLED_Off"
    failures = lines[lines.index("failed, 3:") + 1 : -1]
    assert failures == ["  A.Fails", "  test_a::test_fails", "  ::test_b"]


def test_all_passed(tmp_path):
    assert summarize(write(tmp_path, "programs.xml", PASSING)) == (0, ["1 passed, 0 failed, 0 skipped"])


def test_a_missing_or_broken_file_is_a_failure(tmp_path):
    good = write(tmp_path, "programs.xml", PASSING)
    for bad in (tmp_path / "none.xml", write(tmp_path, "cut.xml", GOOGLETEST[:300])):
        code, lines = summarize(good, bad)
        assert code == 1
        assert lines[-1] == "1 passed, 1 failed, 0 skipped"
        assert str(bad) in lines[1]


def test_no_test_at_all_is_a_failure(tmp_path):
    code, lines = summarize(write(tmp_path, "programs.xml", "<testsuites/>"))
    assert code == 1
    assert lines == ["no test ran", "0 passed, 0 failed, 0 skipped"]
