// Entry points: batches of copies. All of a batch is checked before any of it is submitted; its
// copies then follow each other in the stream, which the unordered contract allows.
#include "softgpu/driver/array.h"
#include "softgpu/driver/capture.h"
#include "softgpu/driver/copy.h"

using namespace softgpu::driver;

namespace {

/// SIZE_MAX in *failed: the fault is not that of one copy.
struct Batch {
  std::vector<CopyRequest> copies;
  std::size_t failed = SIZE_MAX;
};

CUresult batch_enter(CUstream handle, const char* name) {
  ContextRef context;
  StreamRef stream;
  const CUresult result = enter(context, name);
  if (result != CUDA_SUCCESS) return result;
  if (stream_is_legacy(handle)) return CUDA_ERROR_INVALID_VALUE;
  const CUresult found = stream_find(handle, context, stream);
  return found == CUDA_SUCCESS ? capture_stream_check(*stream, name) : found;
}

bool order_valid(CUmemcpySrcAccessOrder order) {
  return order == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM ||
         order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL ||
         order == CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
}

bool flags_valid(unsigned flags) {
  return (flags & ~static_cast<unsigned>(CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE)) == 0;
}

CUresult batch_submit(Batch batch, CUstream stream, const char* name) {
  for (CopyRequest& request : batch.copies) {
    const CUresult result = copy_submit(std::move(request), stream, name);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

CUresult add(Batch& batch, CopyRequest request, CUmemcpySrcAccessOrder order, unsigned flags) {
  request.take_source = order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
  CUresult result =
      order_valid(order) && flags_valid(flags) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS) result = copy_check(request);
  if (result != CUDA_SUCCESS) batch.failed = batch.copies.size();
  batch.copies.push_back(std::move(request));
  return result;
}

CUresult copy_batch(Batch& batch, const CUdeviceptr* to, const CUdeviceptr* from,
                    const std::size_t* sizes, std::size_t count, const CUmemcpyAttributes* attrs,
                    const std::size_t* first, std::size_t attrs_count) {
  if (to == nullptr || from == nullptr || sizes == nullptr || count == 0 || attrs == nullptr ||
      !batch_indices_valid(first, attrs_count, count))
    return CUDA_ERROR_INVALID_VALUE;
  std::size_t attr = 0;
  for (std::size_t i = 0; i < count; ++i) {
    while (attr + 1 < attrs_count && first[attr + 1] <= i) ++attr;
    CopyRequest request;
    request.copy.to = reinterpret_cast<std::byte*>(to[i]);
    request.copy.from = reinterpret_cast<const std::byte*>(from[i]);
    request.copy.width = sizes[i];
    const CUresult result =
        add(batch, std::move(request), attrs[attr].srcAccessOrder, attrs[attr].flags);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

/// Bytes of the elements that an operation counts in; 0: its arrays do not match.
std::size_t operation_element(const CUDA_MEMCPY3D_BATCH_OP& op) {
  std::size_t bytes = 0;
  for (const CUmemcpy3DOperand* operand : {&op.src, &op.dst}) {
    if (operand->type != CU_MEMCPY_OPERAND_TYPE_ARRAY) continue;
    ArrayRef array;
    if (Array::find(operand->op.array.array, array) != CUDA_SUCCESS) return 0;
    const std::size_t element = array->element().bytes;
    if (element == 0 || (bytes != 0 && bytes != element)) return 0;
    bytes = element;
  }
  return bytes == 0 ? 1 : bytes;
}

CUresult operand_resolve(const CUmemcpy3DOperand& operand, const CUextent3D& extent,
                         std::size_t element, CopyEnd& out) {
  if (operand.type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {
    const CUoffset3D& offset = operand.op.array.offset;
    out.side = Side::kDevice;
    return array_place({operand.op.array.array, offset.x * element, offset.y, offset.z},
                       extent.width * element, extent.height, extent.depth, out.p, out.pitch,
                       out.plane);
  }
  if (operand.type != CU_MEMCPY_OPERAND_TYPE_POINTER) return CUDA_ERROR_INVALID_VALUE;
  const auto& linear = operand.op.ptr;
  if ((linear.rowLength != 0 && linear.rowLength < extent.width) ||
      (linear.layerHeight != 0 && linear.layerHeight < extent.height))
    return CUDA_ERROR_INVALID_VALUE;
  out.p = reinterpret_cast<std::byte*>(linear.ptr);
  out.pitch = (linear.rowLength != 0 ? linear.rowLength : extent.width) * element;
  out.plane = out.pitch * (linear.layerHeight != 0 ? linear.layerHeight : extent.height);
  return CUDA_SUCCESS;
}

CUresult operation_describe(const CUDA_MEMCPY3D_BATCH_OP& op, CopyRequest& request) {
  if (op.extent.width == 0 || op.extent.height == 0 || op.extent.depth == 0)
    return CUDA_ERROR_INVALID_VALUE;
  const std::size_t element = operation_element(op);
  if (element == 0) return CUDA_ERROR_INVALID_VALUE;
  CopyEnd from, to;
  CUresult result = operand_resolve(op.src, op.extent, element, from);
  if (result == CUDA_SUCCESS) result = operand_resolve(op.dst, op.extent, element, to);
  if (result != CUDA_SUCCESS) return result;
  copy_between(from, to, {op.extent.width * element, op.extent.height, op.extent.depth}, request);
  return CUDA_SUCCESS;
}

CUresult copy_batch_3d(Batch& batch, std::size_t count, const CUDA_MEMCPY3D_BATCH_OP* ops,
                       unsigned long long flags) {
  if (ops == nullptr || count == 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < count; ++i) {
    CopyRequest request;
    CUresult result = operation_describe(ops[i], request);
    if (result != CUDA_SUCCESS) {
      batch.failed = i;
      return result;
    }
    result = add(batch, std::move(request), ops[i].srcAccessOrder, ops[i].flags);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

void failed_tell(std::size_t* out, const Batch& batch, CUresult result) {
  if (out != nullptr && result != CUDA_SUCCESS) *out = batch.failed;
}

}  // namespace

CUresult cuMemcpyBatchAsync_v2(CUdeviceptr* to, CUdeviceptr* from, std::size_t* sizes,
                               std::size_t count, CUmemcpyAttributes* attrs, std::size_t* first,
                               std::size_t attrs_count, CUstream stream) {
  return cuMemcpyBatchAsync(to, from, sizes, count, attrs, first, attrs_count, nullptr, stream);
}

CUresult cuMemcpyBatchAsync(CUdeviceptr* to, CUdeviceptr* from, std::size_t* sizes,
                            std::size_t count, CUmemcpyAttributes* attrs, std::size_t* first,
                            std::size_t attrs_count, std::size_t* failed, CUstream stream) {
  Batch batch;
  CUresult result = batch_enter(stream, __func__);
  if (result == CUDA_SUCCESS)
    result = copy_batch(batch, to, from, sizes, count, attrs, first, attrs_count);
  failed_tell(failed, batch, result);
  return result == CUDA_SUCCESS ? batch_submit(std::move(batch), stream, __func__) : result;
}

CUresult cuMemcpy3DBatchAsync_v2(std::size_t count, CUDA_MEMCPY3D_BATCH_OP* ops,
                                 unsigned long long flags, CUstream stream) {
  return cuMemcpy3DBatchAsync(count, ops, nullptr, flags, stream);
}

CUresult cuMemcpy3DBatchAsync(std::size_t count, CUDA_MEMCPY3D_BATCH_OP* ops, std::size_t* failed,
                              unsigned long long flags, CUstream stream) {
  Batch batch;
  CUresult result = batch_enter(stream, __func__);
  if (result == CUDA_SUCCESS) result = copy_batch_3d(batch, count, ops, flags);
  failed_tell(failed, batch, result);
  return result == CUDA_SUCCESS ? batch_submit(std::move(batch), stream, __func__) : result;
}
