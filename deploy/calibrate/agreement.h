#pragma once

// Agreement compares the answers of a model's 8-bit version with those of its float version, over any number of scans.
//
// - Labels: the share of points with the same label, among the points that the float version gives a class.
// - Boxes: the share of boxes with a partner in the other answer: of the same class, with its centre within 0.5 m and
//   its score within 0.02. Boxes without a partner do not count if their score is within 0.02 of the least score that
//   the network answers, since the partner may be just below it.
// - Tensors, of models with neither: the mean over the rows of the cosine between the two rows, 0 for rows that only
//   one answer has. Rows whose cosine is not finite agree (1) if they have the same bytes, else they do not (0).
//
// A model with labels and boxes has the smaller of the two shares.

#include <cstdint>

#include "engine/model/graph.h"
#include "engine/tensor/infer_result.h"

namespace voxserve::calibrate {

inline constexpr double kMatchDistance = 0.5;  // metres
inline constexpr double kMatchScore = 0.02;

class Agreement {
 public:
  // least_score: the least score that a box of the network can have (LeastBoxScore).
  explicit Agreement(double least_score = 0) : least_score_(least_score) {}

  // Counts one scan's answers.
  void Add(const InferResult& expected, const InferResult& found);

  // Part counts the labels, boxes or rows of one kind, and how many of them agree.
  struct Part {
    double agreeing = 0;
    int64_t total = 0;

    double share() const { return total == 0 ? 1 : agreeing / static_cast<double>(total); }
  };
  const Part& labels() const { return labels_; }
  const Part& boxes() const { return boxes_; }  // of both versions
  const Part& rows() const { return rows_; }    // of tensors

  // Returns true if no label, box or row was counted, so that the share says nothing.
  bool empty() const { return labels_.total + boxes_.total + rows_.total == 0; }
  // Returns the smallest share of a part, 0 to 1; 1 if nothing was counted.
  double share() const;
  // Returns the mean absolute difference of the points' scores (logits), or, if the answers have none, of the scores of
  // matched boxes, or 1 - the share. It tells layers apart whose share is the same. It is infinite if a score is not
  // finite in one answer only.
  double error() const;

 private:
  struct Mean {
    double sum = 0;
    int64_t count = 0;
  };

  void AddLabels(const InferResult& expected, const InferResult& found);
  void AddBoxes(const InferResult& expected, const InferResult& found);
  void AddTensors(const InferResult& expected, const InferResult& found);

  const double least_score_;
  Part labels_, boxes_, rows_;
  Mean logit_error_, box_error_;
};

// Returns the smallest score threshold of the network's decoders; 0 if it has none.
double LeastBoxScore(const Graph& graph);

}  // namespace voxserve::calibrate
