// The inner loops of cpu::GroupAttention, compiled for AVX-512.
#define VOXSERVE_ISA avx512
#include "kernels/rows/attention/group_attention_tile.h"
