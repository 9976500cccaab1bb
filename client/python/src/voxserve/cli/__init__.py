"""The command line: infer, models and health, with the flags and the output of voxserve-client."""
