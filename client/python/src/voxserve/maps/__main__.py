"""Entry point of `python -m voxserve.maps`."""

import sys

from voxserve.maps.command import main

if __name__ == "__main__":
    sys.exit(main())
