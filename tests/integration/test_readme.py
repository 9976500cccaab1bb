"""Runs every command and program of the READMEs against the real server.

They run in a folder of links to everything in the repository's root, so that they write nothing into the repository. A
few words are replaced before a block runs:

- localhost:8500, the clients' default, and :8080 become the ports of the test's server.
- Ports that a block gives to a server of its own become free ones.
- build/native, build/release and build/dev become the build that is tested.
"""

import contextlib
import decimal
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
import readme_blocks

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The documents, and how many lines each may have, so that a reader needs only a few minutes for one.
MAX_LINES = {
    "README.md": 170,
    ".github/CONTRIBUTING.md": 200,
    "proto/README.md": 199,
    "server/README.md": 199,
    "server/THREATS.md": 199,
    "server/OPEN_INFERENCE.md": 199,
    "server/OBSERVABILITY.md": 199,
    "engine/README.md": 199,
    "engine/INT8.md": 199,
    "kernels/README.md": 199,
    "client/cpp/README.md": 199,
    "client/ros2/README.md": 199,
    "client/python/README.md": 199,
    "client/python/NETWORKS.md": 199,
    "client/python/OPERATORS.md": 199,
    "client/python/DRIVES.md": 199,
    "client/python/MAPS.md": 199,
    "tests/README.md": 199,
    "tests/bench/README.md": 199,
    "tests/golden/README.md": 199,
    "deploy/README.md": 199,
    "deploy/FLEETS.md": 199,
    "deploy/DEBIAN.md": 199,
    "deploy/models/minkunet/README.md": 199,
    "deploy/models/centerpoint/README.md": 199,
    "deploy/train/README.md": 199,
}
TEXTS = {name: (ROOT / name).read_text(encoding="utf-8") for name in MAX_LINES if (ROOT / name).exists()}
BLOCKS = {name: readme_blocks.parse(text) for name, text in TEXTS.items()}
TESTED = [(name, block) for name, blocks in BLOCKS.items() for block in blocks if block.name]
# The C++ programs in the documents, which tests/integration/CMakeLists.txt compiles.
PROGRAMS = {"README.md": "readme_example", "engine/README.md": "engine_readme_example"}
TIMEOUT_S = 1800  # The demonstration's block compiles the whole repository.


def test_every_document_is_there_and_short():
    lines = {name: len(TEXTS.get(name, "").splitlines()) for name in MAX_LINES}
    assert [name for name in MAX_LINES if not 0 < lines[name] <= MAX_LINES[name]] == [], lines


@pytest.mark.parametrize("name", TEXTS)
def test_nothing_is_left_open(name):
    assert "PLACEHOLDER" not in TEXTS[name]


@pytest.mark.parametrize("name", TEXTS)
def test_every_command_is_tested_or_says_why_not(name):
    blocks = BLOCKS[name]
    unmarked = [f"line {b.line}" for b in blocks if b.language in readme_blocks.RUNNABLE and not b.marked]
    assert not unmarked, "a comment before the block is missing, see readme_blocks.py"
    names = [block.name for block in blocks if block.name]
    assert len(names) == len(set(names)), "two blocks of one name"


@pytest.mark.parametrize("name", TEXTS)
def test_links_lead_somewhere(name):
    folder = (ROOT / name).parent
    targets = re.findall(r"\]\(([^)\s]+)\)", TEXTS[name])
    files = [target.split("#")[0] for target in targets if "://" not in target and not target.startswith("#")]
    assert [file for file in files if not (folder / file).exists()] == []


def anchors(path):
    """Returns the anchors that GitHub gives to a document's headings."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", TEXTS)
def test_links_lead_to_headings(name):
    links = re.findall(r"\]\((?!https?:)([^)\s#]*)#([^)\s]+)\)", TEXTS[name])
    pages = [((ROOT / name).parent / file if file else ROOT / name, anchor) for file, anchor in links]
    assert [(page.name, anchor) for page, anchor in pages if anchor not in anchors(page)] == []


def test_sources_that_documents_name_exist():
    """Looks in the text, outside of blocks, for names of source files, with their folder or without."""
    folders = ("proto", "server", "engine", "kernels", "client", "deploy", ".github", ".ci", "tests")
    there = {f"/{path.relative_to(ROOT)}" for folder in folders for path in (ROOT / folder).rglob("*")}
    there |= {f"/{path.name}" for path in ROOT.iterdir()}
    missing = []
    for name, text in TEXTS.items():
        prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
        for found in re.findall(r"(?<![\w/.*{-])[A-Za-z][\w/.-]*\.(?:h|cc|cu|cuh|proto|py|sh|cmake|supp)\b", prose):
            if found != "my_network.py" and not any(path.endswith(f"/{found}") for path in there):
                missing.append((name, found))
    assert missing == []


def test_documents_list_every_preset_and_benchmark():
    presets = json.loads((ROOT / "CMakePresets.json").read_text(encoding="utf-8"))["configurePresets"]
    contributing = TEXTS[".github/CONTRIBUTING.md"]
    assert [p["name"] for p in presets if not p.get("hidden") and f"`{p['name']}`" not in contributing] == []
    benchmarks = {path.stem for path in (ROOT / "tests/bench").glob("*_bench.cc")}
    assert benchmarks - names_in("tests/bench/README.md", r"`(\w+_bench)\b") == set()


def test_the_readme_lists_every_network_that_is_exported():
    command = [sys.executable, "-m", "voxserve.export", "--help"]
    help_text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    networks = set(re.search(r"\{([\w,-]+)\}", help_text)[1].split(","))
    rows = re.findall(r"^\| [^|]+ \| `([\w-]+)", TEXTS["README.md"], re.MULTILINE)
    assert networks - set(rows) == set()
    known = names_in("client/python/NETWORKS.md", r"`([\w-]+)`")
    assert networks - known == {"from-torch"}, "the table of known networks lacks these"


def names_in(path, pattern):
    return set(re.findall(pattern, (ROOT / path).read_text(encoding="utf-8")))


def declared_metrics():
    """Returns the labels of every metric that the server declares, by the metric's name."""
    of_models, of_server = (ROOT / "server/metrics/metrics.h").read_text(encoding="utf-8").split("struct DevicePlans")
    labels = {}
    for text, default in ((of_models, ["model"]), (of_server, [])):  # default: the labels of a CounterOf
        for declaration in re.split(r";(?: +//.*)?\n", text):
            if name := re.search(r'"(voxserve_\w+)"', declaration):
                listed = re.search(r'\{((?:"\w+"(?:, )?)*)\}', declaration)
                labels[name[1]] = re.findall(r"\w+", listed[1]) if listed else default
    return labels


def test_the_server_documents_every_metric():
    metrics = declared_metrics()
    assert len(metrics) > 30
    documented = {f"voxserve_{name}" for name in names_in("server/README.md", r"`voxserve_(\w+)")}
    assert set(metrics) - documented == set()
    assert documented - set(metrics) == set(), "these are no metrics any more"


def test_the_server_documents_the_labels_of_every_metric():
    rows = "\n".join(line for line in TEXTS["server/README.md"].splitlines() if line.startswith("| `voxserve_"))
    documented = {
        name: re.findall(r"\w+", labels or "") for name, labels in re.findall(r"`(voxserve_\w+)(\{[\w,]*\})?`", rows)
    }
    assert documented == declared_metrics()


def test_the_servers_table_of_flags_is_that_of_its_help():
    """The rows have the topics of the table in the code (server/options.cc), and its flags in the same order."""
    help_text = subprocess.run([binary(), "--help"], capture_output=True, text=True, check=True, timeout=30).stdout
    topics = re.split(r"^Flags for (.+):$", help_text, flags=re.MULTILINE)[1:]
    rows = [(topic, re.findall(r"^  (--\w+)", rows, re.MULTILINE)) for topic, rows in zip(topics[::2], topics[1::2])]
    assert sum(len(flags) for _, flags in rows) > 40
    readme = (ROOT / "server/README.md").read_text(encoding="utf-8")
    table = readme.split("| topic | flags |\n|---|---|\n")[1].split("\n\n")[0]
    documented = [line.strip("| ").split(" | ") for line in table.splitlines()]
    assert [(topic, flags.split(", ")) for topic, flags in documented] == [
        (topic, [f"`{flag}`" for flag in flags]) for topic, flags in rows
    ]


RESULTS = ROOT / "tests/bench/results"


def test_every_table_of_results_is_listed():
    tables = {path.name for path in RESULTS.glob("20*.md")}
    assert tables - names_in(RESULTS / "CURRENT.md", r"\(([\w.-]+\.md)\)") == set(), "no current number is of these"
    assert tables - names_in("tests/bench/README.md", r"\(results/([\w.-]+\.md)\)") == set()
    pictures = {path.name for path in RESULTS.glob("*.svg")}
    assert pictures - set().union(*(names_in(path, r"\(([\w.-]+\.svg)\)") for path in RESULTS.glob("*.md"))) == set()


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.md")), ids=lambda path: path.name)
def test_links_of_results_lead_somewhere(path):
    files = [
        target.split("#")[0]
        for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8"))
        if "://" not in target
    ]
    assert [file for file in files if file and not (path.parent / file).exists()] == []


def test_documents_cite_only_the_page_of_current_numbers():
    folders = ("proto", "server", "engine", "kernels", "client", "deploy", ".github", "tests")
    suffixes = {".md", ".h", ".cc", ".cu", ".cuh", ".py", ".sh", ".proto", ".txt"}
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in suffixes]
    files = [path for path in (ROOT / "README.md", *files) if not path.is_relative_to(ROOT / "tests/bench")]
    cited = {path: names_in(path, r"\b20\d\d-\d\d-\d\d-[\w-]+\.(?:md|svg)") for path in files}
    assert {name: tables for name, tables in cited.items() if tables} == {}


def test_the_speeds_of_the_readme_are_the_current_ones():
    """Compares each row of README.md's table whose network stands in the first table of CURRENT.md."""
    current = {}
    for name, *rest in re.findall(
        r"^\| (.+?) \| ([\d,]+) \| ([\d,]+) \| ([\d.]+) \| ([\d.]+) \|", text_of_current(), re.M
    ):
        current.setdefault(name, rest)
    rows = re.findall(
        r"^\| (.+?) \| ([\d,]+) \| ([\d,]+) \| \*\*([\d.]+) ms\*\* \| ([\d.]+) ms \|", TEXTS["README.md"], re.M
    )
    assert len(rows) > 5
    for name, points, voxels, p50, p99 in rows:
        assert [points, voxels, p50, p99] == [*current[name][:2], *(to_hundredths(ms) for ms in current[name][2:])], (
            name
        )
    cpu = re.search(r"least time, float32; 8 bits: .*?; ([\d.]+), ([\d.]+) \|", text_of_current())
    assert "{:.0f} ms; **{:.0f} ms**".format(*map(float, cpu.groups())) in TEXTS["README.md"]


def numbers_in(text):
    return {found.replace(",", "") for found in re.findall(r"(?<![\w.-])\d[\d,]*(?:\.\d+)?(?:e-\d+)?", text)}


def test_current_numbers_are_those_of_the_tables():
    """Looks for each number of a row in the tables that the row links, or else the section, or else the row before."""
    tables = {path.name: numbers_in(path.read_text(encoding="utf-8")) for path in RESULTS.glob("*.md")}
    missing = []
    for section in text_of_current().split("\n## ")[1:]:
        for row in re.findall(r"^\| .*", section, re.MULTILINE):
            cells = row.split("|")[1:-1]
            if row.startswith(("| topic", "| network", "| GPUs")):
                of_topics = row.startswith("| topic")
                linked = re.findall(r"\(([\w.-]+\.md)", section)
                continue
            if of_topics:
                linked = re.findall(r"\(([\w.-]+\.md)", cells[4]) or linked
            there = set().union(*(tables[name] for name in linked))
            stated = numbers_in(cells[1] if of_topics else row)
            missing += [(row, number) for number in stated - there - {"7.5"}]  # 7.5 cm is 0.075 m there
    assert missing == []


def text_of_current():
    return (RESULTS / "CURRENT.md").read_text(encoding="utf-8")


def to_hundredths(text):
    return str(decimal.Decimal(text).quantize(decimal.Decimal("0.01"), decimal.ROUND_HALF_UP))


def binary() -> pathlib.Path:
    path = os.environ.get("VOXSERVE_BINARY")
    if not path:
        pytest.skip("VOXSERVE_BINARY does not name the server; tests/run.sh sets it")
    return pathlib.Path(path)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder that has a link to every entry of the repository's root."""
    folder = tmp_path_factory.mktemp("readme") / "voxserve"
    folder.mkdir()
    for entry in ROOT.iterdir():
        if not entry.name.startswith("."):
            (folder / entry.name).symlink_to(entry)
    return folder


def environment():
    """Returns the environment of a block. PATH has the programs, as the root's README asks for."""
    build = binary().parents[1]
    folders = [build / "server", build / "client/cpp", ROOT / "build/venv/bin", os.environ["PATH"]]
    return {**os.environ, "PATH": os.pathsep.join(map(str, folders))}


def start(command, root, log):
    """Starts a server. Returns its process and its two ports, which its "serving" line names."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, cwd=root, env=environment(), stdout=out, stderr=out, stdin=subprocess.DEVNULL
        )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        found = re.search(r" serving .*grpc_port=(\d+).*http_port=(\d+)", log.read_text(errors="replace"))
        if found:
            return process, int(found.group(1)), int(found.group(2))
        time.sleep(0.05)
    process.kill()
    process.wait()
    pytest.fail(f"the server did not start: {log.read_text(errors='replace')[-2000:]}")


def stop(process):
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0


@pytest.fixture(scope="module")
def ports(root, tmp_path_factory):
    command = [binary(), "--model_repository", "deploy/models", "--port", "0", "--http_port", "0"]
    log = tmp_path_factory.mktemp("log") / "server.log"
    process, grpc_port, http_port = start(command, root, log)
    address = f"localhost:{grpc_port}"
    client = binary().parents[1] / "client/cpp/voxserve-client"
    for _ in range(600):
        if subprocess.run([client, "health", "--address", address], capture_output=True).returncode == 0:
            break
        time.sleep(0.1)
    else:
        pytest.fail(f"no model was ready in time: {log.read_text(errors='replace')[-2000:]}")
    yield grpc_port, http_port
    stop(process)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def as_tested(text, ports):
    for port in re.findall(r"--(?:http_)?port (\d+)", text):
        text = re.sub(rf"\b{port}\b", str(free_port()), text)
    grpc_port, http_port = ports
    text = text.replace("localhost:8500", f"localhost:{grpc_port}").replace("localhost:8080", f"localhost:{http_port}")
    if "--address" not in text:
        text = re.sub(
            r"(voxserve-client|-m voxserve) (infer|models|health)", rf"\1 \2 --address localhost:{grpc_port}", text
        )
    return re.sub(r"\bbuild/(native|release|dev)/", f"{binary().parents[1]}/", text)


@pytest.mark.parametrize(("name", "block"), TESTED, ids=[f"{name}:{block.name}" for name, block in TESTED])
def test_block(name, block, root, request, tmp_path):
    build = binary().parents[1]
    if block.serves:
        script = "exec " + as_tested(block.text.strip(), (8500, 8080)) + " --port 0 --http_port 0"
        process, _, _ = start(["bash", "-euc", script], root, tmp_path / "server.log")
        stop(process)
        return
    ports = request.getfixturevalue("ports")
    if block.language == "cpp":
        command = [build / "tests/integration" / PROGRAMS[name]]
    elif block.language == "python":
        command = [sys.executable, "-c", as_tested(block.text, ports)]
    else:
        command = ["bash", "-euo", "pipefail", "-c", as_tested(block.text, ports)]
    stdout, stderr = tmp_path / "stdout", tmp_path / "stderr"
    with stdout.open("wb") as out, stderr.open("wb") as err:
        process = subprocess.Popen(
            command,
            cwd=root,
            env={**environment(), "VOXSERVE_ADDRESS": f"localhost:{ports[0]}"},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        try:
            status = process.wait(timeout=TIMEOUT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):  # This ends a server that the block has left running.
                os.killpg(process.pid, signal.SIGKILL)
    printed = stdout.read_text(errors="replace")
    assert status == 0, printed[-4000:] + stderr.read_text(errors="replace")[-4000:]
    if block.prints:
        assert block.prints in printed


MARKDOWN = """
# Title

<!-- test: one -->
```sh
true
```

<!-- test: two; prints: 107288 -->

```python
print(107288)
```
<!-- test: server; serves -->
```sh
voxserve
```
<!-- not tested: it needs Docker -->
```sh
docker run
```
words
```sh
unmarked
```
```
output
```
<!-- test: cpp -->
```cpp
int main() { return Connect("localhost:8500"); }
```
"""


def test_markers_are_read():
    blocks = readme_blocks.parse(MARKDOWN)
    assert [b.name for b in blocks] == ["one", "two", "server", None, None, None, "cpp"]
    assert [b.marked for b in blocks] == [True, True, True, True, False, False, True]
    assert (blocks[0].text, blocks[0].line, blocks[0].language) == ("true\n", 5, "sh")
    assert blocks[1].prints == "107288"
    assert blocks[2].serves
    assert blocks[3].reason == "it needs Docker"
    assert 'Connect(std::getenv("VOXSERVE_ADDRESS"))' in readme_blocks.cpp_source(MARKDOWN)


@pytest.mark.parametrize("markdown", ["```sh\nno end\n", "<!-- tset: typo -->\n```sh\ntrue\n```\n"])
def test_mistakes_in_markers_are_errors(markdown):
    with pytest.raises(ValueError, match="line 1|line 2"):
        readme_blocks.parse(markdown)
