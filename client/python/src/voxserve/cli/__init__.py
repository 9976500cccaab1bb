"""The command line in text: infer, models and health, with the flags and the words of voxserve-client."""
