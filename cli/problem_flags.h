// SPDX-License-Identifier: Apache-2.0
// The flags that describe a problem, the same for every command that takes one.
#pragma once

#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "attndrop/attention.h"
#include "attndrop/problem.h"
#include "attndrop/status.h"

#include "cli/command.h"
#include "cli/flags.h"
#include "cli/io/npy.h"

namespace attndrop::cli {

struct ProblemFlags {
  bool is_causal = false;
  bool no_training = false;
  Flag causal_align, window, scale;
  Flag dropout_p, scheme, stage, empty_row, seed, offset;
  Flag origin, total;
  Flag attn_mask, alibi_slopes, cu_seqlens_q, cu_seqlens_k;
};

// For commands without arrays: sizes as flags, or the whole problem as one line.
struct SizeFlags {
  Flag batch, heads, kv_heads, seqlen_q, seqlen_k;
  Flag problem;
};

void AddProblemFlags(CLI::App& app, ProblemFlags& flags);
void AddSizeFlags(CLI::App& app, SizeFlags& flags);

// What the flags say without opening a file: shape, dtype, ragged lengths and the forms of
// attn_mask and ALiBi are still those of an empty ProblemArgs.
[[nodiscard]] Result<ProblemArgs> ReadProblemFlags(const ProblemFlags& flags);

// A problem with the files that belong to it.
struct LoadedProblem {
  Problem problem;
  std::optional<NpyArray> attn_mask;
  std::optional<NpyArray> alibi_slopes;
  [[nodiscard]] MaskBuffers mask_buffers() const;
};

// args: from ReadProblemFlags, shape (of one dense batch or of the packed rows) and dtype filled
// in.
[[nodiscard]] Result<LoadedProblem> LoadProblem(const ProblemFlags& flags, ProblemArgs args);

// From sizes or from the one-line form. CheckSizes opens no file.
[[nodiscard]] Status CheckSizes(const SizeFlags& sizes, const ProblemFlags& flags);
[[nodiscard]] Result<LoadedProblem> LoadSizedProblem(const SizeFlags& sizes,
                                                     const ProblemFlags& flags);

// Says which alignment is used where it matters and none was chosen.
void NoteAlignment(const Streams& streams, const ProblemFlags& flags, const Problem& problem);

// Element type of a float array.
[[nodiscard]] std::optional<DType> FloatTypeOf(NpyType type) noexcept;
[[nodiscard]] NpyType NpyTypeOf(DType dtype) noexcept;

}  // namespace attndrop::cli
