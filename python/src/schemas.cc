// SPDX-License-Identifier: Apache-2.0
// The schemas of the operators; python/attndrop/_schemas.py holds the same text for installations
// without this extension.
#include <string>

#include "stack.h"

namespace attndrop::python {
namespace {

constexpr char kSide[] =
    "Tensor rng, Tensor? attn_mask, Tensor? alibi_slopes, Tensor? cu_seqlens_q, "
    "Tensor? cu_seqlens_k, Tensor? batch_index=None";
constexpr char kOptions[] =
    "float? scale=None, bool is_causal=False, bool bottom_right=False, int window_left=-1, "
    "int window_right=-1, str scheme=\"element\", str stage=\"weights\", str empty_row=\"zero\", "
    "int[] origin=[], int[] total=[]";

std::string Schema(const std::string& name, const std::string& tensors, const std::string& own,
                   const std::string& results) {
  return name + '(' + tensors + kSide + ", *, " + own + kOptions + ") -> (" + results + ')';
}

}  // namespace

STABLE_TORCH_LIBRARY(attndrop, m) {
  m.def(Schema("forward", "Tensor query, Tensor key, Tensor value, ", "",
               "Tensor out, Tensor logsumexp")
            .c_str());
  m.def(Schema("backward",
               "Tensor grad_out, Tensor? grad_logsumexp, Tensor query, Tensor key, Tensor value, "
               "Tensor out, Tensor logsumexp, ",
               "int[] wanted, ",
               "Tensor grad_query, Tensor grad_key, Tensor grad_value, Tensor grad_attn_mask")
            .c_str());
  m.def(Schema("keep_mask", "", "int[] sizes, bool with_factors, ", "Tensor keep, Tensor factors")
            .c_str());
  m.def(Schema("analyze", "Tensor? query, Tensor? key, Tensor? value, ",
               "int[] sizes, int batch, int head, ",
               "Tensor rows, Tensor out_mean, Tensor out_var, str note")
            .c_str());
  m.def(Schema("simulate", "Tensor? query, Tensor? key, Tensor? value, ",
               "int[] sizes, int batch, int head, int draws, ",
               "Tensor rows, Tensor zero_rows, Tensor out_mean, Tensor out_var, Tensor summary")
            .c_str());
  m.def("schemes() -> str");
}

}  // namespace attndrop::python
