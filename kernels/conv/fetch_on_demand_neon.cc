// The inner loops of cpu::FetchOnDemand for NEON, which every aarch64 processor has. They do the same arithmetic as the
// baseline's, with fewer loads and instructions for a multiplication.
#include <arm_neon.h>

#define VOXSERVE_ISA neon
#define VOXSERVE_NEON 1
#include "kernels/conv/fetch_on_demand_tile.h"
