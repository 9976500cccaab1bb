#pragma once

// These functions emit the steps of the layers that operators.cc does not emit itself. index: the layer's index in
// Layers. Each part is in the file of its name (product_steps.cc, ...).

#include <memory>

#include "engine/compiler/step_emitter.h"
#include "engine/model/graph.h"
#include "engine/ops/conv/dataflow.h"
#include "engine/ops/rows/row_norm.h"
#include "engine/ops/step.h"

namespace voxserve {

// ---- product_steps.cc: sparse convolutions, linear layers and convolutions of images

void EmitSparseConv(const SparseConvOp& conv, int index, StepEmitter& emitter);
void EmitLinear(int index, StepEmitter& emitter);
// Returns the step of a row norm, and of its second norm.
std::unique_ptr<RowNormStep> RowNormStepOf(const RowNormOp& op, const BufferSlice& in, int index, StepEmitter& emitter);
// Emits the one step of an MLP (layer_fusion.h). index: the last of its layers.
void EmitMlp(int index, StepEmitter& emitter);
// Merged convolutions (product_merging.h) get their common step when the first of them is emitted.
void EmitConv2d(const Conv2dOp& op, int index, StepEmitter& emitter);

// Adds the bias of a convolution's shortcut to the convolution's.
void AddShortcutBias(const Layer& shortcut, Layer& conv);

// If the linear layer that an argmax reads can write labels itself, has the argmax do without the layer's values: the
// layer's step then runs only in batches in which something else needs the values.
void EmitArgmax(int index, StepEmitter& emitter);

// ---- site_steps.cc: values that get other sites, for concatenations and additions on the union of their inputs' sites
// and for operators that keep a part of their input's sites

// Emits a step that gives every site of `out` its row of `in`, or 0 where `in` lacks the site. The step is a pooling
// with a kernel of one cell. rulebook: index in the graph's rulebooks.
void EmitSameSites(int index, int rulebook, const BufferSlice& in, const BufferSlice& out, StepEmitter& emitter);

// Emits the steps that copy the inputs of a concatenation that are not written in place.
void EmitConcatCopies(const ConcatOp& op, int index, StepEmitter& emitter);

// Emits the steps that add two values on the union of their sites.
void EmitUnionAdd(const AddOp& op, int index, StepEmitter& emitter);

// ---- point_steps.cc: rows that move between points and sites

void EmitPointOffsets(const PointOffsetsOp& op, int index, StepEmitter& emitter);
void EmitPointToVoxel(const PointToVoxelOp& op, int index, StepEmitter& emitter);
void EmitDevoxelize(int index, StepEmitter& emitter);
// Emits nothing where the output step copies the rows (Layers::IsMadeByAnswer).
void EmitVoxelToPoint(int index, StepEmitter& emitter);

// ---- box_steps.cc: decoders of boxes, and non-maximum suppression

// Emits an nms, and before the nms those of its input decoders that were not emitted yet. These decoders of CenterPoint
// heads become one step for all heads on images, and one step for all heads on the sites of one level.
void EmitNms(const NmsOp& op, int index, StepEmitter& emitter);
void EmitQueryDecode(const QueryDecodeOp& op, int index, StepEmitter& emitter);

// ---- int8_steps.cc: products in 8 bits

// conv: the convolution as the program lists it, at conv_index.
void EmitInt8Conv(const SparseConvOp& op, ProgramConv conv, int conv_index, int index, StepEmitter& emitter);
void EmitInt8Linear(int index, StepEmitter& emitter);
void EmitInt8Conv2d(const Conv2dOp& op, int index, StepEmitter& emitter);
// Returns a step that copies the value of a layer to a slice of another type, where at least one of the two is in 8
// bits. in, out: of this value.
std::unique_ptr<Step> MakeInt8Conversion(const BufferSlice& in, const BufferSlice& out, int layer,
                                         const StepEmitter& emitter);

}  // namespace voxserve
