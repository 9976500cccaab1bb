#pragma once

// This header defines two macros that Abseil 20220623 lacks. RETURN_IF_ERROR(status) returns the status from the
// calling function if it is not OK. ASSIGN_OR_RETURN(lhs, status_or) assigns the value to lhs, or returns the status.

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define VOXSERVE_CONCAT_INNER(a, b) a##b
#define VOXSERVE_CONCAT(a, b) VOXSERVE_CONCAT_INNER(a, b)

#define RETURN_IF_ERROR(expression)                                             \
  do {                                                                          \
    if (absl::Status voxserve_status_ = (expression); !voxserve_status_.ok()) { \
      return voxserve_status_;                                                  \
    }                                                                           \
  } while (false)

#define ASSIGN_OR_RETURN(lhs, expression) \
  VOXSERVE_ASSIGN_OR_RETURN_IMPL(VOXSERVE_CONCAT(voxserve_status_or_, __LINE__), lhs, expression)

#define VOXSERVE_ASSIGN_OR_RETURN_IMPL(status_or, lhs, expression) \
  auto status_or = (expression);                                   \
  if (!status_or.ok()) return std::move(status_or).status();       \
  lhs = std::move(status_or).value()
