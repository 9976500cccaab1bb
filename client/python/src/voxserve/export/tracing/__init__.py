"""Follows a module of spconv, torchsparse or MinkowskiEngine, and writes down the nodes that it is."""
