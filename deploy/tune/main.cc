// Runs the voxserve-tune process.

#include "deploy/tune/tune.h"

int main(int argc, char** argv) { return voxserve::offline::Main(argc, argv, VOXSERVE_VERSION, voxserve::tune::Run); }
