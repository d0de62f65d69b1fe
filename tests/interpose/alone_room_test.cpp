// An allocation within the limit of a program that has no broker, for which the driver has no room:
// the driver is asked again. The program starts with SLUICE_MEMORY, over the fake driver.
#include <gtest/gtest.h>
#include <string.h>

#include "tests/interpose/fake_driver.h"

namespace {

int asked, room_at;

CUresult allocate_with_room_at(int question) {
  CUcontext context = nullptr;
  CUdeviceptr pointer = 0;
  EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
  EXPECT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  room_at = question;
  fake.alloc_result = CUDA_ERROR_OUT_OF_MEMORY;
  fake.on_enter = [](const char* function) {
    if (strcmp(function, "an allocation") != 0) return;
    if (++asked == room_at) fake.alloc_result = CUDA_SUCCESS;
  };
  return cuMemAlloc_v2(&pointer, 1 << 20);
}

TEST(AloneRoomTest, TheDriverIsAskedAgain) {
  EXPECT_EQ(allocate_with_room_at(2), CUDA_SUCCESS);
  EXPECT_EQ(asked, 2);
}

TEST(AloneRoomTest, ThatEnds) {
  EXPECT_EQ(allocate_with_room_at(0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_GT(asked, 1);
}

}  // namespace
