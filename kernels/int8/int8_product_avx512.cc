// The inner loops of products in 8 bits, compiled for AVX-512 with VNNI.
#define VOXSERVE_ISA vnni
#include "kernels/int8/int8_tile.h"
