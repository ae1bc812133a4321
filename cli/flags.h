// SPDX-License-Identifier: Apache-2.0
// Flags as text, and one strict reader that turns them into numbers with sentences for errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "attndrop/status.h"

namespace attndrop::cli {

// A flag with a value, as it was written.
struct Flag {
  std::string name;  // "--seed"
  std::optional<std::string> text;

  [[nodiscard]] bool given() const noexcept { return text.has_value(); }
};

// placeholder: what the help shows for the value ("N", "FILE").
void AddFlag(CLI::App& app, Flag& flag, std::string name, const std::string& help,
             const std::string& placeholder);
// A flag that may be given many times.
void AddListFlag(CLI::App& app, std::vector<std::string>& texts, const std::string& name,
                 const std::string& help, const std::string& placeholder);
// The heading in the help text for the flags added from here on.
void BeginGroup(CLI::App& app, const std::string& title);
void AddSwitch(CLI::App& app, bool& is_on, const std::string& name, const std::string& help);

struct IntRange {
  std::int64_t min = 0;
  std::int64_t max = 0;
};

// Reads flags one after another and remembers the first error, so that it is checked once.
class FlagReader {
 public:
  [[nodiscard]] bool ok() const noexcept { return status_.ok(); }
  [[nodiscard]] const Status& status() const noexcept { return status_; }
  void Fail(Status status);

  // Any number that a double holds, "nan" and "inf" included: their refusal is the library's.
  [[nodiscard]] double Number(const Flag& flag, double fallback);
  [[nodiscard]] std::int64_t Integer(const Flag& flag, std::int64_t fallback, IntRange range);
  // 0 .. 2^64-1.
  [[nodiscard]] std::uint64_t Unsigned64(const Flag& flag, std::uint64_t fallback);
  // Exactly `names.size()` integers between commas; names go into the messages.
  [[nodiscard]] std::vector<std::int64_t> Integers(const Flag& flag,
                                                   const std::vector<std::string_view>& names,
                                                   IntRange range);

  // The value of a Result, or `fallback` with the error remembered.
  template <class T>
  [[nodiscard]] T Take(Result<T> result, T fallback) {
    if (result.ok()) return *std::move(result);
    Fail(result.status());
    return fallback;
  }

 private:
  Status status_;
};

// The known word nearest to `given`, "" when none is near.
[[nodiscard]] std::string NearestName(std::string_view given,
                                      const std::vector<std::string>& known);

}  // namespace attndrop::cli
