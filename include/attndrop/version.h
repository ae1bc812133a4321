// SPDX-License-Identifier: Apache-2.0
// The version of the library and of the mask format it implements; the build reads it from here.
#pragma once

#include <string_view>

namespace attndrop {

// Semantic version. No binary compatibility is promised before 1.0.
inline constexpr std::string_view kVersion = "0.1.0";

// Which published definition of the keep mask this library follows. A mask is the same for every
// version of the library with the same number.
inline constexpr int kMaskFormat = 1;

}  // namespace attndrop
