#define VOXSERVE_ISA baseline
#include "kernels/conv/fetch_on_demand_tile.h"
