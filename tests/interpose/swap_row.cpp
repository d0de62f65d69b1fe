// Runs a conformance program as a tenant's whose memory is movable, under a broker that moves it
// out and in again and again: swap_row SHIM DIRECTORY PROGRAM ARGUMENT... In the end neither the
// ledger nor the GPUs' own account may have anything left.
#include <stdio.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "tests/interpose/row_broker.h"

namespace {

using namespace sluice::protocol;
using namespace sluice::test;

// An order's answer, as long as there is somebody to give it: a hold that ends with memory outside
// lets the program have more than there is, so a slow host gets its time.
bool carried_out(TestBroker& broker, const std::atomic<bool>& ends, std::uint32_t order) {
  const std::uint32_t word = broker.order_store(order);
  for (int i = 0; i < 1500 && !ends; ++i) {
    if (broker.wait_moved(word, 20)) return true;
  }
  return false;
}

// Moves the memory of GPU 0 out and in until told to end. A hold that is not acknowledged in time
// (a capture is in progress, a process has ended) is taken back. Returns how often it went well.
int move_about(TestBroker& broker, const std::atomic<bool>& ends) {
  int rounds = 0;
  while (!ends) {
    broker.lease_store(0);
    broker.hold_store(true);
    if (broker.registrations() > 0 && broker.wait_held(50) && carried_out(broker, ends, kHoldOut) &&
        carried_out(broker, ends, kHoldIn)) {
      ++rounds;
    }
    broker.hold_store(false);
    broker.lease_store(kLeaseOpen);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return rounds;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  TestBroker broker(0, kRowContext);
  row_gpus_name(broker, argv[2]);
  broker.swap_set();
  const pid_t pid = row_start(broker, argv[1], argv[2], argv + 3);
  if (pid < 0) return 2;
  std::atomic<bool> ends{false};
  int rounds = 0;
  std::thread mover([&] { rounds = move_about(broker, ends); });
  int status = 0;
  waitpid(pid, &status, 0);
  ends = true;
  mover.join();
  printf("moved %d times\n", rounds);
  const std::string left = row_left_over(broker, argv[2]);
  printf("%s", left.c_str());
  return left.empty() ? row_exit_code(status) : 1;
}
