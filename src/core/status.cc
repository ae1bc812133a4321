// SPDX-License-Identifier: Apache-2.0
// Names of status codes.
#include "attndrop/status.h"

namespace attndrop {

std::string_view StatusCodeName(StatusCode code) noexcept {
  switch (code) {
    case StatusCode::kOk:
      return "ok";
    case StatusCode::kInvalidArgument:
      return "invalid argument";
    case StatusCode::kUnsupported:
      return "unsupported";
    case StatusCode::kOutOfMemory:
      return "out of memory";
    case StatusCode::kInternal:
      return "internal error";
  }
  return "unknown";
}

}  // namespace attndrop
