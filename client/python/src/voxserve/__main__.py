"""python -m voxserve: the command line of voxserve.cli."""

import sys

from voxserve.cli.main import main

sys.exit(main())
