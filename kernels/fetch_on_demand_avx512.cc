#define VOXSERVE_ISA avx512
#include "kernels/fetch_on_demand_tile.h"
