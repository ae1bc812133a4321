// SPDX-License-Identifier: Apache-2.0
// A scheme and its parameters as text: "NAME[:param=value,...]".
#pragma once

#include <string>
#include <string_view>

#include "attndrop/schemes.h"
#include "attndrop/status.h"

namespace attndrop {

struct ParsedScheme {
  const Scheme* scheme = nullptr;
  SchemeParamValues params{};  // defaults filled in
};

[[nodiscard]] Result<ParsedScheme> ParseScheme(std::string_view text);

// The canonical text: parameters at their defaults are left out.
[[nodiscard]] std::string SchemeText(const ParsedScheme& scheme);

}  // namespace attndrop
