"""Checks that a served network computes what the user's own network does.

voxserve.record(module, inputs, "reference.npz") writes the results of the user's module;
`python -m voxserve.verify models/mine reference.npz` compares the exported folder with it, node by node.
"""
