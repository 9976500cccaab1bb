"""The error that says what is wrong with a bag."""


class BagError(ValueError):
    """The bag cannot be read, or not be labelled; the message names it and says why."""
