// The inner loops of cpu::GroupAttention, compiled for AVX2.
#define VOXSERVE_ISA avx2
#include "kernels/rows/attention/group_attention_tile.h"
