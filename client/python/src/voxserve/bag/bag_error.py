"""Defines the error of the package voxserve.bag."""


class BagError(ValueError):
    """The bag cannot be read or cannot be labelled. The message says why."""
