// SPDX-License-Identifier: Apache-2.0
// What a refusal must be: its code, and a sentence that holds certain pieces.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "attndrop/problem.h"
#include "attndrop/status.h"

namespace attndrop::testing {

inline ::testing::AssertionResult Refuses(const Status& status, StatusCode code,
                                          const std::vector<std::string_view>& pieces) {
  if (status.code() != code) {
    return ::testing::AssertionFailure()
           << "code is " << StatusCodeName(status.code()) << ", wanted " << StatusCodeName(code)
           << "; message: " << status.message();
  }
  for (const std::string_view piece : pieces) {
    if (status.message().find(piece) != std::string::npos) continue;
    return ::testing::AssertionFailure() << "\"" << piece << "\" is not in: " << status.message();
  }
  return ::testing::AssertionSuccess();
}

inline ::testing::AssertionResult RefusesArgument(const Status& status,
                                                  const std::vector<std::string_view>& pieces) {
  return Refuses(status, StatusCode::kInvalidArgument, pieces);
}

// A small legal problem to start from.
inline ProblemArgs SmallArgs() {
  ProblemArgs args;
  args.shape = {.batch = 2, .num_heads = 4, .seqlen_q = 3, .seqlen_k = 5, .head_dim = 8};
  return args;
}

}  // namespace attndrop::testing
