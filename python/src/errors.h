// SPDX-License-Identifier: Apache-2.0
// Refusals as exceptions, the only form in which an operator can fail.
#pragma once

#include <string>

#include "attndrop/status.h"

namespace attndrop::python {

// Throws std::runtime_error "[attndrop KIND] sentence"; the Python side turns KIND into the type of
// its exception: value, type, unsupported, memory, internal.
[[noreturn]] void Refuse(const char* kind, const std::string& sentence);

void ThrowUnlessOk(const Status& status);

template <class T>
T ValueOrThrow(Result<T> result) {
  ThrowUnlessOk(result.status());
  return *std::move(result);
}

}  // namespace attndrop::python
