// SPDX-License-Identifier: Apache-2.0
// Refusals as exceptions.
#include "errors.h"

#include <stdexcept>

namespace attndrop::python {
namespace {

const char* KindOf(StatusCode code) noexcept {
  switch (code) {
    case StatusCode::kInvalidArgument:
      return "value";
    case StatusCode::kUnsupported:
      return "unsupported";
    case StatusCode::kOutOfMemory:
      return "memory";
    case StatusCode::kOk:
    case StatusCode::kInternal:
      break;
  }
  return "internal";
}

}  // namespace

void Refuse(const char* kind, const std::string& sentence) {
  throw std::runtime_error(std::string("[attndrop ") + kind + "] " + sentence);
}

void ThrowUnlessOk(const Status& status) {
  if (!status.ok()) Refuse(KindOf(status.code()), status.message());
}

}  // namespace attndrop::python
