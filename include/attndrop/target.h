// SPDX-License-Identifier: Apache-2.0
// Instruction sets that the fast kernels are compiled for.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "attndrop/export.h"
#include "attndrop/status.h"

namespace attndrop {

// From narrow to wide.
enum class Target : std::uint8_t { kNeon, kSse4, kAvx2, kAvx512 };

// "neon", "sse4", "avx2", "avx512".
[[nodiscard]] ATTNDROP_EXPORT std::string_view TargetName(Target target) noexcept;
[[nodiscard]] ATTNDROP_EXPORT Result<Target> ParseTarget(std::string_view name);

// What this program was built for and this machine can run, narrow to wide; may be empty.
[[nodiscard]] ATTNDROP_EXPORT std::vector<Target> SupportedTargets();

}  // namespace attndrop
