// The inner loops of products in 8 bits, compiled for the instruction set that the whole build uses.
#define VOXSERVE_ISA baseline
#include "kernels/int8/int8_tile.h"
