// Entry points: kernel launches.
#include <cstdlib>
#include <cstring>

#include "softgpu/driver/launch.h"
#include "softgpu/driver/occupancy.h"
#include "softgpu/driver/profile.h"

namespace softgpu::driver {
namespace {

CUresult shape_check(const LaunchRequest& r) {
  if (r.grid.x == 0 || r.grid.y == 0 || r.grid.z == 0 || r.block.x == 0 || r.block.y == 0 ||
      r.block.z == 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (r.grid.x > 2147483647U || r.grid.y > 65535 || r.grid.z > 65535)
    return CUDA_ERROR_INVALID_VALUE;
  if (r.block.x > 1024 || r.block.y > 1024 || r.block.z > 64) return CUDA_ERROR_INVALID_VALUE;
  if (std::uint64_t{r.block.x} * r.block.y * r.block.z > kThreadsPerBlock)
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

CUresult params_pack(const LaunchRequest& r, const ptx::KernelInfo& info,
                     std::vector<std::byte>& buffer) {
  buffer.assign(info.param_bytes, std::byte{0});
  if (r.params != nullptr && r.extra != nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (r.params != nullptr) {
    for (std::size_t i = 0; i < info.params.size(); ++i) {
      if (r.params[i] == nullptr) return CUDA_ERROR_INVALID_VALUE;
      std::memcpy(buffer.data() + info.params[i].offset, r.params[i], info.params[i].size);
    }
    return CUDA_SUCCESS;
  }
  if (r.extra == nullptr) return info.params.empty() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  const void* data = nullptr;
  std::size_t size = 0;
  for (void** at = r.extra; *at != CU_LAUNCH_PARAM_END; at += 2) {
    if (*at == CU_LAUNCH_PARAM_BUFFER_POINTER)
      data = at[1];
    else if (*at == CU_LAUNCH_PARAM_BUFFER_SIZE)
      size = *static_cast<std::size_t*>(at[1]);
    else
      return CUDA_ERROR_INVALID_VALUE;
  }
  if (data == nullptr || size < buffer.size()) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(buffer.data(), data, buffer.size());
  return CUDA_SUCCESS;
}

bool launch_blocking() {
  static const bool blocking = [] {
    const char* text = std::getenv("CUDA_LAUNCH_BLOCKING");
    return text != nullptr && std::strcmp(text, "0") != 0 && *text != '\0';
  }();
  return blocking;
}

CUresult launch(const LaunchRequest& request, CUstream stream_handle, const char* name) {
  ContextRef context;
  CUresult result = enter(context, name);
  StreamRef stream;
  if (result == CUDA_SUCCESS) result = stream_find(stream_handle, context, stream);
  if (result != CUDA_SUCCESS) return result;
  if (request.function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  KernelCommand command;
  result = launch_prepare(request, stream->context(), command);
  if (result != CUDA_SUCCESS) return result;
  OpRef op;
  result = command_submit(stream, std::move(command), &op);
  if (result != CUDA_SUCCESS || op == nullptr || !launch_blocking()) return result;
  result = Stream::wait(op);
  context->print_flush();
  return result;
}

}  // namespace

CUresult launch_prepare(const LaunchRequest& r, const ContextRef& context, KernelCommand& command) {
  FunctionRef function;
  CUresult result = function_find(r.function, context, function);
  if (result == CUDA_SUCCESS) result = shape_check(r);
  if (result != CUDA_SUCCESS) return result;
  const ptx::KernelInfo& info = function->info();
  const std::uint32_t threads = r.block.x * r.block.y * r.block.z;
  if (&function->module->owner() != context.get()) return CUDA_ERROR_INVALID_HANDLE;
  if (threads > info.threads_max) return CUDA_ERROR_INVALID_VALUE;
  // A block that asks more registers than an SM has cannot be resident.
  if (std::uint64_t{threads} * info.registers > kRegistersPerSm)
    return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  if (r.shared_bytes > static_cast<std::uint32_t>(function->dynamic_shared_max) ||
      std::uint64_t{r.shared_bytes} + info.shared_bytes >
          std::max(kSharedPerBlock,
                   static_cast<std::uint32_t>(function->dynamic_shared_max) + info.shared_bytes))
    return CUDA_ERROR_INVALID_VALUE;
  if (r.cooperative) {
    const std::uint64_t blocks = std::uint64_t{r.grid.x} * r.grid.y * r.grid.z;
    const auto resident =
        static_cast<std::uint64_t>(occupancy_blocks(*function, threads, r.shared_bytes)) *
        context->gpu.model.settings().sm_count;
    if (blocks > resident) return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
  }
  command.module = function->module->shared_from_this();
  command.function = std::move(function);
  command.grid = r.grid;
  command.block = r.block;
  command.shared_bytes = r.shared_bytes;
  command.cooperative = r.cooperative;
  return params_pack(r, info, command.params);
}

}  // namespace softgpu::driver

using namespace softgpu::driver;

CUresult cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,
                        unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,
                        CUstream stream, void** params, void** extra) {
  return launch({f, {gx, gy, gz}, {bx, by, bz}, shared, params, extra, false}, stream, __func__);
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,
                                   unsigned int bx, unsigned int by, unsigned int bz,
                                   unsigned int shared, CUstream stream, void** params) {
  return launch({f, {gx, gy, gz}, {bx, by, bz}, shared, params, nullptr, true}, stream, __func__);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void** params, void** extra) {
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  LaunchRequest request{f,
                        {config->gridDimX, config->gridDimY, config->gridDimZ},
                        {config->blockDimX, config->blockDimY, config->blockDimZ},
                        config->sharedMemBytes,
                        params,
                        extra,
                        false};
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const CUlaunchAttribute& attribute = config->attrs[i];
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
      request.cooperative = attribute.value.cooperative != 0;
    const auto& cluster = attribute.value.clusterDim;
    // Clusters are of compute capability 9; a cluster of one block is none.
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION &&
        cluster.x * cluster.y * cluster.z > 1)
      return CUDA_ERROR_NOT_SUPPORTED;
  }
  return launch(request, config->hStream, __func__);
}
