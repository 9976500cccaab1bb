"""Adds up JUnit files of ctest and pytest: what failed, what was skipped and why, and the counts alone on the last line.

Exit status 1 where a test failed, a file is missing or unreadable, or no test ran at all.
"""

import collections
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree


def is_skip_of_ctest(skipped: ElementTree.Element) -> bool:
    return (skipped.get("message") or "").startswith("SKIP_")


def skip_reason(case: ElementTree.Element, skipped: ElementTree.Element) -> str:
    """Returns pytest's message. For a gtest case it returns what was streamed into GTEST_SKIP(), which ctest keeps as
    output.
    """
    output = case.findtext("system-out") or ""
    found = re.search(r": Skipped\n(.*?)\n*\[  SKIPPED \]", output, re.DOTALL)
    if found and found.group(1).strip():
        return " ".join(found.group(1).split())
    message = skipped.get("message") or ""
    if not message or is_skip_of_ctest(skipped):
        lines = output.strip().splitlines()
        return lines[-1] if lines else "no reason given"
    return message


def main(paths: list[str]) -> int:
    passed = 0
    failed: list[str] = []
    skipped: dict[str, list[str]] = collections.defaultdict(list)
    for path in paths:
        try:
            cases = list(ElementTree.parse(path).iter("testcase"))
        except (OSError, ElementTree.ParseError) as error:
            failed.append(f"{path}: {error}")
            continue
        for case in cases:
            name = case.get("name", "")
            if pathlib.Path(path).stem != "ctest":
                name = f"{case.get('classname')}::{name}"
            skip = case.find("skipped")
            if case.get("status") == "disabled":
                skipped["disabled"].append(name)
            elif case.get("status") == "notrun" and not (skip is not None and is_skip_of_ctest(skip)):
                # ctest's word for a test that it could not start, an executable that was not built for one.
                failed.append(f"{name}: {'not run' if skip is None else skip.get('message')}")
            elif skip is not None:
                skipped[skip_reason(case, skip)].append(name)
            elif case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail":
                failed.append(name)
            else:
                passed += 1

    num_skipped = sum(len(names) for names in skipped.values())
    if skipped:
        print(f"skipped, {num_skipped}:")
        for reason, names in sorted(skipped.items()):
            print(f"  {reason}")
            for name in names:
                print(f"    {name}")
    if failed:
        print(f"failed, {len(failed)}:")
        for name in failed:
            print(f"  {name}")
    if passed == 0 and not failed:
        print("no test ran")
    print(f"{passed} passed, {len(failed)} failed, {num_skipped} skipped", flush=True)
    return 1 if failed or passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
