// Every call that takes device memory, for tests of what it does when there is none.
#pragma once

#include <dlfcn.h>

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

// That of the current context.
inline CUdevice device_here() {
  CUdevice device = 0;
  EXPECT_EQ(cuCtxGetDevice(&device), CUDA_SUCCESS);
  return device;
}

inline CUmemAllocationProp on_device(int device = device_here()) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  return properties;
}

// An entry point of another ABI than the one that its plain name means here.
template <class F>
F exported(const char* symbol) {
  return reinterpret_cast<F>(dlsym(RTLD_DEFAULT, symbol));
}

// What cuda.h shows only to drivers: descriptors of the first ABI.
struct PlaneV1 {
  unsigned int width, height;
  CUarray_format format;
  unsigned int channels;
};
struct BoxV1 {
  unsigned int width, height, depth;
  CUarray_format format;
  unsigned int channels, flags;
};

inline CUmemoryPool default_pool() {
  CUmemoryPool pool = nullptr;
  EXPECT_EQ(cuDeviceGetDefaultMemPool(&pool, device_here()), CUDA_SUCCESS);
  return pool;
}

// Code with a variable of so many bytes and a kernel that does nothing.
inline std::string code_with_room(size_t bytes) {
  return ".version 7.0\n.target sm_70\n.address_size 64\n.visible .global .align 4 .b8 room[" +
         std::to_string(bytes) + "];\n.visible .entry k()\n{\n  ret;\n}\n";
}

// The same on any thread, whichever context is current there. A pool keeps what is freed.
inline CUresult pointer_give(uint64_t pointer) { return cuMemFree(pointer); }
inline CUresult pooled_give(uint64_t pointer) {
  int device = -1;
  EXPECT_EQ(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer),
            CUDA_SUCCESS);
  CUmemoryPool pool = nullptr;
  EXPECT_EQ(cuDeviceGetDefaultMemPool(&pool, device), CUDA_SUCCESS);
  const CUresult result = cuMemFree(pointer);
  return result == CUDA_SUCCESS ? cuMemPoolTrimTo(pool, 0) : result;
}
inline CUresult physical_give(uint64_t handle) { return cuMemRelease(handle); }
inline CUresult array_give(uint64_t array) {
  return cuArrayDestroy(reinterpret_cast<CUarray>(array));
}
inline CUresult levels_give(uint64_t array) {
  return cuMipmappedArrayDestroy(reinterpret_cast<CUmipmappedArray>(array));
}
inline CUresult module_give(uint64_t module) {
  return cuModuleUnload(reinterpret_cast<CUmodule>(module));
}
inline CUresult context_give(uint64_t context) {
  return cuCtxDestroy(reinterpret_cast<CUcontext>(context));
}

// A context has one size: too much beside what fills the quota, enough without.
template <class Create>
CUresult context_way(size_t mib, Create create) {
  CUdeviceptr filler = 0;
  if (mib > 1) {
    EXPECT_EQ(cuMemAlloc(&filler, kQuota - 2 * kContext + 1), CUDA_SUCCESS);
  }
  const CUresult result = create();
  EXPECT_EQ(cuMemFree(filler), CUDA_SUCCESS);
  return result;
}

// Every allocating call with 70 MiB, of which 68 are left, or with 1 MiB, on the current context's
// GPU. The output is returned in a form that can be compared.
struct Way {
  const char* name;
  CUresult (*call)(size_t mib, uint64_t* out);
  CUresult (*give)(uint64_t out);
  bool waits_for_room = true;
};
inline const Way kWays[] = {
    {"cuMemAlloc_v2",
     [](size_t mib, uint64_t* out) {
       return cuMemAlloc(reinterpret_cast<CUdeviceptr*>(out), mib * kMiB);
     },
     pointer_give},
    {"cuMemAllocPitch_v2",
     [](size_t mib, uint64_t* out) {
       size_t pitch = 0x77;
       const CUresult result =
           cuMemAllocPitch(reinterpret_cast<CUdeviceptr*>(out), &pitch, kMiB, mib, 4);
       EXPECT_TRUE(result == CUDA_SUCCESS || pitch == 0x77);
       return result;
     },
     pointer_give},
    {"cuMemAllocManaged",
     [](size_t mib, uint64_t* out) {
       return cuMemAllocManaged(reinterpret_cast<CUdeviceptr*>(out), mib * kMiB,
                                CU_MEM_ATTACH_GLOBAL);
     },
     pointer_give},
    // Pools grow by 2 MiB, of which nothing is to be left for the next one.
    {"cuMemAllocAsync",
     [](size_t mib, uint64_t* out) {
       return cuMemAllocAsync(reinterpret_cast<CUdeviceptr*>(out), 2 * mib * kMiB, nullptr);
     },
     pooled_give},
    {"cuMemAllocAsync_ptsz",
     [](size_t mib, uint64_t* out) {
       return exported<decltype(&cuMemAllocAsync)>("cuMemAllocAsync_ptsz")(
           reinterpret_cast<CUdeviceptr*>(out), 2 * mib * kMiB, nullptr);
     },
     pooled_give},
    {"cuMemAllocFromPoolAsync",
     [](size_t mib, uint64_t* out) {
       return cuMemAllocFromPoolAsync(reinterpret_cast<CUdeviceptr*>(out), 2 * mib * kMiB,
                                      default_pool(), nullptr);
     },
     pooled_give},
    {"cuMemAllocFromPoolAsync_ptsz",
     [](size_t mib, uint64_t* out) {
       return exported<decltype(&cuMemAllocFromPoolAsync)>("cuMemAllocFromPoolAsync_ptsz")(
           reinterpret_cast<CUdeviceptr*>(out), 2 * mib * kMiB, default_pool(), nullptr);
     },
     pooled_give},
    {"cuMemCreate",
     [](size_t mib, uint64_t* out) {
       const CUmemAllocationProp properties = on_device();
       return cuMemCreate(reinterpret_cast<CUmemGenericAllocationHandle*>(out), 2 * mib * kMiB,
                          &properties, 0);
     },
     physical_give},
    {"cuArrayCreate_v2",
     [](size_t mib, uint64_t* out) {
       CUDA_ARRAY_DESCRIPTOR shape{};
       shape.Width = 1024;
       shape.Height = mib * 256;
       shape.Format = CU_AD_FORMAT_FLOAT;
       shape.NumChannels = 1;
       return cuArrayCreate(reinterpret_cast<CUarray*>(out), &shape);
     },
     array_give},
    {"cuArrayCreate",
     [](size_t mib, uint64_t* out) {
       const PlaneV1 shape{1024, static_cast<unsigned>(mib) * 256, CU_AD_FORMAT_FLOAT, 1};
       return exported<CUresult (*)(void*, const PlaneV1*)>("cuArrayCreate")(out, &shape);
     },
     array_give},
    {"cuArray3DCreate",
     [](size_t mib, uint64_t* out) {
       const BoxV1 shape{512, 512, static_cast<unsigned>(mib), CU_AD_FORMAT_FLOAT, 1, 0};
       return exported<CUresult (*)(void*, const BoxV1*)>("cuArray3DCreate")(out, &shape);
     },
     array_give},
    {"cuArray3DCreate_v2",
     [](size_t mib, uint64_t* out) {
       const CUDA_ARRAY3D_DESCRIPTOR shape = box_of(mib);
       return cuArray3DCreate(reinterpret_cast<CUarray*>(out), &shape);
     },
     array_give},
    {"cuMipmappedArrayCreate",
     [](size_t mib, uint64_t* out) {
       const CUDA_ARRAY3D_DESCRIPTOR shape = box_of(mib);
       return cuMipmappedArrayCreate(reinterpret_cast<CUmipmappedArray*>(out), &shape, 2);
     },
     levels_give},
    {"cuModuleLoadData",
     [](size_t mib, uint64_t* out) {
       return cuModuleLoadData(reinterpret_cast<CUmodule*>(out),
                               code_with_room(mib * kMiB).c_str());
     },
     module_give,
     // It is not memory that a program asks for by its size.
     false},
    {"cuCtxCreate_v2",
     [](size_t mib, uint64_t* out) {
       return context_way(mib, [&] {
         return exported<CUresult (*)(void*, unsigned, CUdevice)>("cuCtxCreate_v2")(out, 0,
                                                                                    device_here());
       });
     },
     context_give},
    {"cuCtxCreate_v3",
     [](size_t mib, uint64_t* out) {
       return context_way(mib, [&] {
         return exported<CUresult (*)(void*, void*, int, unsigned, CUdevice)>("cuCtxCreate_v3")(
             out, nullptr, 0, 0, device_here());
       });
     },
     context_give},
    {"cuCtxCreate_v4",
     [](size_t mib, uint64_t* out) {
       return context_way(mib, [&] {
         return cuCtxCreate(reinterpret_cast<CUcontext*>(out), nullptr, 0, device_here());
       });
     },
     context_give},
};

// Takes back what few of fit into the quota, so that the other ways have room.
inline void large_undo(const Way& way, uint64_t out, CUcontext current) {
  if (std::string(way.name).rfind("cuCtxCreate", 0) != 0) return;
  EXPECT_EQ(cuCtxDestroy(reinterpret_cast<CUcontext>(out)), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSetCurrent(current), CUDA_SUCCESS);
}

}  // namespace sluice::test
