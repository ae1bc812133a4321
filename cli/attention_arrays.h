// SPDX-License-Identifier: Apache-2.0
// query, key and value from files, and arrays of results for files; shared by forward, backward and
// analyze.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "attndrop/problem.h"
#include "attndrop/status.h"
#include "attndrop/strided.h"

#include "cli/flags.h"
#include "cli/io/npy.h"
#include "cli/io/output_file.h"
#include "cli/problem_flags.h"

namespace attndrop::cli {

struct ArrayFlags {
  Flag query, key, value;
};
void AddArrayFlags(CLI::App& app, ArrayFlags& flags);

struct AttentionArrays {
  NpyArray query;
  NpyArray key;
  NpyArray value;
};

// Reads the three and puts their sizes and type into `args`. Their shapes fit together.
[[nodiscard]] Result<AttentionArrays> LoadArrays(const ArrayFlags& flags, ProblemArgs& args);

// After the problem is known: the rows of a ragged batch are as many as its lengths say.
[[nodiscard]] Status CheckRows(const ArrayFlags& flags, const AttentionArrays& arrays,
                               const Problem& problem);

// Reads an array that must have this shape and type (grad_out, grad_logsumexp).
[[nodiscard]] Result<NpyArray> LoadLike(const Flag& flag, NpyType type,
                                        const std::vector<std::int64_t>& shape,
                                        std::string_view axes);

// A rank-4 array as a view.
[[nodiscard]] Strided<const void> ViewOf(const NpyArray& array);

// An array of results, zero at first, of at most four axes.
class ResultArray {
 public:
  [[nodiscard]] static Result<ResultArray> Make(std::string flag, NpyType type,
                                                std::vector<std::int64_t> shape);
  [[nodiscard]] const std::string& flag() const noexcept { return flag_; }
  // Leading axes that are missing have length 1, as NumPy broadcasts.
  [[nodiscard]] Strided<void> view() const;
  // Of (batch, heads, rows): one number a row.
  [[nodiscard]] Strided<void> row_view() const;
  [[nodiscard]] OutputArray output() const;
  [[nodiscard]] std::byte* data() const noexcept { return data_.get(); }

 private:
  ResultArray() = default;
  std::string flag_;
  NpyType type_ = NpyType::kFloat32;
  std::vector<std::int64_t> shape_;
  std::size_t num_bytes_ = 0;
  std::unique_ptr<std::byte[]> data_;
};

// Only what `outputs` was promised: {} and no data for a flag that is not given.
[[nodiscard]] Status AddResult(const OutputSet& outputs, const Flag& flag, NpyType type,
                               std::vector<std::int64_t> shape, std::vector<ResultArray>& results);

// The result that `flag` names, nullptr or a view without data when there is none.
[[nodiscard]] const ResultArray* FindResult(const Flag& flag,
                                            const std::vector<ResultArray>& results);
[[nodiscard]] Strided<void> ViewFor(const Flag& flag, const std::vector<ResultArray>& results);

[[nodiscard]] Status WriteResults(const OutputSet& outputs,
                                  const std::vector<ResultArray>& results);

// What --json prints about written files.
[[nodiscard]] nlohmann::ordered_json DescribeResults(const OutputSet& outputs,
                                                     const std::vector<ResultArray>& results);

}  // namespace attndrop::cli
