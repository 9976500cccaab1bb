"""Every command and program of README.md, run as written against the real server.

They run in a folder that looks like the repository's root (links to everything in it), so that what they write does not
land in the repository. What differs from the words of the README: localhost:8500, the clients' default, and :8080 are
the test server's ports, and ports that a block gives to a server of its own are free ones; build/release is the build
that is tested, and has code for one kind of GPU, as that build has.
"""

import contextlib
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
README = ROOT / "README.md"
BLOCKS = readme_blocks.parse(README.read_text(encoding="utf-8")) if README.exists() else []
TESTED = [block for block in BLOCKS if block.name]
TIMEOUT_S = 1800  # the demo's block compiles


def test_nothing_is_left_open():
    if not README.exists():
        pytest.skip("there is no README.md")
    assert "PLACEHOLDER" not in README.read_text(encoding="utf-8")


def test_every_command_is_tested_or_says_why_not():
    if not README.exists():
        pytest.skip("there is no README.md")
    unmarked = [f"line {b.line}" for b in BLOCKS if b.language in readme_blocks.RUNNABLE and not b.marked]
    assert not unmarked, "a comment before the block is missing, see readme_blocks.py"
    names = [block.name for block in TESTED]
    assert len(names) == len(set(names)), "two blocks of one name"


def binary() -> pathlib.Path:
    path = os.environ.get("VOXSERVE_BINARY")
    if not path:
        pytest.skip("VOXSERVE_BINARY does not name the server; tests/run.sh sets it")
    return pathlib.Path(path)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """The repository's root in links."""
    folder = tmp_path_factory.mktemp("readme") / "voxserve"
    folder.mkdir()
    for entry in ROOT.iterdir():
        if not entry.name.startswith("."):
            (folder / entry.name).symlink_to(entry)
    return folder


def environment():
    """With the programs in PATH, as a user of the README has them."""
    build = binary().parents[1]
    folders = [build / "server", build / "client/cpp", ROOT / "build/venv/bin", os.environ["PATH"]]
    return {**os.environ, "PATH": os.pathsep.join(map(str, folders)), "CUDAARCHS": "90a"}


def start(command, root, log):
    """The running server and its two ports, from its "serving" line."""
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
        text = re.sub(r"(voxserve-client|-m voxserve) (infer|models|health)", rf"\1 \2 --address localhost:{grpc_port}", text)
    return text.replace("build/release/", f"{binary().parents[1]}/")


@pytest.mark.parametrize("block", TESTED, ids=lambda block: block.name)
def test_block(block, root, request, tmp_path):
    build = binary().parents[1]
    if block.serves:
        script = "exec " + as_tested(block.text.strip(), (8500, 8080)) + " --port 0 --http_port 0"
        process, _, _ = start(["bash", "-euc", script], root, tmp_path / "server.log")
        stop(process)
        return
    ports = request.getfixturevalue("ports")
    if block.language == "cpp":
        command = [build / "tests/integration/readme_example"]
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
            with contextlib.suppress(ProcessLookupError):  # a server that the block has left behind
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
