// SPDX-License-Identifier: Apache-2.0
// The registered schemes: one entry for each file of src/schemes/, found by the build.
#include <array>
#include <concepts>

#include "attndrop/schemes.h"

#include "scheme_includes.inc"

namespace attndrop {
namespace {

// What a file src/schemes/NAME.h must define: struct Name { kInfo; PointOf }.
template <class S>
concept DropoutScheme = requires(const SchemeParamValues& params, const Coord& at) {
  { S::kInfo } -> std::convertible_to<SchemeInfo>;
  { S::PointOf(params, at) } noexcept -> std::same_as<FieldPoint>;
};

template <DropoutScheme S>
constexpr Scheme MakeScheme() noexcept {
  return {.info = S::kInfo, .point_of = &S::PointOf};
}

template <class... S>
struct SchemeTypes {
  static constexpr std::array<Scheme, sizeof...(S)> kAll{MakeScheme<S>()...};
};

using AllSchemes = SchemeTypes<
#include "scheme_types.inc"
    >;

}  // namespace

std::span<const Scheme> Schemes() noexcept { return AllSchemes::kAll; }

const Scheme* FindScheme(std::string_view name) noexcept {
  for (const Scheme& scheme : Schemes()) {
    if (scheme.info.name == name) return &scheme;
  }
  return nullptr;
}

}  // namespace attndrop
