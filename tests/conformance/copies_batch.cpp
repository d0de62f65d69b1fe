// Rows of family `copies`: batches of copies.
#include <array>

#include "tests/conformance/copies.h"

namespace conformance {
namespace {

CUmemcpyAttributes attributes(CUmemcpySrcAccessOrder order, unsigned flags = 0) {
  CUmemcpyAttributes a{};
  a.srcAccessOrder = order;
  a.flags = flags;
  return a;
}

/// Three uploads of 16 pinned bytes each.
struct Uploads {
  Uploads() {
    for (std::size_t i = 0; i < 3; ++i) {
      unsigned char* p = pinned_new(16);
      std::memset(p, static_cast<int>(i + 1), 16);
      from[i] = address_of(p);
      to[i] = device_new(Bytes(16, 0));
    }
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  }
  CUresult submit(CUstream stream) {
    return cuMemcpyBatchAsync(to.data(), from.data(), sizes.data(), 3, attrs.data(), first.data(),
                              attrs_count, stream);
  }
  std::array<CUdeviceptr, 3> to{}, from{};
  std::array<std::size_t, 3> sizes{16, 16, 16};
  std::array<CUmemcpyAttributes, 2> attrs{attributes(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM),
                                          attributes(CU_MEMCPY_SRC_ACCESS_ORDER_ANY)};
  std::array<std::size_t, 2> first{0, 2};
  std::size_t attrs_count = 2;
};

ROW(copies, batch_does_all) {
  const Context context;
  Uploads batch;
  const CUstream stream = stream_new();
  MUST(batch.submit(stream));
  MUST(cuStreamSynchronize(stream));
  for (unsigned char i = 0; i < 3; ++i)
    EXPECT_EQ(contents(batch.to[i], 16), Bytes(16, static_cast<unsigned char>(i + 1)));
}

ROW(copies, batch_is_in_stream_order) {
  const Context context;
  Uploads batch;
  batch.attrs_count = 1;
  const CUstream stream = stream_new();
  Gate gate;
  MUST(gate.hold(stream));
  MUST(batch.submit(stream));
  ANSWERS(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
  *reinterpret_cast<unsigned char*>(batch.from[0]) = 77;  // read when its turn comes
  gate.open();
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(contents(batch.to[0], 1)[0], 77U);
}

ROW(copies, batch_reads_during_the_call) {
  const Context context;
  Uploads batch;
  batch.attrs[0] = attributes(CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL);
  batch.attrs_count = 1;
  const CUstream stream = stream_new();
  Bytes local(16, 9);
  batch.from[1] = address_of(local.data());
  Gate gate;
  MUST(gate.hold(stream));
  {
    const Opener opener(gate);  // the call may wait for its turn
    MUST(batch.submit(stream));
    local.assign(16, 8);
    std::memset(reinterpret_cast<void*>(batch.from[0]), 8, 16);
  }
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(contents(batch.to[0], 16), Bytes(16, 1));
  EXPECT_EQ(contents(batch.to[1], 16), Bytes(16, 9));
}

ROW(copies, batch_refuses_the_legacy_stream) {
  const Context context;
  Uploads batch;
  EXPECT_NE(batch.submit(nullptr), CUDA_SUCCESS);
  EXPECT_NE(batch.submit(CU_STREAM_LEGACY), CUDA_SUCCESS);
  ANSWERS(CUDA_SUCCESS, batch.submit(CU_STREAM_PER_THREAD));
}

ROW(copies, batch_needs_attributes_for_all) {
  const Context context;
  Uploads batch;
  const CUstream stream = stream_new();
  batch.first = {1, 2};  // the first copy has none
  ANSWERS(CUDA_ERROR_INVALID_VALUE, batch.submit(stream));
  batch.first = {0, 0};  // each must be greater than the one before
  ANSWERS(CUDA_ERROR_INVALID_VALUE, batch.submit(stream));
  batch.first = {0, 3};  // there is no fourth copy
  ANSWERS(CUDA_ERROR_INVALID_VALUE, batch.submit(stream));
  batch.first = {0, 2};
  batch.attrs_count = 0;
  ANSWERS(CUDA_ERROR_INVALID_VALUE, batch.submit(stream));
}

ROW(copies, batch_access_order_checked) {
  const Context context;
  Uploads batch;
  const CUstream stream = stream_new();
  batch.attrs[1] = attributes(CU_MEMCPY_SRC_ACCESS_ORDER_INVALID);
  ANSWERS(CUDA_ERROR_INVALID_VALUE, batch.submit(stream));
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(contents(batch.to[0], 16), Bytes(16, 0));  // none of it was done
}

ROW(copies, batch_overlap_flag_is_a_hint) {
  const Context context;
  Uploads batch;
  const CUstream stream = stream_new();
  batch.attrs[0].flags = CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE;
  MUST(batch.submit(stream));
  MUST(cuStreamSynchronize(stream));
  EXPECT_EQ(contents(batch.to[0], 16), Bytes(16, 1));
}

CUmemcpy3DOperand linear(CUdeviceptr p, std::size_t row = 0, std::size_t layer = 0) {
  CUmemcpy3DOperand operand{};
  operand.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
  operand.op.ptr.ptr = p;
  operand.op.ptr.rowLength = row;
  operand.op.ptr.layerHeight = layer;
  return operand;
}

CUDA_MEMCPY3D_BATCH_OP operation(const CUmemcpy3DOperand& from, const CUmemcpy3DOperand& to,
                                 const CUextent3D& extent) {
  CUDA_MEMCPY3D_BATCH_OP op{};
  op.src = from;
  op.dst = to;
  op.extent = extent;
  op.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  return op;
}

ROW(copies, batch_of_boxes) {
  const Context context;
  const CUdeviceptr from = device_new(bytes_counted(120)), to = device_new(Bytes(120, 0xff));
  const CUdeviceptr packed = device_new(24);
  MUST(cuCtxSynchronize());
  const CUstream stream = stream_new();
  std::array ops{operation(linear(from, 10, 4), linear(to, 12, 5), {6, 2, 2}),
                 operation(linear(from, 10, 4), linear(packed), {6, 2, 2})};
  MUST(cuMemcpy3DBatchAsync(2, ops.data(), 0, stream));
  MUST(cuStreamSynchronize(stream));
  const Bytes source = bytes_counted(120);
  Bytes expected(120, 0xff), dense;
  for (int z = 0; z < 2; ++z) {
    for (int y = 0; y < 2; ++y) {
      const auto row = source.begin() + (z * 4 + y) * 10;
      std::copy_n(row, 6, expected.begin() + (z * 5 + y) * 12);
      dense.insert(dense.end(), row, row + 6);
    }
  }
  EXPECT_EQ(contents(to, 120), expected);
  EXPECT_EQ(contents(packed, 24), dense);
}

ROW(copies, batch_of_boxes_checked) {
  const Context context;
  const CUdeviceptr from = device_new(Bytes(120, 1)), to = device_new(Bytes(120, 0));
  const CUstream stream = stream_new();
  const auto answers = [&](CUDA_MEMCPY3D_BATCH_OP op, unsigned long long flags = 0) {
    return cuMemcpy3DBatchAsync(1, &op, flags, stream);
  };
  const CUextent3D extent{6, 2, 2};
  ANSWERS(CUDA_ERROR_INVALID_VALUE, answers(operation(linear(from), linear(to), {6, 0, 2})));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, answers(operation(linear(from, 5, 2), linear(to), extent)));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, answers(operation(linear(from), linear(to, 6, 1), extent)));
  ANSWERS(CUDA_ERROR_INVALID_VALUE, answers(operation(linear(from), linear(to), extent), 1));
  CUDA_MEMCPY3D_BATCH_OP op = operation(linear(from), linear(to), extent);
  ANSWERS(CUDA_SUCCESS, answers(op));
  EXPECT_NE(cuMemcpy3DBatchAsync(1, &op, 0, nullptr), CUDA_SUCCESS);
  MUST(cuStreamSynchronize(stream));
}

}  // namespace
}  // namespace conformance
