"""The command `python -m voxserve.maps`: labels large point clouds in tiles."""
