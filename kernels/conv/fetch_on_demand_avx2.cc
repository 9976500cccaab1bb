#define VOXSERVE_ISA avx2
#include "kernels/conv/fetch_on_demand_tile.h"
