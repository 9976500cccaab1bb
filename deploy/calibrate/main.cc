// Runs the voxserve-calibrate process.

#include "deploy/calibrate/calibrate.h"

int main(int argc, char** argv) {
  return voxserve::offline::Main(argc, argv, VOXSERVE_VERSION, voxserve::calibrate::Run);
}
