// Snapshots made by hand and a broker that serves them, for the exporter's tests.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "broker/protocol/snapshot.h"

namespace sluice::exporter::test {

/// The parts of a snapshot; `bytes` sets the counts and joins them.
struct Crafted {
  protocol::SnapshotHeader header{};
  std::vector<protocol::SnapshotGpu> gpus;
  std::vector<protocol::SnapshotTenant> tenants;
  std::vector<protocol::SnapshotTenantGpu> tenant_gpus;
  std::vector<protocol::SnapshotProcess> processes;

  Crafted();
  std::vector<unsigned char> bytes() const;
  protocol::SnapshotTenant& tenant_add(protocol::TenantId id, const char* user,
                                       protocol::TenantClass tenant_class);
  protocol::SnapshotTenantGpu& vgpu_add(protocol::TenantId id, std::size_t gpu);
  void process_add(protocol::TenantId id, pid_t pid);
};

/// Two GPUs; a training job on both, an inference job with a runaway, one tenant in the queue. What
/// the golden file shows.
Crafted example();

protocol::GpuUuid uuid_of(unsigned char first);

/// What the broker does with one connection after it has read the request.
using Answer = std::function<void(int fd)>;
Answer answer_snapshot(std::vector<unsigned char> bytes);
/// The reply announces `announced` bytes whatever the file holds.
Answer answer_announced(std::vector<unsigned char> bytes, std::uint64_t announced);
Answer answer_refusal(const char* text);

/// Listens on a socket in a folder of its own until destroyed.
class FakeBroker {
 public:
  explicit FakeBroker(Answer answer);
  ~FakeBroker();
  FakeBroker(const FakeBroker&) = delete;
  FakeBroker& operator=(const FakeBroker&) = delete;
  const std::string& path() const { return path_; }
  /// Lets other users reach it, too.
  void open_to_all() const;
  /// Makes it another user's in the eyes of those that connect. Only root can.
  void give_to(uid_t uid) const;
  /// Questions read so far; who has an answer finds it counted.
  int served() const { return served_; }
  /// Connections this side has closed: from here on it holds no descriptor of theirs.
  int closed() const { return closed_; }

 private:
  void serve();

  Answer answer_;
  std::string folder_;
  std::string path_;
  int listener_ = -1;
  int stop_ = -1;  // eventfd
  std::atomic<int> served_{0};
  std::atomic<int> closed_{0};
  std::thread thread_;
};

/// A file in memory with these bytes.
int memory_file(const std::vector<unsigned char>& bytes);

}  // namespace sluice::exporter::test
