# serving.sh sources this file. Its functions read numbers from JSON files and from the metrics of the server at
# $http_port.
# shellcheck shell=bash

# numbers FILE KEY...: prints values of a JSON file in one line. A key is a path such as latency_ms.p50. Where the path
# meets a list, the values of its items are added. A missing value is printed as "-".
numbers() {
  python3 - "$@" <<'PY'
import json, sys

def find(value, path):
    for key in path.split("."):
        try:
            value = sum(one[key] for one in value) if isinstance(value, list) else value[key]
        except (KeyError, TypeError):
            return "-"
    if isinstance(value, float):
        return f"{value:.1f}" if value >= 100 else f"{value:.3g}"
    return value

try:
    with open(sys.argv[1]) as file:
        document = json.load(file)
except (OSError, ValueError):
    document = {}
print(*(find(document, path) for path in sys.argv[2:]))
PY
}

# calculate EXPRESSION: prints the value of a Python expression of numbers, or "-" if one of them is missing.
calculate() {
  python3 - "$1" <<'PY'
import sys

try:
    value = eval(sys.argv[1], {"__builtins__": {}}, {"max": max})
    print(f"{value:.1f}" if abs(value) >= 100 else f"{value:.3g}")
except (ArithmeticError, SyntaxError, TypeError):
    print("-")
PY
}

# scrape FILE: writes the metrics that the server exports now to the file.
scrape() {
  # shellcheck disable=SC2154  # serving.sh sets http_port
  python3 - "http://127.0.0.1:$http_port/metrics" >"$1" <<'PY' || true
import sys, urllib.request

print(urllib.request.urlopen(sys.argv[1], timeout=5).read().decode())
PY
}

# total FILE NAME [LABELS]: prints the sum over a metric's series in a scraped file. LABELS is a regular expression that
# selects series.
total() {
  python3 - "$1" "$2" "${3:-}" <<'PY'
import re, sys

path, name, labels = sys.argv[1:]
total = 0.0
for line in open(path):
    series = re.match(r"(\w+)(\{.*\})? (\S+)$", line)
    if series and series[1] == name and re.search(labels, series[2] or ""):
        total += float(series[3])
print(f"{total:.6g}")
PY
}

# percentile PERCENT NAME BEFORE AFTER: prints a percentile, in ms, of the values that a histogram observed between two
# scraped files, and their number. The percentile is the upper end of a bucket, so the true one is not higher.
percentile() {
  python3 - "$@" <<'PY'
import re, sys

percent, name, *paths = sys.argv[1:]

def buckets(path):
    counts = {}
    for line in open(path):
        series = re.match(r'(\w+)_bucket\{.*le="([^"]+)".*\} (\S+)$', line)
        if series and series[1] == name:
            end = float(series[2])
            counts[end] = counts.get(end, 0) + float(series[3])
    return counts

before, after = map(buckets, paths)
counts = {end: count - before.get(end, 0) for end, count in sorted(after.items())}
total = max(counts.values(), default=0)
ends = [end for end, count in counts.items() if total > 0 and count >= total * float(percent) / 100]
print(f"{1000 * ends[0]:.3g} ({total:.0f})" if ends else "-")
PY
}
