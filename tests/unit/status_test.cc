// SPDX-License-Identifier: Apache-2.0
// Status and Result: codes, messages, copies and moves.
#include "attndrop/status.h"

#include <memory>
#include <set>
#include <string>

#include <gtest/gtest.h>

namespace attndrop {
namespace {

TEST(StatusTest, DefaultIsOk) {
  EXPECT_TRUE(Status().ok());
  EXPECT_TRUE(Status::Ok().ok());
  EXPECT_EQ(Status().code(), StatusCode::kOk);
  EXPECT_EQ(Status().message(), "");
}

TEST(StatusTest, FactoriesSetCodeAndMessage) {
  const struct {
    Status status;
    StatusCode code;
    std::string_view name;
  } cases[] = {
      {Status::InvalidArgument("x"), StatusCode::kInvalidArgument, "invalid argument"},
      {Status::Unsupported("x"), StatusCode::kUnsupported, "unsupported"},
      {Status::OutOfMemory("x"), StatusCode::kOutOfMemory, "out of memory"},
      {Status::Internal("x"), StatusCode::kInternal, "internal error"},
  };
  for (const auto& c : cases) {
    EXPECT_FALSE(c.status.ok());
    EXPECT_EQ(c.status.code(), c.code);
    EXPECT_EQ(c.status.message(), "x");
    EXPECT_EQ(StatusCodeName(c.status.code()), c.name);
  }
  EXPECT_EQ(StatusCodeName(StatusCode::kOk), "ok");
}

TEST(ResultTest, HoldsAValueOrAStatus) {
  const Result<std::string> value(std::string("abc"));
  ASSERT_TRUE(value.ok());
  EXPECT_TRUE(value.status().ok());
  EXPECT_EQ(*value, "abc");
  EXPECT_EQ(value->size(), 3U);

  const Result<std::string> failure(Status::Unsupported("not built"));
  EXPECT_FALSE(failure.ok());
  EXPECT_EQ(failure.status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(failure.status().message(), "not built");
}

TEST(ResultTest, MovesValuesThatCannotBeCopied) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(7));
  ASSERT_TRUE(result.ok());
  **result = 8;
  const std::unique_ptr<int> taken = *std::move(result);
  EXPECT_EQ(*taken, 8);
}

}  // namespace
}  // namespace attndrop
