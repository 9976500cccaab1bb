#define VOXSERVE_ISA baseline
#include "kernels/fetch_on_demand_tile.h"
