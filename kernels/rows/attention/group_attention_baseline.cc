// The inner loops of cpu::GroupAttention, compiled for the instruction set that the whole build uses.
#define VOXSERVE_ISA baseline
#include "kernels/rows/attention/group_attention_tile.h"
