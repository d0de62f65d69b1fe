// See meeting.h.
#include "trainer/train/meeting.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>

namespace sluice::train {
namespace {

constexpr Nanos kBoardLookGap = 5 * kNanosPerMilli;

/// A directory that nobody else could have put there for us.
bool is_own_directory(const std::string& path) {
  struct stat state {};
  return lstat(path.c_str(), &state) == 0 && S_ISDIR(state.st_mode) && state.st_uid == geteuid() &&
         (state.st_mode & 077) == 0;
}

int board_make(const std::string& path) {
  const std::string part = path + ".part";
  const int fd = open(part.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) throw errno_failure("making the board " + part);
  return fd;
}

int board_await(const std::string& directory, const std::string& path, double timeout_s,
                const ExternalStart& start) {
  const Nanos deadline = now_ns() + nanos_of_seconds(timeout_s);
  for (;;) {
    if (is_own_directory(directory)) {
      const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
      if (fd >= 0) return fd;
    }
    if (now_ns() > deadline) {
      throw Failure(text_format(
          "rank %d of %d, started by %s: rank 0 made no %s within %.0f s; do all ranks run on this "
          "machine, as this user, with the same TMPDIR?",
          start.rank, start.rank_count, start.by.c_str(), directory.c_str(), timeout_s));
    }
    sleep_until(now_ns() + kBoardLookGap);
  }
}

}  // namespace

std::unique_ptr<Meeting> Meeting::own() {
  std::unique_ptr<Meeting> made(new Meeting);
  made->renew();
  made->board_ = std::make_unique<BoardMap>();
  return made;
}

std::unique_ptr<Meeting> Meeting::shared(const ExternalStart& start, double timeout_s) {
  std::unique_ptr<Meeting> made(new Meeting);
  made->directory_ = (std::filesystem::temp_directory_path() /
                      text_format("sluice-train-%u-%s", geteuid(), start.job.c_str()))
                         .string();
  const std::string board = made->directory_ + "/board";
  if (start.rank > 0) {
    const int fd = board_await(made->directory_, board, timeout_s, start);
    made->board_ = std::make_unique<BoardMap>(fd);
    return made;
  }
  if (mkdir(made->directory_.c_str(), 0700) != 0) {
    if (errno != EEXIST) throw errno_failure("making the directory " + made->directory_);
    throw Failure(made->directory_ +
                  " is there already: another job has this name, or one that was killed left it "
                  "behind; if none runs, remove it");
  }
  made->made_ = true;
  made->board_ = std::make_unique<BoardMap>(board_make(board), BoardMap::Fresh());
  std::filesystem::rename(board + ".part", board);  // whole, so the others may have it
  return made;
}

std::unique_ptr<Meeting> Meeting::network(const std::string& place) {
  std::unique_ptr<Meeting> made(new Meeting);
  made->directory_ = place;
  made->board_ = std::make_unique<BoardMap>();
  return made;
}

Meeting::~Meeting() { remove(); }

void Meeting::renew() {
  remove();
  directory_ = (std::filesystem::temp_directory_path() / "sluice-train-XXXXXX").string();
  if (mkdtemp(directory_.data()) == nullptr)
    throw errno_failure("making the directory " + directory_);
  made_ = true;
}

void Meeting::remove() {
  if (!std::exchange(made_, false)) return;
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

}  // namespace sluice::train
