// SPDX-License-Identifier: Apache-2.0
// Strings of a boxed operator.
#include "stack.h"

#include <cstddef>

#include <torch/csrc/stable/c/shim.h>

namespace attndrop::python {

std::string Arguments::TakeString() {
  const auto handle = Take<StringHandle>();
  std::size_t length = 0;
  const char* data = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(torch_string_length(handle, &length));
  STABLE_TORCH_ERROR_CODE_CHECK(torch_string_c_str(handle, &data));
  std::string text(data, length);
  STABLE_TORCH_ERROR_CODE_CHECK(torch_delete_string(handle));
  return text;
}

}  // namespace attndrop::python
