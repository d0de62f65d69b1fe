// How long texture objects live: as the work that was submitted before their end, in their context
// and nowhere else. What kernels read from them is in tests/conformance (family textures).
#include <string>
#include <utility>
#include <vector>

#include "tests/softgpu/driver/fixture.h"

namespace softgpu_test {
namespace {

/// *p = element `index` of texture `t`.
constexpr char kFetch[] = R"(
.version 9.0
.target sm_75
.address_size 64
.visible .entry fetch(.param .u64 p, .param .u64 t, .param .u32 index)
{
  .reg .b32 %r<8>;
  .reg .b64 %d<4>;
  ld.param.u64 %d1, [p];
  ld.param.u64 %d2, [t];
  ld.param.u32 %r1, [index];
  tex.1d.v4.u32.s32 {%r2, %r3, %r4, %r5}, [%d2, {%r1}];
  st.global.u32 [%d1], %r2;
  ret;
}
)";

CUfunction fetch_kernel() {
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  EXPECT_CU(cuModuleLoadData(&module, kFetch));
  EXPECT_CU(cuModuleGetFunction(&function, module, "fetch"));
  return function;
}

/// A texture on the words 100, 101, 102, 103.
CUtexObject texture_new() {
  CUDA_RESOURCE_DESC resource{};
  resource.resType = CU_RESOURCE_TYPE_LINEAR;
  resource.res.linear.format = CU_AD_FORMAT_UNSIGNED_INT32;
  resource.res.linear.numChannels = 1;
  resource.res.linear.sizeInBytes = 16;
  EXPECT_CU(cuMemAlloc(&resource.res.linear.devPtr, 4096));
  EXPECT_CU(cuMemsetD32(resource.res.linear.devPtr, 7, 1024));
  const std::vector<unsigned> words{100, 101, 102, 103};
  EXPECT_CU(cuMemcpyHtoD(resource.res.linear.devPtr, words.data(), 16));
  const CUDA_TEXTURE_DESC sampling{};
  CUtexObject texture = 0;
  EXPECT_CU(cuTexObjectCreate(&texture, &resource, &sampling, nullptr));
  return texture;
}

class Fetch {
 public:
  Fetch() : function_(fetch_kernel()) { EXPECT_CU(cuMemAlloc(&out_, 4)); }
  CUresult launch(CUtexObject texture, int index, CUstream stream = nullptr) {
    void* arguments[] = {&out_, &texture, &index};
    return cuLaunchKernel(function_, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr);
  }
  unsigned result() const {
    unsigned word = 0;
    EXPECT_CU(cuMemcpyDtoH(&word, out_, 4));
    return word;
  }

 private:
  CUfunction function_;
  CUdeviceptr out_ = 0;
};

/// A stream that waits for a word.
class Held {
 public:
  Held() {
    void* p = nullptr;
    EXPECT_CU(cuMemHostAlloc(&p, 4, 0));
    word_ = static_cast<volatile unsigned*>(p);
    *word_ = 0;
    EXPECT_CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  }
  void close() {
    EXPECT_CU(cuStreamWaitValue32(stream, reinterpret_cast<CUdeviceptr>(word_), 1,
                                  CU_STREAM_WAIT_VALUE_EQ));
  }
  void open() { __atomic_store_n(word_, 1U, __ATOMIC_RELEASE); }
  CUstream stream = nullptr;

 private:
  volatile unsigned* word_;
};

TEST_F(Driver, ATextureStaysForTheLaunchesBeforeItsEnd) {
  WithContext([](CUcontext) {
    Fetch fetch;
    Held held;
    const CUtexObject texture = texture_new();
    held.close();
    ASSERT_CU(fetch.launch(texture, 2, held.stream));
    ASSERT_CU(cuTexObjectDestroy(texture));
    CUDA_RESOURCE_DESC told{};
    EXPECT_EQ(cuTexObjectGetResourceDesc(&told, texture), CUDA_ERROR_INVALID_VALUE);
    held.open();
    ASSERT_CU(cuStreamSynchronize(held.stream));
    EXPECT_EQ(fetch.result(), 102u);
    // And no longer: the work that held it is done.
    ASSERT_CU(fetch.launch(texture, 2, held.stream));
    EXPECT_EQ(cuStreamSynchronize(held.stream), CUDA_ERROR_ILLEGAL_ADDRESS);
  });
}

TEST_F(Driver, ATextureStaysForTheGraphLaunchesBeforeItsEnd) {
  WithContext([](CUcontext) {
    Fetch fetch;
    Held held;
    const CUtexObject texture = texture_new();
    CUgraph graph = nullptr;
    CUgraphExec instance = nullptr;
    ASSERT_CU(cuStreamBeginCapture(held.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    ASSERT_CU(fetch.launch(texture, 1, held.stream));
    ASSERT_CU(cuStreamEndCapture(held.stream, &graph));
    ASSERT_CU(cuGraphInstantiate(&instance, graph, 0));
    held.close();
    ASSERT_CU(cuGraphLaunch(instance, held.stream));
    ASSERT_CU(cuTexObjectDestroy(texture));
    held.open();
    ASSERT_CU(cuStreamSynchronize(held.stream));
    EXPECT_EQ(fetch.result(), 101u);
  });
}

TEST_F(Driver, ATextureIsOfItsContextAlone) {
  WithContext([](CUcontext first) {
    const CUtexObject texture = texture_new();
    CUcontext second = nullptr;
    ASSERT_CU(cuCtxCreate(&second, nullptr, 0, 0));
    Fetch fetch;
    ASSERT_CU(fetch.launch(texture, 0));
    EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    // The fault is the other context's.
    ASSERT_CU(cuCtxDestroy(second));
    ASSERT_CU(cuCtxSetCurrent(first));
    Fetch own;
    ASSERT_CU(own.launch(texture, 3));
    EXPECT_EQ(own.result(), 103u);
  });
}

TEST_F(Driver, ATextureEndsWithItsContext) {
  WithContext([](CUcontext first) {
    const CUtexObject texture = texture_new();
    CUcontext second = nullptr;
    ASSERT_CU(cuCtxCreate(&second, nullptr, 0, 0));
    ASSERT_CU(cuCtxDestroy(first));
    CUDA_RESOURCE_DESC told{};
    EXPECT_EQ(cuTexObjectGetResourceDesc(&told, texture), CUDA_ERROR_INVALID_VALUE);
  });
}

TEST_F(Driver, OutsideOfPlainMemoryATextureIsZero) {
  WithContext([](CUcontext) {
    Fetch fetch;
    const CUtexObject texture = texture_new();
    for (const int index : {-1, 4, 1000000, -2147483647}) {
      ASSERT_CU(fetch.launch(texture, index));
      EXPECT_EQ(fetch.result(), 0u) << index;
    }
  });
}

// The programming guide says that weights have eight bits, not how they are rounded to these.
TEST_F(Driver, WeightsAreRoundedToTheNearest) {
  WithContext([](CUcontext) {
    constexpr char kLine[] = R"(
.version 9.0
.target sm_75
.address_size 64
.visible .entry line(.param .u64 p, .param .u64 t, .param .f32 x)
{
  .reg .f32 %f<8>;
  .reg .b64 %d<4>;
  ld.param.u64 %d1, [p];
  ld.param.u64 %d2, [t];
  ld.param.f32 %f1, [x];
  tex.1d.v4.f32.f32 {%f2, %f3, %f4, %f5}, [%d2, {%f1}];
  st.global.f32 [%d1], %f2;
  ret;
}
)";
    CUmodule module = nullptr;
    CUfunction line = nullptr;
    ASSERT_CU(cuModuleLoadData(&module, kLine));
    ASSERT_CU(cuModuleGetFunction(&line, module, "line"));
    CUDA_ARRAY3D_DESCRIPTOR shape{};
    shape.Width = 2;
    shape.Format = CU_AD_FORMAT_FLOAT;
    shape.NumChannels = 1;
    CUDA_RESOURCE_DESC resource{};
    CUDA_TEXTURE_DESC sampling{};
    sampling.filterMode = CU_TR_FILTER_MODE_LINEAR;
    ASSERT_CU(cuArray3DCreate(&resource.res.array.hArray, &shape));
    const float texels[] = {0, 256};
    ASSERT_CU(cuMemcpyHtoA(resource.res.array.hArray, 0, texels, sizeof texels));
    CUtexObject texture = 0;
    ASSERT_CU(cuTexObjectCreate(&texture, &resource, &sampling, nullptr));
    CUdeviceptr out = 0;
    ASSERT_CU(cuMemAlloc(&out, 4));
    for (const auto& [steps, wanted] : {std::pair(0.25F, 0.0F), std::pair(0.75F, 1.0F),
                                        std::pair(9.5F, 10.0F), std::pair(255.75F, 256.0F)}) {
      float x = 0.5F + steps / 256, got = -1;
      void* arguments[] = {&out, &texture, &x};
      ASSERT_CU(cuLaunchKernel(line, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr));
      ASSERT_CU(cuMemcpyDtoH(&got, out, 4));
      EXPECT_EQ(got, wanted) << steps;
    }
  });
}

TEST_F(Driver, WhatIsNotThereOfTexturesIsRefused) {
  WithContext([](CUcontext) {
    CUDA_ARRAY3D_DESCRIPTOR shape{};
    shape.Width = shape.Height = 8;
    shape.Format = CU_AD_FORMAT_BC1_UNORM;
    shape.NumChannels = 4;
    CUDA_RESOURCE_DESC resource{};
    ASSERT_CU(cuArray3DCreate(&resource.res.array.hArray, &shape));
    CUDA_TEXTURE_DESC sampling{};
    CUtexObject texture = 0;
    EXPECT_EQ(cuTexObjectCreate(&texture, &resource, &sampling, nullptr), CUDA_ERROR_NOT_SUPPORTED);
    shape.Format = CU_AD_FORMAT_UNSIGNED_INT8;
    ASSERT_CU(cuArray3DCreate(&resource.res.array.hArray, &shape));
    sampling.flags = CU_TRSF_SRGB;
    EXPECT_EQ(cuTexObjectCreate(&texture, &resource, &sampling, nullptr), CUDA_ERROR_NOT_SUPPORTED);
    sampling.flags = 0;
    EXPECT_EQ(cuTexObjectCreate(&texture, &resource, &sampling, nullptr), CUDA_SUCCESS);
  });
}

}  // namespace
}  // namespace softgpu_test
