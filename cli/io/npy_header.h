// SPDX-License-Identifier: Apache-2.0
// The dictionary at the front of a .npy file, read from its text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cli/io/npy.h"

namespace attndrop::cli {

// `text` is the dictionary with its padding, `offset` its place in the file, `name` the file's
// name. Sets everything of NpyHeader but data_offset.
[[nodiscard]] Result<NpyHeader> ParseNpyDictionary(std::string_view text, std::uint64_t offset,
                                                   const std::string& name);

// `FILE, byte N: WHAT`.
[[nodiscard]] Status NpyError(const std::string& name, std::uint64_t offset, std::string what);

}  // namespace attndrop::cli
