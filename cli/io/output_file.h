// SPDX-License-Identifier: Apache-2.0
// The files that one command writes: they appear complete and all together, or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attndrop/status.h"

#include "cli/io/npy.h"

namespace attndrop::cli {

// What goes into one file.
struct OutputArray {
  std::string flag;  // the one that named the file
  NpyType type = NpyType::kFloat32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
};

class OutputSet {
 public:
  // force: existing files are replaced.
  explicit OutputSet(bool force) : force_(force) {}

  // Promises a file; called before any work, so that what cannot be written is refused early:
  // kInvalidArgument for a wrong path or an existing file, kInternal for a folder without access.
  [[nodiscard]] Status Add(const std::string& flag, const std::string& path);

  [[nodiscard]] bool Has(std::string_view flag) const noexcept;
  [[nodiscard]] bool empty() const noexcept { return targets_.empty(); }
  [[nodiscard]] const std::string& PathOf(std::string_view flag) const noexcept;

  // Writes every array beside its target and, when all are on the disk, gives them their names.
  // On an error (kInternal) no new file is left. One array for each flag added.
  [[nodiscard]] Status Write(std::span<const OutputArray> arrays) const;

 private:
  struct Target {
    std::string flag;
    std::string given;  // as the user wrote it
    std::string path;   // behind a symbolic link
  };
  [[nodiscard]] const Target* Find(std::string_view flag) const noexcept;

  bool force_;
  std::vector<Target> targets_;
};

}  // namespace attndrop::cli
