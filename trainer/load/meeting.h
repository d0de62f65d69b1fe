// Where the ranks of a job meet after each step: a file that all of them map. The last one to come
// lets the others go on.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

namespace sluice::train {

class LoadMeeting {
 public:
  /// Maps the file, and makes it where it is not. Throws Failure.
  LoadMeeting(const std::string& file, std::uint32_t ranks);
  ~LoadMeeting();
  LoadMeeting(const LoadMeeting&) = delete;
  LoadMeeting& operator=(const LoadMeeting&) = delete;

  /// Returns true when all ranks have come, false once `over` says so: it is asked every now and
  /// then. After false the file is of no use: a rank has counted itself and left.
  bool wait(const std::function<bool()>& over);

 private:
  struct Page {
    std::atomic<std::uint32_t> came;   // of the present meeting
    std::atomic<std::uint32_t> count;  // of meetings
  };
  Page* page_ = nullptr;
  const std::uint32_t ranks_;
};

}  // namespace sluice::train
