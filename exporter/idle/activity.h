// A tenant's claims page, read for what its processes told of their idleness (broker/protocol/
// pages.h). The page is written by the tenant's own processes: whatever it says is believed of
// nobody but them, and nothing in it can harm the reader.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "broker/protocol/pages.h"
#include "exporter/idle/account.h"

namespace sluice::exporter {

/// News of one process since the last look, with the host's numbers.
struct ProcessNews {
  std::uint32_t process = 0;
  std::vector<ToldWait> waits;  // those that go on end now
  std::array<GpuTold, protocol::kTenantGpusMax> gpus;
};

class ActivityPage {
 public:
  /// Maps the page behind the descriptor and closes it. Null when it is none.
  static std::unique_ptr<ActivityPage> open(int fd);
  /// A page in the caller's memory, which must outlive this.
  explicit ActivityPage(const protocol::ClaimsPage& page) : page_(&page) {}
  ~ActivityPage();
  ActivityPage(const ActivityPage&) = delete;
  ActivityPage& operator=(const ActivityPage&) = delete;

  /// What is new for the processes that are registered now. What came before the first look at a
  /// process is not told.
  std::vector<ProcessNews> news(std::uint64_t now_ns);

 private:
  struct Seen {
    std::uint32_t process = 0;
    std::uint64_t waits = 0;
    std::array<std::uint64_t, protocol::kTenantGpusMax> gaps{};
    std::array<std::uint64_t, protocol::kTenantGpusMax> last_end_ns{};
    std::array<bool, protocol::kTenantGpusMax> lost{};  // some since last_end_ns
    // By the process's own numbers, as /proc has listed them last, and when.
    std::unordered_map<std::uint32_t, std::uint32_t> host_threads;
    std::uint64_t listed_ns = 0;
  };
  void waits_read(const protocol::ActivitySlot& slot, Seen& seen, std::uint64_t now_ns,
                  std::uint32_t own, ProcessNews& out);
  void gpu_read(const protocol::ActivityGpu& gpu, std::size_t index, Seen& seen, std::uint32_t own,
                GpuTold& out);
  std::uint32_t host_thread(Seen& seen, std::uint32_t own, std::uint32_t thread);
  void threads_list(Seen& seen);

  std::uint64_t now_ns_ = 0;  // of the look that goes on
  std::uint64_t listed_since_ns_ = 0;
  std::size_t listed_ = 0;  // threads, since then
  const protocol::ClaimsPage* page_;
  bool mapped_ = false;
  std::array<Seen, protocol::kTenantProcessesMax> seen_{};
};

}  // namespace sluice::exporter
