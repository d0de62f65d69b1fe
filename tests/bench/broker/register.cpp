// Many processes register with a broker at one moment, round after round.
//
//   broker_register SOCKET PROCESSES ROUNDS one|each
//
// `one`: all join one tenant, as the ranks of a job do. `each`: every process asks for a tenant of
// its own first. Prints, in nanoseconds, one line for each registration: from before connecting to
// the answer in hand, on the client's side and with its scheduling; the broker's side is in its
// log.
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "broker/protocol/wire.h"

namespace {

using namespace sluice::protocol;

constexpr std::uint64_t kMemory = std::uint64_t{64} << 20;

std::int64_t clock_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "broker_register: %s\n", what);
  _exit(1);
}

/// Asks and returns the answer, which must be of this kind.
Envelope asked(int fd, const void* message, std::size_t size, MessageType kind) {
  if (wire_send(fd, message, size, nullptr, 0, false) != 0) fail("the broker does not listen");
  Envelope answer;
  if (wire_receive(fd, &answer, -1) != 1) fail("the broker hung up");
  if (answer.header().type == MessageType::kRefused) fail(answer.as<Refused>().text);
  if (answer.header().type != kind) fail("another answer was expected");
  return answer;
}

int connected(const char* path) {
  const int fd = wire_connect(path);
  if (fd < 0) fail("nobody listens there");
  return fd;
}

Admitted admitted(const char* path) {
  Admit message;
  message_init(message, MessageType::kAdmit, 1);
  message.tenant_class = TenantClass::kBatch;
  message.memory_max_bytes = kMemory;
  message.gpu_count = 1;
  message.flags = kAdmitNoWait;
  std::strcpy(message.name, "bench");
  const Envelope answer = asked(connected(path), &message, sizeof message, MessageType::kAdmitted);
  return answer.as<Admitted>();
}

std::int64_t register_timed(const char* path, const Admitted& tenant) {
  Register message;
  message_init(message, MessageType::kRegister, 1);
  message.tenant = tenant.tenant;
  message.key = tenant.key;
  std::strcpy(message.command, "bench");
  const std::int64_t begin = clock_ns();
  asked(connected(path), &message, sizeof message, MessageType::kRegistered);
  return clock_ns() - begin;
}

struct Slot {
  std::int64_t ready;
  std::int64_t taken_ns;
};

/// In a process of its own: waits for the start, registers, waits for the end.
[[noreturn]] void rank(const char* path, bool own, const Admitted& joined, int start, int end,
                       volatile Slot* slot) {
  const Admitted tenant = own ? admitted(path) : joined;
  char byte;
  slot->ready = 1;
  [[maybe_unused]] ssize_t got = read(start, &byte, 1);  // ends when the starter closes it
  slot->taken_ns = register_timed(path, tenant);
  got = read(end, &byte, 1);
  _exit(0);
}

/// Until all have set the field, or one has ended.
void wait_for(volatile Slot* slots, std::size_t count, volatile std::int64_t Slot::*field) {
  for (std::size_t p = 0; p < count; ++p) {
    while (slots[p].*field == 0) {
      if (waitpid(-1, nullptr, WNOHANG) > 0) fail("a process ended early");
      usleep(1000);
    }
  }
}

void round_run(const char* path, bool own, const Admitted& joined, volatile Slot* slots,
               std::size_t processes) {
  int start[2];
  int end[2];
  if (pipe(start) != 0 || pipe(end) != 0) fail("no descriptors");
  for (std::size_t p = 0; p < processes; ++p) {
    slots[p].ready = 0;
    slots[p].taken_ns = 0;
    if (fork() != 0) continue;
    close(start[1]);
    close(end[1]);
    rank(path, own, joined, start[0], end[0], &slots[p]);
  }
  close(start[0]);
  close(end[0]);
  wait_for(slots, processes, &Slot::ready);
  close(start[1]);
  wait_for(slots, processes, &Slot::taken_ns);
  close(end[1]);
  while (wait(nullptr) > 0) {
  }
  for (std::size_t p = 0; p < processes; ++p)
    std::printf("%lld\n", static_cast<long long>(slots[p].taken_ns));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) fail("usage: broker_register SOCKET PROCESSES ROUNDS one|each");
  const char* path = argv[1];
  const auto processes = static_cast<std::size_t>(std::atoi(argv[2]));
  const int rounds = std::atoi(argv[3]);
  const bool own = std::strcmp(argv[4], "each") == 0;
  void* memory = mmap(nullptr, processes * sizeof(Slot), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail("no memory");
  const Admitted joined = own ? Admitted{} : admitted(path);
  for (int r = 0; r < rounds; ++r)
    round_run(path, own, joined, static_cast<volatile Slot*>(memory), processes);
  return 0;
}
