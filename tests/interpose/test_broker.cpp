// See test_broker.h.
#include "tests/interpose/test_broker.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

namespace sluice::test {

using namespace protocol;

namespace {

template <class Page>
Page* page_create(const char* name, int* fd) {
  *fd = memfd_create(name, MFD_CLOEXEC);
  if (*fd < 0 || ftruncate(*fd, sizeof(Page)) != 0) throw std::runtime_error("memfd");
  void* page = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
  if (page == MAP_FAILED) throw std::runtime_error("mmap");
  return static_cast<Page*>(page);
}

// The brokers of this process that have running threads.
struct Running {
  static Running& all() {
    static Running& running = *new Running;  // programs fork while they exit, too
    return running;
  }
  std::mutex mutex;
  std::vector<TestBroker*> brokers;
};

}  // namespace

// A fork child must not find a lock taken that only a broker's thread would give back: under
// AddressSanitizer the allocator's, which fork does not take. So a fork waits for these threads.
void TestBroker::fork_prepare() {
  Running::all().mutex.lock();
  for (TestBroker* broker : Running::all().brokers) broker->busy_.lock();
}

void TestBroker::fork_done() {
  for (TestBroker* broker : Running::all().brokers) broker->busy_.unlock();
  Running::all().mutex.unlock();
}

TestBroker::TestBroker(std::uint64_t quota_bytes, std::uint64_t context_bytes,
                       unsigned char uuid_byte) {
  char name[] = "/tmp/sluice-test-XXXXXX";
  if (mkdtemp(name) == nullptr) throw std::runtime_error("mkdtemp");
  directory_ = name;
  path_ = directory_ + "/broker.sock";
  lease_ = page_create<LeasePage>("lease", &lease_fd_);
  claims_ = page_create<ClaimsPage>("claims", &claims_fd_);
  lease_->magic = kLeasePageMagic;
  lease_->version = kVersion;
  lease_->tenant_class = TenantClass::kBatch;
  lease_->tenant = 7;
  lease_->gpu_count = 1;
  memset(lease_->gpus[0].gpu.bytes, uuid_byte, 16);
  lease_->gpus[0].memory_max_bytes = quota_bytes;
  lease_->gpus[0].context_bytes = context_bytes;
  lease_->gpus[0].idle_grace_ns.store(1'000'000);
  lease_->gpus[0].lease.store(lease_word(epochs_[0], 0));
  claims_->magic = kClaimsPageMagic;
  claims_->version = kVersion;
  claims_->slot_count = kTenantProcessesMax;
  claims_->gpu_count = 1;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  strncpy(address.sun_path, path_.c_str(), sizeof address.sun_path - 1);
  listen_fd_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (bind(listen_fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      listen(listen_fd_, 16) != 0 || pipe2(stop_pipe_, O_CLOEXEC) != 0) {
    throw std::runtime_error("socket");
  }
  [[maybe_unused]] static const int forks = pthread_atfork(&fork_prepare, &fork_done, &fork_done);
  std::promise<void> serves;
  std::future<void> served = serves.get_future();
  thread_ = std::thread([this, &serves] { serve(std::move(serves)); });
  served.wait();
  const std::lock_guard lock(Running::all().mutex);
  Running::all().brokers.push_back(this);
}

TestBroker::~TestBroker() {
  die();
  munmap(lease_, sizeof *lease_);
  munmap(claims_, sizeof *claims_);
  close(lease_fd_);
  close(claims_fd_);
  rmdir(directory_.c_str());
}

void TestBroker::die() {
  if (!thread_.joinable()) return;
  close(stop_pipe_[1]);
  thread_.join();
  {
    const std::lock_guard lock(Running::all().mutex);
    std::erase(Running::all().brokers, this);
  }
  close(stop_pipe_[0]);
  close(listen_fd_);
  unlink(path_.c_str());
}

void TestBroker::path_take(const TestBroker& dead) {
  // A bound socket keeps its listeners under a new name.
  if (rename(path_.c_str(), dead.path_.c_str()) != 0) throw std::runtime_error("rename");
  path_ = dead.path_;
}

void TestBroker::environment_set() const {
  setenv(kSocketVariable, path_.c_str(), 1);
  setenv(kTenantVariable, "0000000000000007-0123456789abcdef", 1);
  const LeaseEntry& first = lease_->gpus[0];
  limits_set(first.memory_max_bytes, first.sm_percent == 0 ? 100 : first.sm_percent);
}

void TestBroker::limits_set(std::uint64_t memory_bytes, std::uint32_t sm_percent) const {
  TenantLimits limits{};
  limits.tenant = 7;
  limits.key = 0x0123456789abcdef;
  limits.memory_max_bytes = memory_bytes;
  limits.sm_percent = sm_percent;
  limits.context_bytes = lease_->gpus[0].context_bytes;
  limits.gpu_count = lease_->gpu_count;
  for (std::uint32_t i = 0; i < limits.gpu_count; ++i) limits.gpus[i] = lease_->gpus[i].gpu;
  char text[kTenantLimitsTextBytes];
  tenant_limits_format(limits, text);
  setenv(kTenantLimitsVariable, text, 1);
}

void TestBroker::gpu_uuid_set(const unsigned char uuid[16]) {
  memcpy(lease_->gpus[0].gpu.bytes, uuid, 16);
}

void TestBroker::gpu_add(const unsigned char uuid[16]) {
  LeaseEntry& entry = lease_->gpus[lease_->gpu_count];
  entry = lease_->gpus[0];
  memcpy(entry.gpu.bytes, uuid, 16);
  claims_->gpu_count = ++lease_->gpu_count;
}

void TestBroker::lease_word_store(std::uint32_t gpu, std::uint32_t flags) {
  AtomicU32& word = lease_->gpus[gpu].lease;
  word.store(lease_word(epochs_[gpu], flags));
  syscall(SYS_futex, &word.raw, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void TestBroker::lease_store(std::uint32_t flags) {
  for (std::uint32_t gpu = 0; gpu < lease_->gpu_count; ++gpu) lease_store(flags, gpu);
}

void TestBroker::lease_store(std::uint32_t flags, std::uint32_t gpu) {
  ++epochs_[gpu];
  lease_word_store(gpu, flags);
}

void TestBroker::lease_flag(std::uint32_t flags) {
  for (std::uint32_t gpu = 0; gpu < lease_->gpu_count; ++gpu) lease_word_store(gpu, flags);
}

bool TestBroker::wait_for_end(int pid, int timeout_ms) {
  for (int i = 0; i < timeout_ms; ++i) {
    bool known = false;
    for (const ClaimsSlot& slot : claims_->slots)
      known |= slot.pid.load() == static_cast<std::uint32_t>(pid);
    if (!known) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

void TestBroker::hold_store(bool set) {
  hold_epoch_ = hold_epoch_next(hold_epoch_);
  lease_->gpus[0].hold.store(hold_word(hold_epoch_, set ? kHoldSet : 0));
  syscall(SYS_futex, &lease_->gpus[0].hold.raw, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void TestBroker::swap_set() {
  for (std::uint32_t gpu = 0; gpu < lease_->gpu_count; ++gpu) lease_->gpus[gpu].flags = kEntrySwap;
}

std::uint32_t TestBroker::order_store(std::uint32_t order) {
  const std::uint32_t word = hold_word(hold_epoch_, kHoldSet | order);
  lease_->gpus[0].hold.store(word);
  syscall(SYS_futex, &lease_->gpus[0].hold.raw, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  return word;
}

bool TestBroker::wait_moved(std::uint32_t word, int timeout_ms, std::vector<Moved>* out) {
  for (int i = 0; i < timeout_ms; ++i) {
    std::vector<Moved> found;
    {
      const std::lock_guard lock(mutex_);
      for (const Moved& moved : moved_) {
        if (moved.word == word) found.push_back(moved);
      }
    }
    if (found.size() >= static_cast<std::size_t>(registrations_)) {
      if (out != nullptr) *out = found;
      return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

void TestBroker::room_answer(bool none, std::uint32_t gpu) {
  AtomicU32& room = lease_->gpus[gpu].room;
  room.store(room_next(room.load(), none));
  syscall(SYS_futex, &room.raw, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

std::vector<MemoryWant> TestBroker::wants() {
  const std::lock_guard lock(mutex_);
  return wants_;
}

bool TestBroker::wait_held(int timeout_ms) {
  for (int i = 0; i < timeout_ms * 10; ++i) {
    bool all = true;
    for (int slot = 0; slot < registrations_; ++slot)
      all &= account(static_cast<std::uint32_t>(slot)).held_epoch.load() == hold_epoch_;
    if (all) return true;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return false;
}

void TestBroker::window_set(std::uint64_t ns) { lease_->gpus[0].window_ns.store(ns); }

void TestBroker::refuse_with(const std::string& text) {
  const std::lock_guard lock(mutex_);
  refusal_ = text;
}

GpuUuid TestBroker::wish() {
  const std::lock_guard lock(mutex_);
  return wish_;
}

std::vector<Note> TestBroker::notes() {
  const std::lock_guard lock(mutex_);
  return notes_;
}

bool TestBroker::wait_for(MessageType type, std::uint32_t epoch, int timeout_ms) {
  for (int i = 0; i < timeout_ms; ++i) {
    for (const Note& note : notes()) {
      if (note.type == type && (epoch == 0 || note.epoch == epoch)) return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

// What a process had before it executed another program, which threw its mapping of the page away.
// The account goes before the pid, as with sluiced.
void TestBroker::slot_clear(std::uint32_t slot) {
  for (AtomicU64& kept : claims_->released_bytes[slot]) kept.store(0);
  auto* const words = reinterpret_cast<AtomicU64*>(&claims_->slots[slot]);
  for (std::size_t i = sizeof(ClaimsSlot) / sizeof *words; i-- > 0;) words[i].store(0);
}

void TestBroker::former_image_clear(std::uint32_t pid) {
  struct stat page {};
  fstat(claims_fd_, &page);
  std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
  const std::string text{std::istreambuf_iterator<char>(maps), {}};
  if (text.empty() || text.find(" " + std::to_string(page.st_ino) + " ") != std::string::npos)
    return;
  for (std::uint32_t slot = 0; slot < kTenantProcessesMax; ++slot)
    if (claims_->slots[slot].pid.load() == pid) slot_clear(slot);
}

// Returns a descriptor that becomes readable when the process has ended, -1 when it was refused.
int TestBroker::register_answer(int fd, const Register& request) {
  std::string refusal;
  {
    const std::lock_guard lock(mutex_);
    refusal = refusal_;
    wish_ = request.gpu;
  }
  if (!refusal.empty()) {
    Refused answer;
    message_init(answer, MessageType::kRefused, request.header.request);
    answer.code = RefusalCode::kTooManyProcesses;
    strncpy(answer.text, refusal.c_str(), sizeof answer.text - 1);
    wire_send(fd, &answer, sizeof answer, nullptr, 0, false);
    return -1;
  }
  ucred peer{};
  socklen_t size = sizeof peer;
  getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size);
  Registered answer;
  message_init(answer, MessageType::kRegistered, request.header.request);
  answer.tenant = 7;
  answer.slot = static_cast<std::uint32_t>(registrations_.fetch_add(1));
  const auto pid = static_cast<std::uint32_t>(peer.pid);
  answer.host_pid = host_pid_hidden_ ? 1 : pid;
  former_image_clear(pid);
  for (answer.slot = slots_again_ ? 0 : answer.slot; claims_->slots[answer.slot].pid.load() != 0;)
    ++answer.slot;
  claims_->slots[answer.slot].pid.store(pid);
  const int fds[2] = {lease_fd_, claims_fd_};
  wire_send(fd, &answer, sizeof answer, fds, 2, false);
  return static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0));
}

void TestBroker::message_keep(const Envelope& message) {
  if (message.is<MemoryWant>(MessageType::kMemoryWant)) {
    const MemoryWant& want = message.as<MemoryWant>();
    {
      const std::lock_guard lock(mutex_);
      wants_.push_back(want);
    }
    if (!room_held_ && lease_->gpus[want.gpu].room.load() == want.room) room_answer(true, want.gpu);
    return;
  }
  const std::lock_guard lock(mutex_);
  if (message.is<Moved>(MessageType::kMoved)) {
    moved_.push_back(message.as<Moved>());
  } else if (message.size == sizeof(GateNote)) {
    const GateNote& note = message.as<GateNote>();
    notes_.push_back({note.header.type, note.gpu, note.epoch, note.busy_ns});
  }
}

void TestBroker::serve(std::promise<void> serves) {
  std::unique_lock busy(busy_);
  serves.set_value();
  struct Guest {
    int pid_fd;
    std::uint32_t slot;
    bool seen = false;  // its end
  };
  std::vector<Guest> guests;
  std::vector<pollfd> polled = {{stop_pipe_[0], POLLIN, 0}, {listen_fd_, POLLIN, 0}};
  for (;;) {
    std::vector<pollfd> all = polled;
    for (const Guest& guest : guests) {
      const bool waits = ends_unseen_ || (guest.seen && ended_held_);
      all.push_back({waits ? -1 : guest.pid_fd, POLLIN, 0});
    }
    busy.unlock();
    poll(all.data(), all.size(), -1);
    busy.lock();
    if (all[0].revents != 0) break;
    for (std::size_t i = guests.size(); i-- > 0;) {
      if (ends_unseen_ || all[polled.size() + i].revents == 0) continue;
      if (ended_held_) {
        guests[i].seen = true;
        claims_->slots[guests[i].slot].end_seen.store(1);
        continue;
      }
      slot_clear(guests[i].slot);
      close(guests[i].pid_fd);
      guests.erase(guests.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if ((all[1].revents & POLLIN) != 0) {
      const int fd = accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd >= 0) polled.push_back({fd, POLLIN, 0});
    }
    for (std::size_t i = polled.size(); i-- > 2;) {
      if (i >= all.size() || all[i].fd != polled[i].fd || all[i].revents == 0) continue;
      Envelope message;
      const int rc = wire_receive(polled[i].fd, &message, 0);
      if (rc == 1 && message.is<Register>(MessageType::kRegister)) {
        const int pid_fd = register_answer(polled[i].fd, message.as<Register>());
        if (pid_fd >= 0)
          guests.push_back({pid_fd, static_cast<std::uint32_t>(registrations_.load() - 1)});
      } else if (rc == 1) {
        message_keep(message);
      } else if (rc != -EAGAIN) {
        close(polled[i].fd);
        polled.erase(polled.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
  }
  for (const Guest& guest : guests) close(guest.pid_fd);
  for (std::size_t i = 2; i < polled.size(); ++i) close(polled[i].fd);
}

}  // namespace sluice::test
