"""Adds up JUnit files of GoogleTest and pytest: what failed, what was skipped and why, and the counts alone on the last
line.

Exit status 1 where a test failed, a file is missing or unreadable, or no test ran at all.
"""

import collections
import re
import sys
import xml.etree.ElementTree as ElementTree


def skip_reason(skipped: ElementTree.Element) -> str:
    """Returns pytest's message, or what was streamed into GTEST_SKIP(), which GoogleTest writes below its place."""
    message = re.sub(r"^\S+:\d+\n", "", skipped.get("message") or "")
    return " ".join(message.split()) or "no reason given"


def main(paths: list[str]) -> int:
    passed = 0
    failed: list[str] = []
    skipped: dict[str, list[str]] = collections.defaultdict(list)
    for path in paths:
        try:
            root = ElementTree.parse(path).getroot()
        except (OSError, ElementTree.ParseError) as error:
            failed.append(f"{path}: {error}")
            continue
        is_googletest = root.get("name") == "AllTests"
        for case in root.iter("testcase"):
            name = f"{case.get('classname')}{'.' if is_googletest else '::'}{case.get('name')}"
            skip = case.find("skipped")
            if case.get("status") == "notrun":
                skipped["disabled"].append(name)
            elif skip is not None:
                skipped[skip_reason(skip)].append(name)
            elif case.find("failure") is not None or case.find("error") is not None:
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
