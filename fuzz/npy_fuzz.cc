// SPDX-License-Identifier: Apache-2.0
// Fuzzes the reader of .npy files: any bytes give an array that fills them exactly, or a refusal.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "cli/io/npy.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace attndrop::cli;
  MemorySource source(std::as_bytes(std::span(data, size)));
  const attndrop::Result<NpyArray> array = ReadNpy(source, "fuzz.npy");
  if (!array.ok()) {
    if (array.status().message().empty()) std::abort();
    return 0;
  }
  const std::uint64_t bytes = array->header.num_elements * SizeOf(array->header.type);
  if (array->header.data_offset + bytes != size) std::abort();
  // Written again it reads as the same array.
  std::string again = NpyPreamble(array->header.type, array->header.shape);
  again.append(reinterpret_cast<const char*>(array->data.get()), bytes);
  MemorySource second(std::as_bytes(std::span(again)));
  const attndrop::Result<NpyArray> reread = ReadNpy(second, "again.npy");
  if (!reread.ok() || reread->header.shape != array->header.shape ||
      reread->header.type != array->header.type) {
    std::abort();
  }
  return 0;
}
