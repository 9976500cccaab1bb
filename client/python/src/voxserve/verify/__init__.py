"""Proof that a served network computes what the user's own does.

voxserve.record(module, inputs, "reference.npz") writes what a module of the user's computed;
`python -m voxserve.verify models/mine reference.npz` compares the exported folder with it, node by node.
"""
