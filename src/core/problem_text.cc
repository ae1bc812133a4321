// SPDX-License-Identifier: Apache-2.0
// The one-line form of a Problem. Each word is read by one entry of kWords and written by ToString
// in the same order; a test checks that the two are inverse.
#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attndrop/problem.h"

#include "core/text.h"

namespace attndrop {
namespace {

constexpr std::array<std::string_view, 5> kLayoutNames{"bhsd", "bshd", "padded", "expanded",
                                                       "reversed"};
constexpr std::string_view kBottomRight = "bottom-right";
constexpr std::string_view kTopLeft = "top-left";

std::string Quoted(std::string_view text) { return '"' + std::string(text) + '"'; }

Status BadValue(std::string_view word, std::string_view value, std::string_view allowed) {
  return Status::InvalidArgument("problem word " + Quoted(word) + " needs " + std::string(allowed) +
                                 ", got " + Quoted(value));
}

template <class T>
Status ReadNumber(std::string_view word, std::string_view text, std::string_view allowed,
                  T& number) {
  const auto value = ParseNumber<T>(text);
  if (!value) return BadValue(word, text, allowed);
  number = *value;
  return Status::Ok();
}

constexpr std::string_view kWholeNumber = "a whole number";

Status ReadNumbers(std::string_view word, std::string_view text,
                   std::vector<std::int64_t>& numbers) {
  for (const std::string_view piece : Split(text, ',')) {
    Status status = ReadNumber(word, piece, "whole numbers between commas", numbers.emplace_back());
    if (!status.ok()) return status;
  }
  return numbers.empty() ? BadValue(word, text, "whole numbers between commas") : Status::Ok();
}

// Exactly numbers.size() numbers between commas.
template <class T>
Status ReadTuple(std::string_view word, std::string_view text, std::string_view allowed,
                 std::span<T*> numbers) {
  const std::vector<std::string_view> pieces = Split(text, ',');
  if (pieces.size() != numbers.size()) return BadValue(word, text, allowed);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    Status status = ReadNumber(word, pieces[i], allowed, *numbers[i]);
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

RaggedLengths& Ragged(ProblemArgs& args) {
  if (!args.ragged) args.ragged.emplace();
  return *args.ragged;
}

// "bool:bhqk", "f32:qk": element type, then the axes that the mask varies over ("-" for none).
Status ReadMask(std::string_view text, MaskForm& form) {
  constexpr std::string_view kAllowed =
      "TYPE:AXES, TYPE one of bool, f64, f32, bf16, f16, AXES some of bhqk in this order or -";
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) return BadValue("mask=", text, kAllowed);
  const std::string_view type = text.substr(0, colon);
  const std::optional<DType> dtype = ParseDType(type);
  if (!dtype && type != "bool") return BadValue("mask=", text, kAllowed);
  form.kind = dtype ? MaskKind::kFloat : MaskKind::kBool;
  form.dtype = dtype.value_or(DType::kFloat32);
  std::string_view axes = text.substr(colon + 1);
  if (axes == "-") return Status::Ok();
  const auto take = [&axes](char axis) {
    const bool there = axes.starts_with(axis);
    if (there) axes.remove_prefix(1);
    return there;
  };
  if (axes.empty()) return BadValue("mask=", text, kAllowed);
  form.per_batch = take('b');
  form.per_head = take('h');
  form.per_query = take('q');
  form.per_key = take('k');
  return axes.empty() ? Status::Ok() : BadValue("mask=", text, kAllowed);
}

Status ReadOrigin(std::string_view text, Coord& origin) {
  std::array<std::uint32_t*, 4> parts{&origin.batch, &origin.head, &origin.query, &origin.key};
  return ReadTuple<std::uint32_t>("origin=", text, "BATCH,HEAD,QUERY,KEY below 2^32", parts);
}

Status ReadTotal(std::string_view text, std::optional<TotalLengths>& total) {
  total.emplace();
  std::array<std::int64_t*, 2> parts{&total->seqlen_q, &total->seqlen_k};
  return ReadTuple<std::int64_t>("total=", text, "SEQLEN_Q,SEQLEN_K", parts);
}

Status ReadWindow(std::string_view text, Window& window) {
  std::array<std::int64_t*, 2> parts{&window.left, &window.right};
  return ReadTuple<std::int64_t>("window=", text, "LEFT,RIGHT (-1: no limit)", parts);
}

Status ReadLayout(std::string_view text, Layout& layout) {
  const auto* const found = std::find(kLayoutNames.begin(), kLayoutNames.end(), text);
  if (found == kLayoutNames.end()) return BadValue("layout=", text, JoinNames(kLayoutNames));
  layout = static_cast<Layout>(found - kLayoutNames.begin());
  return Status::Ok();
}

Status ReadAlign(std::string_view text, CausalAlign& align) {
  if (text != kTopLeft && text != kBottomRight) {
    return BadValue("align=", text, "top-left or bottom-right");
  }
  align = text == kTopLeft ? CausalAlign::kTopLeft : CausalAlign::kBottomRight;
  return Status::Ok();
}

Status ReadScale(std::string_view text, std::optional<double>& scale) {
  return ReadNumber("scale=", text, "a number", scale.emplace());
}

template <class T>
Status Take(Result<T> result, T& target) {
  if (!result.ok()) return result.status();
  target = *std::move(result);
  return Status::Ok();
}

struct Word {
  std::string_view name;  // ends with '=' when a value follows
  Status (*read)(std::string_view value, ProblemArgs& args);
};

using Text = std::string_view;
using Args = ProblemArgs;

// Words that are recognised by their beginning; longer names stand before their own beginnings.
constexpr Word kWords[] = {
    {"causal",
     [](Text, Args& a) {
       a.is_causal = true;
       return Status::Ok();
     }},
    {"alibi",
     [](Text, Args& a) {
       a.alibi = true;
       return Status::Ok();
     }},
    {"eval",
     [](Text, Args& a) {
       a.dropout.training = false;
       return Status::Ok();
     }},
    {"align=", [](Text t, Args& a) { return ReadAlign(t, a.causal_align); }},
    {"window=", [](Text t, Args& a) { return ReadWindow(t, a.window); }},
    {"scale=", [](Text t, Args& a) { return ReadScale(t, a.scale); }},
    {"mask=", [](Text t, Args& a) { return ReadMask(t, a.attn_mask); }},
    {"cu_q=", [](Text t, Args& a) { return ReadNumbers("cu_q=", t, Ragged(a).cu_seqlens_q); }},
    {"cu_k=", [](Text t, Args& a) { return ReadNumbers("cu_k=", t, Ragged(a).cu_seqlens_k); }},
    {"used_q=", [](Text t, Args& a) { return ReadNumbers("used_q=", t, Ragged(a).used_q); }},
    {"used_k=", [](Text t, Args& a) { return ReadNumbers("used_k=", t, Ragged(a).used_k); }},
    {"scheme=",
     [](Text t, Args& a) {
       a.dropout.scheme = t;
       return Status::Ok();
     }},
    {"stage=", [](Text t, Args& a) { return Take(ParseStage(t), a.dropout.stage); }},
    {"empty_row=", [](Text t, Args& a) { return Take(ParseEmptyRow(t), a.dropout.empty_row); }},
    {"p=", [](Text t, Args& a) { return ReadNumber("p=", t, "a number", a.dropout.dropout_p); }},
    {"seed=",
     [](Text t, Args& a) {
       return ReadNumber("seed=", t, "a whole number below 2^64", a.dropout.seed);
     }},
    {"offset=",
     [](Text t, Args& a) {
       return ReadNumber("offset=", t, "a whole number below 2^64", a.dropout.offset);
     }},
    {"batch_index=", [](Text t, Args& a) { return ReadNumbers("batch_index=", t, a.batch_index); }},
    {"origin=", [](Text t, Args& a) { return ReadOrigin(t, a.origin); }},
    {"total=", [](Text t, Args& a) { return ReadTotal(t, a.total); }},
    {"layout=", [](Text t, Args& a) { return ReadLayout(t, a.layout); }},
    {"kv", [](Text t, Args& a) { return ReadNumber("kv", t, kWholeNumber, a.shape.num_kv_heads); }},
    {"dv", [](Text t, Args& a) { return ReadNumber("dv", t, kWholeNumber, a.shape.head_dim_v); }},
    {"b", [](Text t, Args& a) { return ReadNumber("b", t, kWholeNumber, a.shape.batch); }},
    {"h", [](Text t, Args& a) { return ReadNumber("h", t, kWholeNumber, a.shape.num_heads); }},
    {"q", [](Text t, Args& a) { return ReadNumber("q", t, kWholeNumber, a.shape.seqlen_q); }},
    {"k", [](Text t, Args& a) { return ReadNumber("k", t, kWholeNumber, a.shape.seqlen_k); }},
    {"d", [](Text t, Args& a) { return ReadNumber("d", t, kWholeNumber, a.shape.head_dim); }},
};

bool IsSize(std::string_view name) { return name.size() <= 2; }

// A size word is letters and then a digit or sign; flags match whole; the others up to '='.
bool Matches(const Word& word, std::string_view text) {
  if (!text.starts_with(word.name)) return false;
  if (word.name.ends_with('=')) return true;
  if (!IsSize(word.name)) return text == word.name;
  const char next = text.size() > word.name.size() ? text[word.name.size()] : ' ';
  return next == '-' || (next >= '0' && next <= '9');
}

Status UnknownWord(std::string_view text) {
  std::vector<std::string_view> names{"f64", "f32", "bf16", "f16"};
  for (const Word& word : kWords) names.push_back(word.name);
  const std::size_t equals = text.find('=');
  const std::string_view name = text.substr(0, equals == text.npos ? equals : equals + 1);
  return Status::InvalidArgument("problem word " + Quoted(text) + " is unknown" +
                                 Suggestion(name, names));
}

Status ReadWord(std::string_view text, ProblemArgs& args, std::vector<std::string_view>& seen) {
  std::string_view name = "dtype";
  Status status = Status::Ok();
  if (const std::optional<DType> dtype = ParseDType(text)) {
    args.dtype = *dtype;
  } else {
    const Word* const end = std::end(kWords);
    const Word* const word =
        std::find_if(std::begin(kWords), end, [text](const Word& w) { return Matches(w, text); });
    if (word == end) return UnknownWord(text);
    name = word->name;
    status = word->read(text.substr(name.size()), args);
  }
  if (std::find(seen.begin(), seen.end(), name) != seen.end()) {
    return Status::InvalidArgument("problem word " + Quoted(name) + " stands twice; give it once");
  }
  seen.push_back(name);
  return status;
}

// Sizes of a ragged batch are in cu_q and cu_k; a second statement of them could only contradict.
Status CheckRaggedWords(const std::vector<std::string_view>& seen) {
  for (const std::string_view size : {"b", "q", "k"}) {
    if (std::find(seen.begin(), seen.end(), size) == seen.end()) continue;
    return Status::InvalidArgument("problem word " + Quoted(size) +
                                   " cannot stand beside cu_q and cu_k, which give the lengths; "
                                   "leave it out");
  }
  return Status::Ok();
}

std::string MaskText(const MaskForm& form) {
  std::string axes;
  if (form.per_batch) axes += 'b';
  if (form.per_head) axes += 'h';
  if (form.per_query) axes += 'q';
  if (form.per_key) axes += 'k';
  const std::string_view type =
      form.kind == MaskKind::kBool ? std::string_view("bool") : DTypeName(form.dtype);
  return std::string(type) + ':' + (axes.empty() ? "-" : axes);
}

// Appends words with a space between them.
class Line {
 public:
  Line& Add(std::string_view name, std::string_view value = {}) {
    if (!text_.empty()) text_ += ' ';
    text_ += name;
    text_ += value;
    return *this;
  }
  template <class T>
  Line& AddNumber(std::string_view name, T value) {
    return Add(name, FormatNumber(value));
  }
  std::string Take() { return std::move(text_); }

 private:
  std::string text_;
};

void AddSizes(const Problem& problem, Line& line) {
  const AttentionShape& shape = problem.shape();
  if (!problem.is_ragged()) line.AddNumber("b", shape.batch);
  line.AddNumber("h", shape.num_heads);
  if (shape.num_kv_heads != shape.num_heads) line.AddNumber("kv", shape.num_kv_heads);
  if (!problem.is_ragged()) line.AddNumber("q", shape.seqlen_q).AddNumber("k", shape.seqlen_k);
  line.AddNumber("d", shape.head_dim);
  if (shape.head_dim_v != shape.head_dim) line.AddNumber("dv", shape.head_dim_v);
  line.Add(DTypeName(problem.dtype()));
}

void AddRagged(const RaggedLengths& ragged, Line& line) {
  line.Add("cu_q=", JoinNumbers(ragged.cu_seqlens_q));
  line.Add("cu_k=", JoinNumbers(ragged.cu_seqlens_k));
  if (!ragged.used_q.empty()) line.Add("used_q=", JoinNumbers(ragged.used_q));
  if (!ragged.used_k.empty()) line.Add("used_k=", JoinNumbers(ragged.used_k));
}

void AddDropout(const DropoutConfig& dropout, Line& line) {
  const DropoutConfig defaults;
  if (dropout.dropout_p != 0.0 || dropout.scheme != defaults.scheme) {
    line.Add("scheme=", dropout.scheme);
  }
  if (dropout.stage != defaults.stage) line.Add("stage=", StageName(dropout.stage));
  if (!(dropout.empty_row == defaults.empty_row)) {
    line.Add("empty_row=", EmptyRowName(dropout.empty_row));
  }
  if (dropout.dropout_p != 0.0) line.AddNumber("p=", dropout.dropout_p);
  if (dropout.seed != 0) line.AddNumber("seed=", dropout.seed);
  if (dropout.offset != 0) line.AddNumber("offset=", dropout.offset);
  if (!dropout.training) line.Add("eval");
}

void AddShard(const Problem& problem, Line& line) {
  const Coord& o = problem.origin();
  if (!(o == Coord{})) {
    line.Add("origin=", JoinNumbers(std::array{o.batch, o.head, o.query, o.key}));
  }
  if (!problem.batch_index().empty()) {
    line.Add("batch_index=", JoinNumbers(problem.batch_index()));
  }
  const AttentionShape& shape = problem.shape();
  const TotalLengths here{o.query + shape.seqlen_q, o.key + shape.seqlen_k};
  const TotalLengths& total = problem.total();
  if (!(total == here)) line.Add("total=", JoinNumbers(std::array{total.seqlen_q, total.seqlen_k}));
}

}  // namespace

Result<Problem> Problem::Parse(std::string_view text) {
  ProblemArgs args;
  std::vector<std::string_view> seen;
  for (const std::string_view word : Split(text, ' ')) {
    if (word.empty()) continue;
    if (Status status = ReadWord(word, args, seen); !status.ok()) return status;
  }
  if (args.ragged) {
    if (Status status = CheckRaggedWords(seen); !status.ok()) return status;
  }
  return Make(args);
}

std::string Problem::ToString() const {
  Line line;
  AddSizes(*this, line);
  if (is_causal()) line.Add("causal");
  if (causal_align() == CausalAlign::kBottomRight) line.Add("align=", kBottomRight);
  if (!(window() == Window{}))
    line.Add("window=", JoinNumbers(std::array{window().left, window().right}));
  if (scale() != DefaultScale(shape().head_dim)) line.AddNumber("scale=", scale());
  if (attn_mask().kind != MaskKind::kNone) line.Add("mask=", MaskText(attn_mask()));
  if (alibi()) line.Add("alibi");
  if (is_ragged()) AddRagged(*ragged(), line);
  AddDropout(dropout(), line);
  AddShard(*this, line);
  if (layout() != Layout::kBhsd) {
    line.Add("layout=", kLayoutNames[static_cast<std::size_t>(layout())]);
  }
  return line.Take();
}

}  // namespace attndrop
