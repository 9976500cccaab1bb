"""python -m voxserve.bag: the command line of voxserve.bag.command."""

import sys

from voxserve.bag.command import main

sys.exit(main())
