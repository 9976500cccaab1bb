"""Makes the wheel one for this kind of machine: setuptools does not see that its files are compiled."""

from setuptools import Distribution, setup


class Compiled(Distribution):
    """A distribution with compiled files that setuptools did not compile."""

    def has_ext_modules(self):
        """Returns True."""
        return True


setup(distclass=Compiled)
