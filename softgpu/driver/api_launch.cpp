// Entry points: kernel launches.
#include <cstdlib>
#include <cstring>

#include "softgpu/driver/capture.h"
#include "softgpu/driver/launch.h"
#include "softgpu/driver/launch_attribute.h"
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

/// An event that a launch may record: of its stream's context, and without timing.
CUresult launch_event(CUevent handle, const Stream& stream, EventRef& event) {
  if (handle == nullptr) return CUDA_SUCCESS;
  event = Registry<Event>::all().find(handle);
  if (event == nullptr || event->context != stream.owner().id) return CUDA_ERROR_INVALID_HANDLE;
  return event->timed() || event->shared != nullptr ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

/// `op` is the launch, or null when it has become a node of the stream's capture.
CUresult launch_record(Stream& stream, const EventRef& event, const OpRef& op) {
  if (event == nullptr) return CUDA_SUCCESS;
  if (op != nullptr) {
    event->record(op);
    return CUDA_SUCCESS;
  }
  bool captured = false;
  return capture_record(stream, event, false, captured);
}

}  // namespace

CUresult launch_submit(const LaunchRequest& request, CUstream stream_handle, const char* name) {
  ContextRef context;
  CUresult result = enter(context, name);
  StreamRef stream;
  if (result == CUDA_SUCCESS) result = stream_find(stream_handle, context, stream);
  if (result != CUDA_SUCCESS) return result;
  if (request.function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  EventRef complete, programmatic;
  result = launch_event(request.event_complete, *stream, complete);
  if (result == CUDA_SUCCESS)
    result = launch_event(request.event_programmatic, *stream, programmatic);
  KernelCommand command;
  if (result == CUDA_SUCCESS) result = launch_prepare(request, stream->context(), command);
  if (result != CUDA_SUCCESS) return result;
  OpRef op;
  result = command_submit(stream, std::move(command), &op);
  if (result == CUDA_SUCCESS) result = launch_record(*stream, complete, op);
  if (result == CUDA_SUCCESS) result = launch_record(*stream, programmatic, op);
  if (result != CUDA_SUCCESS || op == nullptr || !launch_blocking()) return result;
  result = Stream::wait(op);
  context->print_flush();
  return result;
}

CUresult launch_prepare(const LaunchRequest& r, const ContextRef& context, KernelCommand& command) {
  FunctionRef function;
  CUresult result = function_find(r.function, context, function);
  if (result == CUDA_SUCCESS) result = function->launch_need();
  if (result == CUDA_SUCCESS) result = shape_check(r);
  if (result != CUDA_SUCCESS) return result;
  const ptx::KernelInfo& info = function->info();
  const std::uint32_t threads = r.block.x * r.block.y * r.block.z;
  if (&function->module->owner() != context.get()) return CUDA_ERROR_INVALID_HANDLE;
  if (threads > info.threads_max) return CUDA_ERROR_INVALID_VALUE;
  // A block that asks more registers than an SM has cannot be resident.
  if (std::uint64_t{threads} * info.registers > kRegistersPerSm)
    return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  if (r.shared_bytes > static_cast<std::uint32_t>(function->dynamic_shared_max))
    return CUDA_ERROR_INVALID_VALUE;
  if (r.cooperative) {
    const std::uint64_t blocks = std::uint64_t{r.grid.x} * r.grid.y * r.grid.z;
    const auto resident =
        static_cast<std::uint64_t>(occupancy_blocks(*function, threads, r.shared_bytes)) *
        context->gpu.model.settings().sm_count;
    if (blocks > resident) return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
  }
  command.module = function->module->shared_from_this();
  if (r.function != function->handle()) command.kernel = reinterpret_cast<CUkernel>(r.function);
  command.function = std::move(function);
  command.grid = r.grid;
  command.block = r.block;
  command.shared_bytes = r.shared_bytes;
  command.cooperative = r.cooperative;
  command.priority = r.priority;
  return params_pack(r, info, command.params);
}

}  // namespace softgpu::driver

using namespace softgpu::driver;

namespace {

CUresult launch_attribute(const CUlaunchAttribute& attribute, LaunchRequest& request) {
  const CUlaunchAttributeValue& value = attribute.value;
  const CUresult result = attribute_check(attribute.id, value, AttributeUse::kLaunch);
  if (result != CUDA_SUCCESS) return result;
  switch (attribute.id) {
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
      request.cooperative = value.cooperative != 0;
      return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
      request.priority = priority_clamp(value.priority);
      return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
      // Clusters are of compute capability 9; a cluster of one block is none.
      return value.clusterDim.x * value.clusterDim.y * value.clusterDim.z > 1
                 ? CUDA_ERROR_NOT_SUPPORTED
                 : CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
      return CUDA_ERROR_INVALID_CLUSTER_SIZE;  // there is no cluster
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
      request.event_programmatic = value.programmaticEvent.event;
      return value.programmaticEvent.flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
      request.event_complete = value.launchCompletionEvent.event;
      return value.launchCompletionEvent.flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
      // No kernel can update a node here, and outside a capture there is none to update.
      return value.deviceUpdatableKernelNode.deviceUpdatable == 0 ? CUDA_SUCCESS
                                                                  : CUDA_ERROR_NOT_SUPPORTED;
    default:
      return CUDA_SUCCESS;  // a hint, or what is so anyway
  }
}

}  // namespace

CUresult cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,
                        unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,
                        CUstream stream, void** params, void** extra) {
  return launch_submit({f, {gx, gy, gz}, {bx, by, bz}, shared, params, extra}, stream, __func__);
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,
                                   unsigned int bx, unsigned int by, unsigned int bz,
                                   unsigned int shared, CUstream stream, void** params) {
  LaunchRequest request{f, {gx, gy, gz}, {bx, by, bz}, shared, params};
  request.cooperative = true;
  return launch_submit(request, stream, __func__);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void** params, void** extra) {
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  LaunchRequest request{f,
                        {config->gridDimX, config->gridDimY, config->gridDimZ},
                        {config->blockDimX, config->blockDimY, config->blockDimZ},
                        config->sharedMemBytes,
                        params,
                        extra};
  if (config->numAttrs != 0 && config->attrs == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const CUresult result = launch_attribute(config->attrs[i], request);
    if (result != CUDA_SUCCESS) return result;
  }
  return launch_submit(request, config->hStream, __func__);
}
