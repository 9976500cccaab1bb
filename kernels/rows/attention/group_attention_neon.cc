// The inner loops of cpu::GroupAttention for NEON, which every aarch64 processor has.
#include <arm_neon.h>

#define VOXSERVE_ISA neon
#define VOXSERVE_NEON 1
#include "kernels/rows/attention/group_attention_tile.h"
