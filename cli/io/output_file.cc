// SPDX-License-Identifier: Apache-2.0
// Writes beside the target under a temporary name, flushes to the disk, then links or renames.
#include "cli/io/output_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

namespace attndrop::cli {
namespace {

namespace fs = std::filesystem;

// Holds back the signals that a terminal sends: an interruption takes effect when the temporary
// files have got their names or are gone.
class SignalPause {
 public:
  SignalPause() {
    sigset_t paused;
    sigemptyset(&paused);
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&paused, number);
    pthread_sigmask(SIG_BLOCK, &paused, &before_);
  }
  SignalPause(const SignalPause&) = delete;
  SignalPause& operator=(const SignalPause&) = delete;
  ~SignalPause() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

Status WriteError(const std::string& path, std::string_view what) {
  return Status::Internal(fmt::format("{}: cannot be written: {}", path, what));
}

Status WriteAll(int descriptor, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    // At most 1 GiB a call: more is cut short by the system.
    const ssize_t written =
        ::write(descriptor, bytes.data(), std::min<std::size_t>(bytes.size(), 1U << 30));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return WriteError(path, std::strerror(errno));
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

fs::path FolderOf(const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  return folder.empty() ? fs::path(".") : folder;
}

// A file without its final name; removed unless Keep was called.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string target) : target_(std::move(target)) {}
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  TemporaryFile(TemporaryFile&& other) noexcept
      : target_(std::move(other.target_)), path_(std::exchange(other.path_, {})) {}
  TemporaryFile& operator=(TemporaryFile&&) = delete;
  ~TemporaryFile() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }

  [[nodiscard]] const std::string& target() const noexcept { return target_; }

  Status Fill(std::string_view preamble, std::string_view elements) {
    const int descriptor = Create();
    if (descriptor < 0) return WriteError(target_, std::strerror(errno));
    Status status = WriteAll(descriptor, preamble, target_);
    if (status.ok()) status = WriteAll(descriptor, elements, target_);
    if (status.ok() && ::fsync(descriptor) != 0) status = WriteError(target_, std::strerror(errno));
    if (::close(descriptor) != 0 && status.ok()) status = WriteError(target_, std::strerror(errno));
    return status;
  }

  Status Publish(bool replace) {
    if (replace) {
      if (::rename(path_.c_str(), target_.c_str()) != 0) {
        return WriteError(target_, std::strerror(errno));
      }
      path_.clear();
      return {};
    }
    if (::link(path_.c_str(), target_.c_str()) == 0)
      return {};  // the destructor drops the old name
    if (errno == EEXIST) return WriteError(target_, "it was created by someone else meanwhile");
    // A file system without links: the name was free when the command began.
    if (fs::exists(fs::symlink_status(target_))) return WriteError(target_, "it exists");
    return Publish(/*replace=*/true);
  }

 private:
  int Create() {
    const fs::path folder = FolderOf(target_);
    for (int attempt = 0; attempt < 1000; ++attempt) {
      path_ = (folder / fmt::format(".attndrop-{}-{}.tmp", ::getpid(), attempt)).string();
      const int descriptor = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      if (descriptor >= 0) return descriptor;
      const int why = errno;
      path_.clear();
      if (why != EEXIST) {
        errno = why;
        return -1;
      }
    }
    errno = EEXIST;
    return -1;
  }

  std::string target_;
  std::string path_;
};

void FlushFolder(const fs::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  ::fsync(descriptor);
  ::close(descriptor);
}

std::string_view AsText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The file that a path stands for: links are followed, so that a link stays one.
Result<std::string> ResolveTarget(const std::string& flag, const std::string& path) {
  std::error_code error;
  if (!fs::is_symlink(fs::symlink_status(path, error))) return path;
  const fs::path resolved = fs::canonical(path, error);
  if (error) {
    return Status::InvalidArgument(
        fmt::format("{} {}: is a link to nothing; remove it or name its target", flag, path));
  }
  return resolved.string();
}

Status CheckFolder(const std::string& flag, const std::string& path) {
  const fs::path folder = FolderOf(path);
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    return Status::InvalidArgument(
        fmt::format("{} {}: there is no folder {}; create it first", flag, path, folder.string()));
  }
  if (::faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) != 0) {
    return Status::Internal(fmt::format("{} {}: cannot be written: folder {}: {}", flag, path,
                                        folder.string(), std::strerror(errno)));
  }
  return {};
}

}  // namespace

const OutputSet::Target* OutputSet::Find(std::string_view flag) const noexcept {
  const auto found =
      std::ranges::find_if(targets_, [flag](const Target& target) { return target.flag == flag; });
  return found == targets_.end() ? nullptr : &*found;
}

bool OutputSet::Has(std::string_view flag) const noexcept { return Find(flag) != nullptr; }

const std::string& OutputSet::PathOf(std::string_view flag) const noexcept {
  return Find(flag)->given;
}

Status OutputSet::Add(const std::string& flag, const std::string& path) {
  if (path.empty()) return Status::InvalidArgument(fmt::format("{} needs a file name", flag));
  const Result<std::string> target = ResolveTarget(flag, path);
  if (!target.ok()) return target.status();
  if (Status folder = CheckFolder(flag, *target); !folder.ok()) return folder;
  std::error_code error;
  const fs::file_status there = fs::status(*target, error);
  if (fs::exists(there)) {
    if (!fs::is_regular_file(there)) {
      return Status::InvalidArgument(
          fmt::format("{} {}: is {}; name a file", flag, path,
                      fs::is_directory(there) ? "a folder" : "no regular file (a device, a pipe)"));
    }
    if (!force_) {
      return Status::InvalidArgument(
          fmt::format("{} {}: the file exists; give --force to replace it", flag, path));
    }
  } else if (target->ends_with('/')) {
    return Status::InvalidArgument(fmt::format("{} {}: is a folder; name a file", flag, path));
  }
  const auto place = [&error](const std::string& name) {
    return fs::weakly_canonical(fs::absolute(name, error), error);
  };
  for (const Target& other : targets_) {
    if (place(other.path) == place(*target)) {
      return Status::InvalidArgument(fmt::format(
          "{} and {} name the same file {}; give each its own", other.flag, flag, path));
    }
  }
  targets_.push_back({.flag = flag, .given = path, .path = *target});
  return {};
}

Status OutputSet::Write(std::span<const OutputArray> arrays) const {
  const SignalPause pause;
  std::vector<TemporaryFile> files;
  files.reserve(arrays.size());
  for (const OutputArray& array : arrays) {
    files.emplace_back(Find(array.flag)->path);
    const std::string preamble = NpyPreamble(array.type, array.shape);
    if (Status filled = files.back().Fill(preamble, AsText(array.bytes)); !filled.ok()) {
      return filled;
    }
  }
  for (std::size_t i = 0; i < files.size(); ++i) {
    Status published = files[i].Publish(force_);
    if (published.ok()) continue;
    // Without --force every file named so far is new, and ours to take away again.
    for (std::size_t earlier = 0; earlier < i && !force_; ++earlier) {
      ::unlink(files[earlier].target().c_str());
    }
    return published;
  }
  for (const TemporaryFile& file : files) FlushFolder(FolderOf(file.target()));
  return {};
}

}  // namespace attndrop::cli
