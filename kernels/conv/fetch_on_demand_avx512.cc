// The inner loops of cpu::FetchOnDemand, compiled for AVX-512.
#define VOXSERVE_ISA avx512
#include "kernels/conv/fetch_on_demand_tile.h"
