// The inner loops of cpu::FetchOnDemand, compiled for AVX2.
#define VOXSERVE_ISA avx2
#include "kernels/conv/fetch_on_demand_tile.h"
