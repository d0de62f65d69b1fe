// Who waits: a call through every hook under closed leases and holds, over a driver that only notes
// its calls.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/interpose/routes_beside.h"

namespace {

using namespace sluice::test;

/// Hooks that pass while a hold lasts, and why they may.
const std::pair<const char*, std::vector<std::string>> kPassing[] = {
    {"asks nothing of the device", {"cuInit", "cuDeviceTotalMem", "cuDeviceTotalMem_v2"}},
    {"a query",
     {"cuEventQuery", "cuStreamQuery", "cuStreamQuery_ptsz", "cuMemGetInfo", "cuMemGetInfo_v2"}},
    {"the answer is the shim's own while memory is out",
     {"cuMemGetAddressRange_v2", "cuPointerGetAttribute", "cuPointerGetAttributes"}},
    {"a wait: what it waits for is over", {"cuEventSynchronize"}},
    {"a hold waits for its end", {"cuStreamEndCapture", "cuStreamEndCapture_ptsz"}},
    {"says which context is meant",
     {"cuCtxPopCurrent", "cuCtxPopCurrent_v2", "cuCtxPushCurrent", "cuCtxPushCurrent_v2",
      "cuCtxSetCurrent"}},
};

enum class Fate { kReturned, kWaited };

/// Whether the call returns by itself, or is stopped at a gate with its function not yet called;
/// release() is to let it go on, after which it must end in its own function.
template <class Release>
Fate fate(sluice::test::TestBroker& broker, const HookedEntry& entry, void* hook, Release release) {
  const auto wants = [&] {
    const auto notes = broker.notes();
    return std::count_if(notes.begin(), notes.end(), [](const auto& note) {
      return note.type == sluice::protocol::MessageType::kGateWant;
    });
  };
  const auto before = wants();
  std::atomic<bool> done{false};
  Call call;
  int program_id = 0;
  calls_forget();
  std::thread program([&] {
    program_id = gettid();
    call = entry.call(hook);
    done = true;
  });
  while (!done && wants() == before) std::this_thread::yield();
  const auto reached = [&] {
    const int kept = std::min<int>(fake_calls.count, kRecordedCallsMax);
    return std::any_of(fake_calls.calls, fake_calls.calls + kept, [&](const RecordedCall& one) {
      return one.symbol != nullptr && one.symbol == std::string(entry.real);
    });
  };
  const Fate found = done ? Fate::kReturned : Fate::kWaited;
  if (found == Fate::kWaited) {
    EXPECT_FALSE(reached()) << "it waits, and has called the driver already";
  }
  release();
  program.join();
  EXPECT_EQ(call.result, CUDA_SUCCESS);
  expect_only_listed(entry, &call, program_id);
  return found;
}

/// A capture that was begun stops no hold for longer than its own row.
void capture_end(const std::string& symbol, void* end) {
  if (symbol.rfind("cuStreamBeginCapture", 0) != 0) return;
  EXPECT_EQ(
      reinterpret_cast<decltype(&cuStreamEndCapture)>(end)(argument_make<CUstream>(0), nullptr),
      CUDA_SUCCESS);
}

TEST_F(RouteTableTest, WhatLaunchesWaitsForItsLeaseAndNothingElse) {
  sluice::test::TestBroker broker(1ull << 30);
  broker.environment_set();
  const auto classes = classes_of_all();
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  size_t launches = 0;
  for (const auto& entry : entries()) {
    if (!is_called(entry)) continue;
    SCOPED_TRACE(entry.symbol);
    const auto& own = classes.at(entry.symbol);
    const bool launches_now = own.count("launch") != 0 || own.count("work") != 0;
    const Fate found = fate(broker, entry, named(entry.symbol), [&] {
      if (launches_now) broker.lease_store(sluice::protocol::kLeaseOpen);
    });
    EXPECT_EQ(found, launches_now ? Fate::kWaited : Fate::kReturned);
    capture_end(entry.symbol, named("cuStreamEndCapture"));
    if (!launches_now) continue;
    broker.lease_store(0);
    EXPECT_TRUE(broker.wait_for(sluice::protocol::MessageType::kDrained, broker.epoch()));
    ++launches;
  }
  EXPECT_GE(launches, 14u + 61u);
}

// Everything that has a hook waits for the end of a hold, unless it is named here.
TEST_F(RouteTableTest, WhatIsHookedWaitsForTheEndOfAHoldOrIsNamedAsPassing) {
  std::set<std::string> passing;
  for (const auto& [reason, symbols] : kPassing) passing.insert(symbols.begin(), symbols.end());
  sluice::test::TestBroker broker(1ull << 30);
  broker.environment_set();
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  size_t waited = 0, passed = 0;
  for (const auto& entry : entries()) {
    if (!is_called(entry)) continue;
    SCOPED_TRACE(entry.symbol);
    broker.lease_store(0);
    broker.hold_store(true);
    ASSERT_TRUE(broker.wait_held());
    const Fate found = fate(broker, entry, named(entry.symbol), [&] {
      broker.hold_store(false);
      broker.lease_store(sluice::protocol::kLeaseOpen);
    });
    EXPECT_EQ(found, passing.count(entry.symbol) != 0 ? Fate::kReturned : Fate::kWaited);
    (found == Fate::kWaited ? waited : passed) += 1;
    capture_end(entry.symbol, named("cuStreamEndCapture"));
  }
  EXPECT_EQ(passed, passing.size());
  EXPECT_EQ(waited + passed + 2, hooks.size());
}

}  // namespace
