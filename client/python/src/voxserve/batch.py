"""python -m voxserve.batch: the command `batch` of voxserve.cli, by a name of its own for job schedulers."""

import sys

from voxserve.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["batch", *sys.argv[1:]]))
