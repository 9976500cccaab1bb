// The inner loops of cpu::FetchOnDemand, compiled for the instruction set that the whole build uses.
#define VOXSERVE_ISA baseline
#include "kernels/conv/fetch_on_demand_tile.h"
