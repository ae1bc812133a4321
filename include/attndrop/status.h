// SPDX-License-Identifier: Apache-2.0
// Errors as values: Status is a code and a sentence, Result<T> is a value or a Status.
#pragma once

#include <cassert>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "attndrop/export.h"

namespace attndrop {

enum class StatusCode : std::uint8_t {
  kOk,
  kInvalidArgument,  // the caller gave something that is never right
  kUnsupported,      // legal, but not built; the sentence lists what is
  kOutOfMemory,
  kInternal,
};

// "ok", "invalid argument", ...
[[nodiscard]] ATTNDROP_EXPORT std::string_view StatusCodeName(StatusCode code) noexcept;

// The sentence says what was given, what is allowed and what to do.
class [[nodiscard]] Status {
 public:
  Status() = default;
  static Status Ok() { return {}; }
  static Status InvalidArgument(std::string message) {
    return {StatusCode::kInvalidArgument, std::move(message)};
  }
  static Status Unsupported(std::string message) {
    return {StatusCode::kUnsupported, std::move(message)};
  }
  static Status OutOfMemory(std::string message) {
    return {StatusCode::kOutOfMemory, std::move(message)};
  }
  static Status Internal(std::string message) {
    return {StatusCode::kInternal, std::move(message)};
  }

  [[nodiscard]] bool ok() const noexcept { return code_ == StatusCode::kOk; }
  [[nodiscard]] StatusCode code() const noexcept { return code_; }
  [[nodiscard]] const std::string& message() const noexcept { return message_; }

 private:
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

// A value, or the Status that says why there is none. Reading the value of a failed Result is a
// programming error (asserted).
template <class T>
class [[nodiscard]] Result {
 public:
  // Implicit on purpose: functions return either a T or a Status.
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    assert(!status_.ok());
  }

  [[nodiscard]] bool ok() const noexcept { return value_.has_value(); }
  [[nodiscard]] const Status& status() const noexcept { return status_; }
  [[nodiscard]] T& operator*() & {
    assert(ok());
    return *value_;
  }
  [[nodiscard]] const T& operator*() const& {
    assert(ok());
    return *value_;
  }
  [[nodiscard]] T&& operator*() && {
    assert(ok());
    return *std::move(value_);
  }
  T* operator->() {
    assert(ok());
    return &*value_;
  }
  const T* operator->() const {
    assert(ok());
    return &*value_;
  }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace attndrop
