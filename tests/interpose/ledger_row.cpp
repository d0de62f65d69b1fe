// Runs a conformance program as a tenant's under a broker whose gates are open, and compares the
// ledger with the GPUs' own account, byte for byte, whenever the program comes to a point where
// both must agree (ledger_points.c) and when it has ended: ledger_row SHIM POINTS DIRECTORY PROGRAM
// ARGUMENT... Its exit code says whether they did; what became of the row is in its last words.
// LEDGER_QUOTA is the tenant's on each GPU, in bytes, and behind a comma what it is on all but the
// first; without it there is none. With LEDGER_UNREST, a seed, its leases close and open and holds
// come and go (row_unrest.h), with LEDGER_SWAP its memory is movable and moved; that rests while
// the accounts are compared.
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "tests/interpose/row_broker.h"
#include "tests/interpose/row_unrest.h"
#include "tests/interpose/softgpu_fixture.h"

namespace {

using namespace sluice::test;

// As much as the slowest of all takes to be told; less finds differences sooner.
int patience_ms() {
  const char* text = getenv("LEDGER_PATIENCE_MS");
  return text == nullptr ? 5000 : atoi(text);
}

// Where the program says that it has come to such a point and waits for an answer.
class Points {
 public:
  Points() : listener_(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string name = "sluice-ledger-row-" + std::to_string(getpid());
    name.copy(address.sun_path + 1, sizeof address.sun_path - 2);  // in no folder
    setenv("LEDGER_POINTS", name.c_str(), 1);
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    if (bind(listener_, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
        listen(listener_, 16) != 0) {
      perror("ledger_row");
      exit(2);
    }
  }
  ~Points() { close(listener_); }
  Points(const Points&) = delete;
  Points& operator=(const Points&) = delete;

  /// Answers until `end()`. The first difference that stays is kept, and nothing looked at further.
  void serve(TestBroker& broker, const char* directory, Unrest* unrest) {
    for (;;) {
      const int peer = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (peer < 0) return;
      char name[64] = {};
      if (recv(peer, name, sizeof name - 1, 0) > 0) {
        ++met;
        std::unique_lock<std::mutex> rest;
        if (unrest != nullptr) rest = std::unique_lock(unrest->rest);
        if (difference.empty()) look(broker, directory, name);
        (void)send(peer, "", 1, MSG_NOSIGNAL);
      }
      close(peer);
    }
  }
  void end() { shutdown(listener_, SHUT_RDWR); }

  int met = 0;
  std::string difference;

 private:
  // What the helper has still to learn, and what another process is in the middle of, passes.
  void look(TestBroker& broker, const char* directory, const char* name) {
    const auto gpus = row_gpus(directory);
    std::string text;
    eventually([&] { return (text = accounts_difference(broker, gpus, gpus.size())).empty(); },
               patience_ms());
    if (!text.empty()) difference = std::string("at ") + name + ":\n" + text;
  }
  const int listener_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  const char* quota = getenv("LEDGER_QUOTA");
  TestBroker broker(quota == nullptr ? 0 : strtoull(quota, nullptr, 10), kRowContext);
  row_gpus_name(broker, argv[3]);
  if (const char* others = quota == nullptr ? nullptr : strchr(quota, ','); others != nullptr) {
    for (std::uint32_t gpu = 1; gpu < broker.lease().gpu_count; ++gpu)
      broker.lease().gpus[gpu].memory_max_bytes = strtoull(others + 1, nullptr, 10);
  }
  if (getenv("LEDGER_SWAP") != nullptr) broker.swap_set();
  broker.lease_store(sluice::protocol::kLeaseOpen);
  Points points;
  const std::string preload = std::string(argv[2]) + ":" + argv[1];
  const pid_t pid = row_start(broker, preload.c_str(), argv[3], argv + 4);
  if (pid < 0) return 2;
  std::unique_ptr<Unrest> unrest;
  if (const char* seed = getenv("LEDGER_UNREST"); seed != nullptr) {
    unrest = std::make_unique<Unrest>(broker, strtoull(seed, nullptr, 10),
                                      getenv("LEDGER_SWAP") != nullptr);
  }
  std::thread server([&] { points.serve(broker, argv[3], unrest.get()); });
  int status = 0;
  waitpid(pid, &status, 0);
  points.end();
  server.join();
  if (unrest != nullptr)
    printf("held %d times, moved %d times\n", unrest->holds(), unrest->moves());
  unrest.reset();
  const std::string left = row_left_over(broker, argv[3]);
  printf("compared %d times, the row ended with %d\n%s%s", points.met, row_exit_code(status),
         points.difference.c_str(), left.c_str());
  return left.empty() && points.difference.empty() ? 0 : 1;
}
