"""Runs the command line of voxserve.cli: python -m voxserve."""

import sys

from voxserve.cli.main import main

sys.exit(main())
