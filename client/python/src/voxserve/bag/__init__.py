"""Labels recorded drives: python -m voxserve.bag --help. Needs the packages of voxserve[bag]."""
