// A call through every hook, with and without a tenant, over a driver that only notes its calls: it
// ends in the function of its own ABI, with its arguments as they were, and what else is asked of
// the driver is listed (routes_beside.cpp).
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "tests/interpose/routes_beside.h"

namespace {

using namespace sluice::test;

TEST_F(RouteTableTest, WithoutATenantEveryHookMakesItsOwnCallAndNoOther) {
  unsetenv("SLUICE_TENANT");
  setenv("SLUICE_SOCKET", "/nonexistent/sluice.sock", 1);
  size_t called = 0;
  for (const auto& entry : entries()) {
    if (!is_called(entry)) continue;
    SCOPED_TRACE(entry.symbol);
    void* hook = named(entry.symbol);
    ASSERT_EQ(object_of(hook), "libsluice.so");
    calls_forget();
    const Call call = entry.call(hook);
    EXPECT_EQ(call.result, CUDA_SUCCESS);
    ASSERT_EQ(fake_calls.count, 1) << names_of_recorded();
    EXPECT_TRUE(same_call(fake_calls.calls[0], entry.real, call)) << names_of_recorded();
    ++called;
  }
  EXPECT_EQ(called + 2, hooks.size());
}

TEST_F(RouteTableTest, ForATenantEveryHookReachesItsOwnAbi) {
  sluice::test::TestBroker broker(1ull << 30);
  broker.lease_store(sluice::protocol::kLeaseOpen);
  broker.environment_set();
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  size_t called = 0;
  for (const auto& entry : entries()) {
    if (!is_called(entry)) continue;
    SCOPED_TRACE(entry.symbol);
    calls_forget();
    const Call call = entry.call(named(entry.symbol));
    EXPECT_EQ(call.result, CUDA_SUCCESS);
    expect_only_listed(entry, &call, gettid());
    ++called;
  }
  EXPECT_EQ(called + 2, hooks.size());
  EXPECT_EQ(broker.registrations(), 1);
}

// Four names mean one function when compiled and another when asked for at the version of this
// toolkit, with other arguments; and a stream's twin is another again.
TEST_F(RouteTableTest, NamesThatChangedTheirArgumentsAreCalledWithTheRightOnes) {
  sluice::test::TestBroker broker(1ull << 30);
  broker.lease_store(sluice::protocol::kLeaseOpen);
  broker.environment_set();
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  const Request traps[] = {
      {"cuCtxGetDevice", 12090, 0, "cuCtxGetDevice"},
      {"cuCtxGetDevice", 13000, 0, "cuCtxGetDevice_v2"},
      {"cuCtxSynchronize", 12090, 0, "cuCtxSynchronize"},
      {"cuCtxSynchronize", 13000, 0, "cuCtxSynchronize_v2"},
      {"cuStreamGetCtx", 12040, 0, "cuStreamGetCtx"},
      {"cuStreamGetCtx", 12040, 2, "cuStreamGetCtx_ptsz"},
      {"cuStreamGetCtx", 13000, 0, "cuStreamGetCtx_v2"},
      {"cuStreamGetCtx", 13000, 2, "cuStreamGetCtx_v2_ptsz"},
      {"cuGraphInstantiate", 10000, 0, "cuGraphInstantiate"},
      {"cuGraphInstantiate", 13000, 0, "cuGraphInstantiate_v2"},
      {"cuGraphInstantiateWithFlags", 13000, 0, "cuGraphInstantiateWithFlags"},
  };
  for (const Request& trap : traps) {
    SCOPED_TRACE(trap.symbol);
    void* pointer = nullptr;
    ASSERT_EQ(cuGetProcAddress_v2(trap.base.c_str(), &pointer, trap.version, trap.flags, nullptr),
              CUDA_SUCCESS);
    EXPECT_EQ(object_of(pointer), owner(trap.symbol));
    const auto entry = std::find_if(entries().begin(), entries().end(),
                                    [&](const auto& one) { return trap.symbol == one.symbol; });
    ASSERT_NE(entry, entries().end());
    calls_forget();
    const Call call = entry->call(pointer);
    EXPECT_EQ(call.result, CUDA_SUCCESS);
    expect_only_listed(*entry, &call, gettid());
  }
}

}  // namespace
