// Whole tables, under the preloaded shim over a driver that only notes its calls: every request
// that the CUDA runtime makes, and every version and flag of every name.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "tests/interpose/routes_table.h"

namespace {

using namespace sluice::test;

using Gpa11030 = decltype(&cuGetProcAddress);
using Gpa12000 = decltype(&cuGetProcAddress_v2);

/// NVIDIA's rule, from the reference list; "" where there is nothing old enough.
std::string selected(const std::multimap<std::string, Entry>& all, const std::string& base,
                     int version, cuuint64_t flags) {
  const bool wants = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  for (int pass = wants; pass >= 0; --pass) {
    const Entry* best = nullptr;
    for (auto [i, end] = all.equal_range(base); i != end; ++i) {
      const Entry& one = i->second;
      if (one.per_thread == (pass == 1) && one.since <= version &&
          (best == nullptr || one.since > best->since)) {
        best = &one;
      }
    }
    if (best != nullptr) return best->symbol;
  }
  return "";
}

TEST_F(RouteTableTest, EveryRequestOfTheRuntimeGetsTheHookOfItsAbi) {
  const auto requests = runtime_requests();
  ASSERT_EQ(requests.size(), 439u);
  // As the runtime goes: dlsym for the first, then both ABIs from the answer of that.
  const auto first = reinterpret_cast<Gpa12000>(named("cuGetProcAddress_v2"));
  void *old = nullptr, *now = nullptr;
  ASSERT_EQ(first("cuGetProcAddress", &old, 11030, 0, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(first("cuGetProcAddress", &now, 12000, 0, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(old, reinterpret_cast<void*>(&cuGetProcAddress));
  EXPECT_EQ(now, reinterpret_cast<void*>(&cuGetProcAddress_v2));
  size_t hooked = 0;
  for (const Request& request : requests) {
    SCOPED_TRACE(request.base + " " + std::to_string(request.version) + " " +
                 std::to_string(request.flags));
    void *by_first = nullptr, *by_old = nullptr, *by_now = nullptr;
    auto status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    EXPECT_EQ(first(request.base.c_str(), &by_first, request.version, request.flags, nullptr),
              CUDA_SUCCESS);
    EXPECT_EQ(reinterpret_cast<Gpa11030>(old)(request.base.c_str(), &by_old, request.version,
                                              request.flags),
              CUDA_SUCCESS);
    EXPECT_EQ(reinterpret_cast<Gpa12000>(now)(request.base.c_str(), &by_now, request.version,
                                              request.flags, &status),
              CUDA_SUCCESS);
    EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SUCCESS);
    EXPECT_EQ(by_now, named(request.symbol));
    EXPECT_EQ(by_first, by_now);
    EXPECT_EQ(by_old, by_now);
    EXPECT_EQ(object_of(by_now), owner(request.symbol));
    hooked += hooks.count(request.symbol);
  }
  EXPECT_GT(hooked, 150u);
}

// The list of requests is what the toolkit's own runtime asks for. It gets no further here: the
// driver has none of NVIDIA's private tables.
TEST_F(RouteTableTest, TheRuntimeOfTheToolkitMakesTheListedRequests) {
  void* runtime = dlopen(SLUICE_CUDART, RTLD_NOW | RTLD_LOCAL);
  if (runtime == nullptr) GTEST_SKIP() << "no CUDA runtime here: " << dlerror();
  const auto count = reinterpret_cast<int (*)(int*)>(dlsym(runtime, "cudaGetDeviceCount"));
  ASSERT_NE(count, nullptr);
  int devices = 0;
  fake_lookup_count = 0;
  EXPECT_NE(count(&devices), 0);
  using Key = std::tuple<std::string, int, cuuint64_t>;
  std::set<Key> listed, made;
  for (const Request& one : runtime_requests()) listed.emplace(one.base, one.version, one.flags);
  ASSERT_LT(fake_lookup_count, kFakeLookupsMax);
  for (int i = 0; i < fake_lookup_count; ++i) {
    const FakeLookup& one = fake_lookups[i];
    // It asks for nothing first, to see whether the driver is the toolkit's stub.
    if (one.symbol[0] != '\0') made.emplace(one.symbol, one.version, one.flags);
  }
  for (const auto& [symbol, version, flags] : made) {
    EXPECT_EQ(listed.count({symbol, version, flags}), 1u)
        << "not listed: " << symbol << " " << version << " " << flags;
  }
  for (const auto& [symbol, version, flags] : listed) {
    EXPECT_EQ(made.count({symbol, version, flags}), 1u)
        << "not made: " << symbol << " " << version << " " << flags;
  }
}

TEST_F(RouteTableTest, EveryVersionAndFlagOfEveryName) {
  const auto all = families();
  std::set<int> versions{1000, CUDA_VERSION};
  for (const auto& [base, entry] : all) versions.insert({entry.since - 1, entry.since});
  std::set<std::string> bases;
  for (const auto& [base, entry] : all) bases.insert(base);
  ASSERT_GT(bases.size(), 450u);
  ASSERT_GT(versions.size(), 40u);
  for (const std::string& base : bases) {
    for (const int version : versions) {
      for (const cuuint64_t flags : {0, 1, 2}) {
        const std::string symbol = selected(all, base, version, flags);
        void* pointer = nullptr;
        auto status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
        ASSERT_EQ(cuGetProcAddress_v2(base.c_str(), &pointer, version, flags, &status),
                  CUDA_SUCCESS);
        ASSERT_EQ(pointer, symbol.empty() ? nullptr : named(symbol))
            << base << " " << version << " " << flags << " should be " << symbol;
        ASSERT_EQ(status, symbol.empty() ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                         : CU_GET_PROC_ADDRESS_SUCCESS);
      }
    }
  }
}

// A driver may answer with a function that its dlsym does not know. Version and flags then tell
// which one it is, unless the request is newer than the shim's table.
TEST_F(RouteTableTest, FunctionsThatOnlyTheDriverKnowsAreToldByVersionAndFlags) {
  void* now = nullptr;
  ASSERT_EQ(cuGetProcAddress_v2("cuInit", &now, 12000, 0, nullptr), CUDA_SUCCESS);
  fake_lookup_private = 1;
  for (const Request& request : runtime_requests()) {
    SCOPED_TRACE(request.base + " " + std::to_string(request.version));
    void *pointer = nullptr, *newer = nullptr;
    ASSERT_EQ(cuGetProcAddress_v2(request.base.c_str(), &pointer, request.version, request.flags,
                                  nullptr),
              CUDA_SUCCESS);
    if (hooks.count(request.symbol) != 0) {
      EXPECT_EQ(pointer, named(request.symbol));
    } else {
      EXPECT_EQ(object_of(pointer), "libcuda.so.1");
    }
    ASSERT_EQ(cuGetProcAddress_v2(request.base.c_str(), &newer, CUDA_VERSION + 1000, request.flags,
                                  nullptr),
              CUDA_SUCCESS);
    EXPECT_EQ(object_of(newer), "libcuda.so.1");
  }
}

// Every program of the runtime asks for all of them: what is counted as unknown must be news.
TEST_F(RouteTableTest, WhatTheRuntimeAsksForIsNotUnknown) {
  sluice::test::TestBroker broker(1ull << 30);
  broker.environment_set();
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  const auto ask = [](const Request& request, int version) {
    void* pointer = nullptr;
    ASSERT_EQ(cuGetProcAddress_v2(request.base.c_str(), &pointer, version, request.flags, nullptr),
              CUDA_SUCCESS);
    ASSERT_NE(pointer, nullptr);
  };
  const auto seen = [&] { return broker.claims().slots[0].unhooked_seen.load(); };
  const auto requests = runtime_requests();
  for (const Request& request : requests) ask(request, request.version);
  sleep(1);  // the helper tells at least every half second
  EXPECT_EQ(seen(), 0u);
  // A function of a newer driver, by a name that is known.
  fake_lookup_private = 1;
  ask(requests.front(), CUDA_VERSION + 1000);
  for (int i = 0; i < 500 && seen() == 0; ++i) usleep(10'000);
  EXPECT_EQ(seen(), 1u);
}

}  // namespace
