#!/bin/sh
# Measures the way from the wheels to the first label on a machine with Python 3.11 or newer and nothing else of voxserve:
# installation, server and label; then the engine in a process of Python. Prints a Markdown row for each step. It was
# run in chroots made by debootstrap (tests/bench/results has the table).
#
#   deploy/wheel/first_label.sh WHEELS      WHEELS: a folder that deploy/wheel/build.sh made
set -eu
wheels=$(cd "$1" && pwd)
work=$(mktemp -d)
server=''
trap 'test -z "$server" || kill "$server"; rm -rf "$work"' EXIT
cd "$work"

now() { date +%s%N; }
row() { # STEP START
  printf '| %s | %s |\n' "$1" "$(awk "BEGIN { printf \"%.1f\", ($(now) - $2) / 1e9 }")"
}
begin=$(now)
# shellcheck disable=SC1091
. /etc/os-release
printf '| %s, %s | seconds |\n|---|--:|\n' "$PRETTY_NAME" "$(python3 --version)"

start=$(now)
python3 -m venv venv
row "python3 -m venv" "$start"
start=$(now)
venv/bin/pip install --quiet --disable-pip-version-check --no-cache-dir --find-links "$wheels" 'voxserve[server]'
row "pip install 'voxserve[server]'" "$start"

start=$(now)
venv/bin/voxserve serve --port=18500 --admin_port=18501 --http_port=18080 2>server.log &
server=$!
venv/bin/voxserve health --address localhost:18500 --wait 60s >/dev/null
row "voxserve serve, until it is ready" "$start"
scan=$(sed -n 's/.*try: voxserve infer --model minkunet //p' server.log)
start=$(now)
venv/bin/voxserve infer --address localhost:18500 --model minkunet "$scan" --save labels.npy >infer.log
row "voxserve infer, the first label" "$start"
row "all of these" "$begin"
start=$(now)
venv/bin/voxserve-client infer --address localhost:18500 --model centerpoint "$scan" --save boxes.json >boxes.log
row "voxserve-client infer, boxes" "$start"
kill "$server"
wait "$server"
server=''
start=$(now)
venv/bin/python - "$scan" labels.npy <<'PYTHON'
import sys

import numpy as np

import voxserve

labels = voxserve.load("minkunet").infer(voxserve.read(sys.argv[1])).labels
assert labels.tobytes() == np.load(sys.argv[2]).tobytes()
PYTHON
row "voxserve.load('minkunet').infer: the same labels" "$start"

printf '\n| size | MB |\n|---|--:|\n'
for file in "$wheels"/*.whl; do
  printf '| %s | %s |\n' "$(basename "$file" | sed 's/-.*//'), the wheel" "$(du -m --apparent-size "$file" | cut -f 1)"
done
packages=$(venv/bin/python -c 'import voxserve; print(voxserve.__path__[0])')/..
for folder in "$packages"/voxserve "$packages"/voxserve_server "$packages"/voxserve_server.libs \
  "$packages"/voxserve_models; do
  printf '| %s, installed | %s |\n' "$(basename "$folder")" "$(du -sm --apparent-size "$folder" | cut -f 1)"
done
printf '| the virtual environment, with numpy and grpcio | %s |\n' "$(du -sm --apparent-size venv | cut -f 1)"
printf '\n'
sed -n 1,6p infer.log
