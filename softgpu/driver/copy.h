// Copies as the driver API describes them, turned into commands: which ends are valid, what engine
// they take, and when the caller has to wait. Used by all copying entry points and by graph nodes.
#pragma once

#include "softgpu/driver/command.h"

namespace softgpu::driver {

/// What an end of a copy is said to be; kAny is found out from the address.
enum class Side { kAny, kHost, kDevice };

struct CopyRequest {
  CopyCommand copy;
  Side from = Side::kAny, to = Side::kAny;
  bool wait = false;         // the forms without Async
  bool take_source = false;  // the source may go when the call returns
};

/// One end of a copy of a box: where it begins and how its rows and planes lie.
struct CopyEnd {
  std::byte* p = nullptr;
  std::size_t pitch = 0, plane = 0;
  Side side = Side::kAny;
};
/// Bytes, rows, planes.
struct CopyBox {
  std::size_t width, height, depth;
};
void copy_between(const CopyEnd& from, const CopyEnd& to, const CopyBox& box, CopyRequest& request);

CUresult copy_describe(const CUDA_MEMCPY3D& description, CopyCommand& command);
CUresult copy_describe(const CUDA_MEMCPY3D& description, CopyRequest& request);
CUresult copy_describe(const CUDA_MEMCPY3D_PEER& description, CopyRequest& request);

/// One side of a copy from or to an array; x and width in bytes.
struct ArrayPlace {
  CUarray array = nullptr;
  std::size_t x = 0, y = 0, z = 0;
};
/// Checks that the box of that size lies in the array and points `p` to it.
CUresult array_place(const ArrayPlace& place, std::size_t width, std::size_t height,
                     std::size_t depth, std::byte*& p, std::size_t& pitch, std::size_t& plane);

/// Validates `request` and puts it into the stream. An empty box is a valid copy of nothing.
CUresult copy_submit(CopyRequest request, CUstream stream, const char* name);
/// The same for a batch, whose ends have all been checked before anything is submitted.
CUresult copy_check(CopyRequest& request);

/// Batches refuse the legacy default stream: whether `stream` means it here.
bool stream_is_legacy(CUstream stream);
/// The first copies (prefetches) that each of `n` attributes of a batch applies to: they begin with
/// 0 and rise below `count`.
bool batch_indices_valid(const std::size_t* first, std::size_t n, std::size_t count);

/// Waits for everything that was submitted in the context: what is freed may still be in use.
void context_idle(const ContextRef& context);

}  // namespace softgpu::driver
