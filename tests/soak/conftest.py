"""Makes importable the modules that the soak shares with other tests."""

import soak  # noqa: F401, soak.py adds the folders to sys.path
