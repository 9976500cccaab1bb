#define VOXSERVE_ISA avx2
#include "kernels/fetch_on_demand_tile.h"
