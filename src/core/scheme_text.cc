// SPDX-License-Identifier: Apache-2.0
// Parsing of scheme names and parameters, with sentences for what is wrong.
#include "core/scheme_text.h"

#include <cstddef>
#include <optional>
#include <vector>

#include "core/text.h"

namespace attndrop {
namespace {

std::string Quoted(std::string_view text) { return '"' + std::string(text) + '"'; }

std::string AllowedRange(const SchemeParam& param) {
  return FormatNumber(param.min) + " .. " + FormatNumber(param.max);
}

Status UnknownScheme(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Scheme& scheme : Schemes()) names.push_back(scheme.info.name);
  return Status::InvalidArgument("scheme " + Quoted(name) + " is unknown" +
                                 Suggestion(name, names));
}

Status UnknownParam(const SchemeInfo& info, std::string_view name) {
  if (info.num_params == 0) {
    return Status::InvalidArgument("scheme " + Quoted(info.name) + " has no parameters, got " +
                                   Quoted(name) + "; write only its name");
  }
  std::vector<std::string_view> names;
  for (std::size_t i = 0; i < info.num_params; ++i) names.push_back(info.params[i].name);
  return Status::InvalidArgument("scheme " + Quoted(info.name) + " has no parameter " +
                                 Quoted(name) + Suggestion(name, names));
}

Status SetParam(std::string_view assignment, ParsedScheme& parsed, std::vector<bool>& seen) {
  const SchemeInfo& info = parsed.scheme->info;
  const std::size_t equals = assignment.find('=');
  const std::string_view name = assignment.substr(0, equals);
  std::size_t index = 0;
  while (index < info.num_params && info.params[index].name != name) ++index;
  if (index == info.num_params) return UnknownParam(info, name);
  const SchemeParam& param = info.params[index];
  const auto value = equals == std::string_view::npos
                         ? std::nullopt
                         : ParseNumber<std::uint32_t>(assignment.substr(equals + 1));
  if (!value || *value < param.min || *value > param.max) {
    return Status::InvalidArgument("scheme " + Quoted(info.name) + " needs " +
                                   std::string(param.name) + " in " + AllowedRange(param) +
                                   ", got " + Quoted(assignment));
  }
  if (seen[index]) {
    return Status::InvalidArgument("scheme " + Quoted(info.name) + " got " +
                                   std::string(param.name) + " twice; give it once");
  }
  seen[index] = true;
  parsed.params[index] = *value;
  return Status::Ok();
}

}  // namespace

Result<ParsedScheme> ParseScheme(std::string_view text) {
  const std::size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  ParsedScheme parsed{.scheme = FindScheme(name)};
  if (parsed.scheme == nullptr) return UnknownScheme(name);
  const SchemeInfo& info = parsed.scheme->info;
  for (std::size_t i = 0; i < info.num_params; ++i) parsed.params[i] = info.params[i].default_value;
  if (colon == std::string_view::npos) return parsed;
  std::vector<bool> seen(info.num_params);
  const std::vector<std::string_view> assignments = Split(text.substr(colon + 1), ',');
  if (assignments.empty()) return UnknownParam(info, "");
  for (const std::string_view assignment : assignments) {
    if (Status status = SetParam(assignment, parsed, seen); !status.ok()) return status;
  }
  return parsed;
}

std::string SchemeText(const ParsedScheme& parsed) {
  const SchemeInfo& info = parsed.scheme->info;
  std::string text(info.name);
  char separator = ':';
  for (std::size_t i = 0; i < info.num_params; ++i) {
    if (parsed.params[i] == info.params[i].default_value) continue;
    text += separator + std::string(info.params[i].name) + '=' + FormatNumber(parsed.params[i]);
    separator = ',';
  }
  return text;
}

}  // namespace attndrop
