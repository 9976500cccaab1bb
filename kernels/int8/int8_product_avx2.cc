// The inner loops of products in 8 bits, compiled for AVX2.
#define VOXSERVE_ISA avx2
#include "kernels/int8/int8_tile.h"
