"""python -m voxserve.view: the command line of voxserve.view.command."""

import sys

from voxserve.view.command import main

sys.exit(main())
