"""Traces a module of spconv, torchsparse or MinkowskiEngine, and converts it to nodes."""
