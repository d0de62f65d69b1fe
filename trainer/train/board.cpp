// See board.h.
#include "trainer/train/board.h"

#include <sys/mman.h>
#include <unistd.h>

namespace sluice::train {

BoardMap::BoardMap() : BoardMap(memfd_create("sluice-train-board", MFD_CLOEXEC), Fresh()) {}

BoardMap::BoardMap(int fd, Fresh) : fd_(fd) {
  if (fd_ < 0 || ftruncate(fd_, sizeof(Board)) != 0) throw errno_failure("making the board");
  map();
  for (RankLine& one : board_->ranks) one.accuracy = -1;
}

BoardMap::BoardMap(int fd) : fd_(fd) { map(); }

BoardMap::~BoardMap() {
  munmap(board_, sizeof(Board));
  close(fd_);
}

void BoardMap::map() {
  void* memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (memory == MAP_FAILED) throw errno_failure("mapping the board");
  board_ = static_cast<Board*>(memory);
}

}  // namespace sluice::train
