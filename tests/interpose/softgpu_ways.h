// Every call that takes device memory, for tests of what it does when there is none.
#pragma once

#include <string>

#include "tests/interpose/softgpu_fixture.h"

namespace sluice::test {

// An array of so many MiB.
inline CUDA_ARRAY3D_DESCRIPTOR box_of(size_t mib) {
  CUDA_ARRAY3D_DESCRIPTOR shape{};
  shape.Width = 512;
  shape.Height = 512;
  shape.Depth = mib;
  shape.Format = CU_AD_FORMAT_FLOAT;
  shape.NumChannels = 1;
  return shape;
}

inline CUmemAllocationProp on_device() {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  return properties;
}

// Every allocating call with 70 MiB, of which 68 are left, or with 1 MiB. The output is returned in
// a form that can be compared.
struct Way {
  const char* name;
  CUresult (*call)(size_t mib, uint64_t* out);
};
inline const Way kWays[] = {
    {"cuMemAlloc",
     [](size_t mib, uint64_t* out) {
       return cuMemAlloc(reinterpret_cast<CUdeviceptr*>(out), mib * kMiB);
     }},
    {"cuMemAllocPitch",
     [](size_t mib, uint64_t* out) {
       size_t pitch = 0x77;
       const CUresult result =
           cuMemAllocPitch(reinterpret_cast<CUdeviceptr*>(out), &pitch, kMiB, mib, 4);
       EXPECT_TRUE(result == CUDA_SUCCESS || pitch == 0x77);
       return result;
     }},
    {"cuMemAllocManaged",
     [](size_t mib, uint64_t* out) {
       return cuMemAllocManaged(reinterpret_cast<CUdeviceptr*>(out), mib * kMiB,
                                CU_MEM_ATTACH_GLOBAL);
     }},
    {"cuMemAllocAsync",
     [](size_t mib, uint64_t* out) {
       return cuMemAllocAsync(reinterpret_cast<CUdeviceptr*>(out), mib * kMiB, nullptr);
     }},
    {"cuMemCreate",
     [](size_t mib, uint64_t* out) {
       const CUmemAllocationProp properties = on_device();
       return cuMemCreate(reinterpret_cast<CUmemGenericAllocationHandle*>(out), 2 * mib * kMiB,
                          &properties, 0);
     }},
    {"cuArrayCreate",
     [](size_t mib, uint64_t* out) {
       CUDA_ARRAY_DESCRIPTOR shape{};
       shape.Width = 1024;
       shape.Height = mib * 256;
       shape.Format = CU_AD_FORMAT_FLOAT;
       shape.NumChannels = 1;
       return cuArrayCreate(reinterpret_cast<CUarray*>(out), &shape);
     }},
    {"cuArray3DCreate",
     [](size_t mib, uint64_t* out) {
       const CUDA_ARRAY3D_DESCRIPTOR shape = box_of(mib);
       return cuArray3DCreate(reinterpret_cast<CUarray*>(out), &shape);
     }},
    {"cuMipmappedArrayCreate",
     [](size_t mib, uint64_t* out) {
       const CUDA_ARRAY3D_DESCRIPTOR shape = box_of(mib);
       return cuMipmappedArrayCreate(reinterpret_cast<CUmipmappedArray*>(out), &shape, 2);
     }},
    {"cuModuleLoadData",
     [](size_t mib, uint64_t* out) {
       const std::string text =
           ".version 7.0\n.target sm_70\n.address_size 64\n.visible .global .align 4 .b8 room[" +
           std::to_string(mib * kMiB) + "];\n.visible .entry k()\n{\n  ret;\n}\n";
       return cuModuleLoadData(reinterpret_cast<CUmodule*>(out), text.c_str());
     }},
    {"cuCtxCreate",
     [](size_t mib, uint64_t* out) {
       // It has one size: too much beside what fills the quota, enough without.
       CUdeviceptr filler = 0;
       if (mib > 1) {
         EXPECT_EQ(cuMemAlloc(&filler, kQuota - 2 * kContext + 1), CUDA_SUCCESS);
       }
       const CUresult result = cuCtxCreate(reinterpret_cast<CUcontext*>(out), nullptr, 0, 0);
       EXPECT_EQ(cuMemFree(filler), CUDA_SUCCESS);
       return result;
     }},
};

}  // namespace sluice::test
