// See checkpoint.h. The directory; the bytes of a file are in checkpoint_format.cpp.
#include "trainer/train/checkpoint.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace sluice::train {
namespace {

namespace fs = std::filesystem;

constexpr char kManifestHead[] = "sluice-train checkpoints 1\n";
constexpr char kManifestEnd[] = "end\n";
constexpr char kPartSuffix[] = ".part";
constexpr double kLockPatience_s = 2;  // for the last process of a job that was killed

class OpenFile {
 public:
  OpenFile(const std::string& path, int flags, mode_t mode = 0)
      : path_(path), fd_(open(path.c_str(), flags | O_CLOEXEC, mode)) {
    if (fd_ < 0) throw errno_failure("opening " + path);
  }
  ~OpenFile() { close(fd_); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  void write_all(const std::string& bytes) {
    for (std::size_t at = 0; at < bytes.size();) {
      const ssize_t wrote = ::write(fd_, bytes.data() + at, bytes.size() - at);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote <= 0) throw errno_failure("writing " + path_);
      at += static_cast<std::size_t>(wrote);
    }
  }
  void sync() {
    if (fsync(fd_) != 0) throw errno_failure("bringing " + path_ + " to the disk");
  }

 private:
  const std::string path_;
  const int fd_;
};

/// "step-42.ckpt" -> 42; none of another name.
std::optional<std::uint64_t> step_of(const std::string& name) {
  unsigned long long step = 0;
  int used = 0;
  if (std::sscanf(name.c_str(), "step-%20llu.ckpt%n", &step, &used) != 1) return std::nullopt;
  if (used == 0 || static_cast<std::size_t>(used) != name.size()) return std::nullopt;
  return step;
}

std::string bytes_read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw errno_failure("reading it");
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// The manifest's names; nothing where there is none or it is damaged.
std::optional<std::vector<std::string>> manifest_read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!text.starts_with(kManifestHead) || !text.ends_with(kManifestEnd)) return std::nullopt;
  std::vector<std::string> names;
  for (std::size_t at = sizeof kManifestHead - 1; at + sizeof kManifestEnd - 1 < text.size();) {
    const std::size_t end = text.find('\n', at);
    names.push_back(text.substr(at, end - at));
    if (!step_of(names.back())) return std::nullopt;
    at = end + 1;
  }
  return names;
}

}  // namespace

CheckpointDirectory::CheckpointDirectory(std::string path, int keep, Step step)
    : path_(std::move(path)), keep_(keep), step_(std::move(step)) {}

int CheckpointDirectory::lock_take() {
  std::error_code error;
  fs::create_directories(path_, error);
  if (error) throw Failure("making the directory " + path_ + ": " + error.message());
  const std::string name = path_ + "/lock";
  const int fd = open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) throw errno_failure("opening " + name);
  const Nanos deadline = now_ns() + nanos_of_seconds(kLockPatience_s);
  while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (now_ns() > deadline) {
      close(fd);
      throw Failure("another job writes its checkpoints to " + path_ +
                    "; give each job a directory of its own, or wait for that one");
    }
    sleep_until(now_ns() + 10 * kNanosPerMilli);
  }
  return fd;
}

std::vector<std::string> CheckpointDirectory::names() const {
  if (auto named = manifest_read(path_ + "/manifest")) return *named;
  std::vector<std::pair<std::uint64_t, std::string>> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(path_, ignored)) {
    const std::string name = entry.path().filename().string();
    if (const auto step = step_of(name)) found.emplace_back(*step, name);
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> names;
  for (auto& one : found) names.push_back(std::move(one.second));
  return names;
}

std::optional<Checkpoint> CheckpointDirectory::newest(
    const CheckpointIdentity& wanted, const std::function<void(const std::string&)>& say) {
  const std::vector<std::string> all = names();
  for (auto name = all.rbegin(); name != all.rend(); ++name) {
    const std::string path = path_ + "/" + *name;
    std::optional<Checkpoint> found;
    try {
      found = checkpoint_decode(bytes_read(path));
    } catch (const Failure& failure) {
      say(path + " cannot be used: " + failure.what() +
          (name + 1 == all.rend() ? "" : "; going back to the one before it"));
      passed_over_.push_back(*name);
      continue;
    }
    const std::string other = identity_difference(found->identity, wanted);
    if (other.empty()) return found;
    throw Failure(path + " is of another job (" + other +
                  "); give the options that it was written with, or another directory");
  }
  if (all.empty()) return std::nullopt;
  throw Failure("none of the checkpoints in " + path_ +
                " can be used; to start from the beginning, give another directory");
}

/// Whole under its name, and on the disk, or not at all.
void CheckpointDirectory::file_put(const std::string& name, const std::string& bytes) {
  const std::string path = path_ + "/" + name;
  const std::string part = path + kPartSuffix;
  try {
    OpenFile file(part, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    done("opened");
    // In two halves, so that a test can end the process between them.
    file.write_all(bytes.substr(0, bytes.size() / 2));
    done("half");
    file.write_all(bytes.substr(bytes.size() / 2));
    done("written");
    file.sync();
    done("synced");
    if (std::rename(part.c_str(), path.c_str()) != 0) throw errno_failure("renaming " + part);
  } catch (const Failure&) {
    std::remove(part.c_str());
    throw;
  }
  done("renamed");
  OpenFile(path_, O_RDONLY | O_DIRECTORY).sync();
  done("directory synced");
}

void CheckpointDirectory::write(const TrainState& state, const CheckpointIdentity& identity) {
  const std::string name =
      text_format("step-%llu.ckpt", static_cast<unsigned long long>(state.step));
  std::vector<std::string> kept = names();
  file_put(name, checkpoint_encode(state, identity));
  for (const std::string& one : passed_over_) std::erase(kept, one);
  std::erase(kept, name);  // the same step again, after going back
  kept.push_back(name);
  const auto keep = static_cast<std::size_t>(keep_);
  std::vector<std::string> removed;
  if (kept.size() > keep) {
    const auto first = kept.end() - static_cast<std::ptrdiff_t>(keep);
    removed.assign(kept.begin(), first);
    kept.erase(kept.begin(), first);
  }
  std::string manifest = kManifestHead;
  for (const std::string& one : kept) manifest += one + "\n";
  file_put("manifest", manifest + kManifestEnd);
  for (const std::string& one : removed) {
    std::remove((path_ + "/" + one).c_str());
    done("removed");
  }
}

}  // namespace sluice::train
