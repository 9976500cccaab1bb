"""The command line: the same commands, flags and output as voxserve-client."""
