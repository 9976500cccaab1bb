"""python -m voxserve.evaluate: the command line of voxserve.evaluate.command."""

import sys

from voxserve.evaluate.command import main

sys.exit(main())
