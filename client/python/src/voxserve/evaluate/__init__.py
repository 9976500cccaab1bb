"""Measures a model on labelled data sets: python -m voxserve.evaluate --help."""
