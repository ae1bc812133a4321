// SPDX-License-Identifier: Apache-2.0
// Output files: complete and all together or not at all, never over something by mistake.
#include "cli/io/output_file.h"

#include <csignal>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/cli/temp_folder.h"

namespace attndrop::cli {
namespace {

using attndrop::testing::ReadFile;
using attndrop::testing::TempFolder;
using attndrop::testing::WriteFile;

OutputArray Bytes(const std::string& flag, std::span<const std::uint8_t> values) {
  return {.flag = flag,
          .type = NpyType::kUint8,
          .shape = {static_cast<std::int64_t>(values.size())},
          .bytes = std::as_bytes(values)};
}

// The size of a file that may be written, for the life of this object.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limited{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limited);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

TEST(OutputSet, WritesWhatIsReadBack) {
  const TempFolder folder;
  OutputSet outputs(/*force=*/false);
  ASSERT_TRUE(outputs.Add("--a", folder / "a.npy").ok());
  ASSERT_TRUE(outputs.Add("--b", folder / "b.npy").ok());
  const std::vector<std::uint8_t> a = {1, 2, 3};
  const std::vector<std::uint8_t> b = {4};
  const OutputArray arrays[] = {Bytes("--a", a), Bytes("--b", b)};
  const Status written = outputs.Write(arrays);
  ASSERT_TRUE(written.ok()) << written.message();
  const Result<NpyArray> read = ReadNpyFile(folder / "a.npy");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->values<std::uint8_t>()[2], 3);
  EXPECT_EQ(ReadNpyFile(folder / "b.npy")->dim(0), 1);
  EXPECT_EQ(folder.Names().size(), 2U);
}

TEST(OutputSet, RefusesBeforeAnyWork) {
  const TempFolder folder;
  WriteFile(folder / "there.npy", "old");
  std::filesystem::create_symlink("nowhere", folder / "dangling");
  const struct {
    std::string path;
    std::string piece;
  } cases[] = {
      {"", "needs a file name"},
      {folder / "there.npy", "the file exists; give --force"},
      {folder.path(), "is a folder"},
      {folder / "new/", "there is no folder"},
      {folder / "none/x.npy", "there is no folder"},
      {folder / "there.npy/x.npy", "there is no folder"},
      {folder / "dangling", "is a link to nothing"},
      {"/dev/full", "no regular file"},
  };
  for (const auto& bad : cases) {
    OutputSet outputs(/*force=*/false);
    const Status added = outputs.Add("--out", bad.path);
    EXPECT_EQ(added.code(), StatusCode::kInvalidArgument) << bad.path;
    EXPECT_NE(added.message().find(bad.piece), std::string::npos) << added.message();
  }
  OutputSet twice(/*force=*/true);
  ASSERT_TRUE(twice.Add("--a", folder / "x.npy").ok());
  EXPECT_EQ(twice.Add("--b", folder / "./x.npy").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadFile(folder / "there.npy"), "old");
}

TEST(OutputSet, ForceReplacesTheFileBehindALink) {
  const TempFolder folder;
  WriteFile(folder / "real.npy", "old");
  std::filesystem::create_symlink("real.npy", folder / "link.npy");
  OutputSet outputs(/*force=*/true);
  ASSERT_TRUE(outputs.Add("--a", folder / "link.npy").ok());
  const std::vector<std::uint8_t> a = {7};
  const OutputArray array = Bytes("--a", a);
  ASSERT_TRUE(outputs.Write({&array, 1}).ok());
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link.npy"));
  EXPECT_TRUE(ReadNpyFile(folder / "real.npy").ok());
  EXPECT_EQ(folder.Names().size(), 2U);
}

TEST(OutputSet, AFileMadeMeanwhileIsNotReplaced) {
  const TempFolder folder;
  OutputSet outputs(/*force=*/false);
  ASSERT_TRUE(outputs.Add("--a", folder / "a.npy").ok());
  ASSERT_TRUE(outputs.Add("--b", folder / "b.npy").ok());
  WriteFile(folder / "b.npy", "someone else's");
  const std::vector<std::uint8_t> a = {7};
  const OutputArray arrays[] = {Bytes("--a", a), Bytes("--b", a)};
  const Status written = outputs.Write(arrays);
  EXPECT_EQ(written.code(), StatusCode::kInternal);
  EXPECT_EQ(ReadFile(folder / "b.npy"), "someone else's");
  EXPECT_EQ(folder.Names(), std::vector<std::string>{"b.npy"});
}

TEST(OutputSet, AFullDiskLeavesNothing) {
  const TempFolder folder;
  OutputSet outputs(/*force=*/false);
  ASSERT_TRUE(outputs.Add("--a", folder / "a.npy").ok());
  ASSERT_TRUE(outputs.Add("--b", folder / "b.npy").ok());
  const std::vector<std::uint8_t> small(10);
  const std::vector<std::uint8_t> large(5000);
  const OutputArray arrays[] = {Bytes("--a", small), Bytes("--b", large)};
  Status written;
  {
    const FileSizeLimit limit(1024);
    written = outputs.Write(arrays);
  }
  EXPECT_EQ(written.code(), StatusCode::kInternal);
  EXPECT_NE(written.message().find("b.npy: cannot be written: File too large"), std::string::npos)
      << written.message();
  EXPECT_TRUE(folder.Names().empty());
}

TEST(OutputSet, AFullDiskLeavesTheOldFile) {
  const TempFolder folder;
  WriteFile(folder / "a.npy", "old");
  OutputSet outputs(/*force=*/true);
  ASSERT_TRUE(outputs.Add("--a", folder / "a.npy").ok());
  const std::vector<std::uint8_t> large(5000);
  const OutputArray array = Bytes("--a", large);
  Status written;
  {
    const FileSizeLimit limit(1024);
    written = outputs.Write({&array, 1});
  }
  EXPECT_EQ(written.code(), StatusCode::kInternal);
  EXPECT_EQ(ReadFile(folder / "a.npy"), "old");
  EXPECT_EQ(folder.Names().size(), 1U);
}

TEST(OutputSet, AFolderWithoutAccessIsAFailure) {
  const TempFolder folder;
  std::filesystem::permissions(folder.path(), std::filesystem::perms{0555});
  // Root may write everywhere, so it becomes someone else for a moment.
  constexpr uid_t kNobody = 65534;
  const uid_t user = ::geteuid();
  if (user == 0) {
    ASSERT_EQ(::seteuid(kNobody), 0);
  }
  OutputSet outputs(/*force=*/false);
  const Status added = outputs.Add("--a", folder / "a.npy");
  ASSERT_EQ(::seteuid(user), 0);
  std::filesystem::permissions(folder.path(), std::filesystem::perms::owner_all);
  EXPECT_EQ(added.code(), StatusCode::kInternal);
  EXPECT_NE(added.message().find("Permission denied"), std::string::npos) << added.message();
}

}  // namespace
}  // namespace attndrop::cli
