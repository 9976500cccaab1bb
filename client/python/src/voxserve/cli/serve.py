"""The command serve: runs the server's program on models of this machine.

The process becomes the server, which gets its id and signals. The server's program is called voxserve too: what begins
with a flag (voxserve --model_repository=models) is its command line, whichever of both comes first in PATH.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence

from voxserve import compiled, local_models

HELP = """\
usage: voxserve serve [MODEL ...] [--FLAG=VALUE ...]

Serves models on the GPUs of this machine, or on its CPU. The process becomes the server: Ctrl-C or SIGTERM ends it,
after it has answered the requests that it has accepted. It listens on ports 8500 (gRPC), 8501 (operators) and 8080
(HTTP, with a status page), for this machine alone.

  MODEL   a model's folder (deploy/models/minkunet), a folder of models (deploy/models), or the name of a model of the
          package voxserve-models. Without one: all models of that package. Nothing is downloaded.
  --FLAG  flags of the server, after the models; `voxserve serve --help_server` lists them

examples:
  voxserve serve
  voxserve serve deploy/models/minkunet --port=9000
  voxserve serve models/minkunet models/centerpoint --host=0.0.0.0
"""


def run(words: Sequence[str]) -> int:
    """Becomes the server. words: the arguments after "serve". Returns the exit status if it prints help instead."""
    if "--help" in words or "-h" in words:
        print(HELP, end="")
        return 0
    if any(word.replace("-", "_") == "__help_server" for word in words):
        become(["--help"])
    flags = [word.startswith("-") for word in words]
    split = flags.index(True) if True in flags else len(words)
    models, rest = list(words[:split]), list(words[split:])
    for flag, word in itertools.pairwise(rest):
        if "=" in flag and not word.startswith("-"):
            raise ValueError(f"'{word}' stands after {flag}; name the models before the flags")
    if any(word.split("=")[0].lstrip("-") == "model_repository" for word in rest):
        if models:
            raise ValueError(f"name the models either as {models[0]} or by --model_repository")
        become(rest)
    program = compiled.server_program()  # tells what to install, before the models do
    repository = local_models.repository_of(models)
    scan = local_models.packaged_scan()
    if scan is not None and not models:
        print(f"voxserve: when it serves, try: voxserve infer --model minkunet {scan}", file=sys.stderr, flush=True)
    become([f"--model_repository={repository}", *rest], os.fspath(program))
    return 1


def become(arguments: Sequence[str], program: str = "") -> None:
    """Runs the server's program in place of this process."""
    path = program or os.fspath(compiled.server_program())
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(path, ["voxserve", *arguments])
