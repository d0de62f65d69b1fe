// Steps of random programs: streams, events, captures in every mode, and launches by every entry
// point.
#include "tests/interpose/random_world.h"

namespace sluice::test {

void capture_end_of(Step& step, CUstream stream) {
  stream = step.null_named(stream);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  cuStreamGetCaptureInfo(stream, &status, &id, nullptr, nullptr, nullptr, nullptr);
  CUgraph graph = untouched<CUgraph>();
  const CUresult result = CALL(step, cuStreamEndCapture, stream, &graph);
  if (graph == nullptr) step.say("no graph");
  if (result != CUDA_SUCCESS) return;
  const GraphDeeds deeds = step.world.captures[id];
  step.world.captures.erase(id);
  GraphSlot* slot = step.world.graphs.free_one(step.random);
  size_t nodes = 0;
  cuGraphGetNodes(graph, nullptr, &nodes);
  step.say(std::to_string(nodes) + " nodes");
  if (slot == nullptr) {
    CALL(step, cuGraphDestroy, graph);
    return;
  }
  *slot = {{true, -1}, graph, deeds};
  step.say("g" + std::to_string(step.world.graphs.number(*slot)));
}

namespace {

void stream_create(Step& step) {
  StreamSlot* slot = step.world.streams.free_one(step.random);
  if (slot == nullptr) return;
  CUstream stream = untouched<CUstream>();
  const unsigned flags = step.random.chance(50) ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT;
  const CUresult result = step.random.chance(70)
                              ? CALL(step, cuStreamCreate, &stream, flags)
                              : CALL(step, cuStreamCreateWithPriority, &stream, flags, -1);
  step.output("stream", result, stream, untouched<CUstream>());
  if (result != CUDA_SUCCESS) return;
  *slot = {{true, step.here()}, stream};
  step.say("s" + std::to_string(step.world.streams.number(*slot)) +
           (flags == CU_STREAM_DEFAULT ? " blocking" : ""));
}

void stream_destroy(Step& step) {
  StreamSlot* slot = step.world.streams.live_one(step.random);
  if (slot == nullptr) return;
  step.say("s" + std::to_string(step.world.streams.number(*slot)));
  if (CALL(step, cuStreamDestroy, slot->handle) == CUDA_SUCCESS) slot->live = false;
}

void stream_wait(Step& step) { CALL(step, cuStreamSynchronize, step.stream()); }

void stream_ask(Step& step) {
  const CUstream stream = step.stream();
  CUcontext context = nullptr;
  if (CALL(step, cuStreamGetCtx, stream, &context) == CUDA_SUCCESS) step.say(step.name_of(context));
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (CALL(step, cuStreamIsCapturing, stream, &status) == CUDA_SUCCESS)
    step.say(std::to_string(status));
  unsigned flags = 77;
  if (CALL(step, cuStreamGetFlags, stream, &flags) == CUDA_SUCCESS) step.say(std::to_string(flags));
  // Whether it is done is a matter of time; whether the question is allowed is not.
  CUresult done = cuStreamQuery(stream);
  if (done == CUDA_ERROR_NOT_READY) done = CUDA_SUCCESS;
  step.note("cuStreamQuery", done);
}

void event_create(Step& step) {
  EventSlot* slot = step.world.events.free_one(step.random);
  if (slot == nullptr) return;
  CUevent event = untouched<CUevent>();
  const CUresult result =
      CALL(step, cuEventCreate, &event,
           step.random.of({unsigned{CU_EVENT_DEFAULT}, unsigned{CU_EVENT_DISABLE_TIMING}, 0x900u}));
  step.output("event", result, event, untouched<CUevent>());
  if (result == CUDA_SUCCESS) *slot = {{true, step.here()}, event};
}

void event_destroy(Step& step) {
  EventSlot* slot = step.world.events.live_one(step.random);
  if (slot != nullptr && CALL(step, cuEventDestroy, slot->handle) == CUDA_SUCCESS)
    slot->live = false;
}

/// Which may take the stream into a capture: none of a context that others have as well.
void wait_for_event(Step& step, const EventSlot& slot) {
  const CUstream stream = step.stream();
  if (step.world.shared() && step.context_of(stream) != slot.context) return;
  CALL(step, cuStreamWaitEvent, stream, slot.handle, 0);
}

void event_use(Step& step) {
  EventSlot* slot = step.world.events.live_one(step.random);
  if (slot == nullptr) return;
  step.say("e" + std::to_string(step.world.events.number(*slot)));
  switch (step.random.below(6)) {
    case 0:
    case 1:
      CALL(step, cuEventRecord, slot->handle, step.stream());
      break;
    case 2:
    case 3:
      wait_for_event(step, *slot);
      break;
    case 4: {
      CUresult done = cuEventQuery(slot->handle);
      if (done == CUDA_ERROR_NOT_READY) done = CUDA_SUCCESS;
      step.note("cuEventQuery", done);
      break;
    }
    case 5:
      CALL(step, cuEventSynchronize, slot->handle);
      break;
  }
}

void context_event(Step& step) {
  EventSlot* slot = step.world.events.live_one(step.random);
  if (slot == nullptr) return;
  CUcontext context = nullptr;
  cuCtxGetCurrent(&context);
  if (step.random.chance(50))
    CALL(step, cuCtxRecordEvent, context, slot->handle);
  else if (!step.world.shared())
    CALL(step, cuCtxWaitEvent, context, slot->handle);
}

void capture_begin(Step& step) {
  // A global one keeps other programs' threads from what is unsafe.
  const auto widest =
      step.world.shared() ? CU_STREAM_CAPTURE_MODE_THREAD_LOCAL : CU_STREAM_CAPTURE_MODE_GLOBAL;
  const auto mode =
      step.random.of({widest, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED,
                      CU_STREAM_CAPTURE_MODE_RELAXED});
  const CUstream stream = step.stream();
  if (step.world.shared() && !World::own(step.context_of(stream))) return;
  step.world.capturing = true;
  CALL(step, cuStreamBeginCapture, stream, mode);
}

// Mostly of one that captures.
void capture_end(Step& step) {
  for (const StreamSlot& slot : step.world.streams) {
    if (!slot.live || !step.random.chance(80)) continue;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (cuStreamIsCapturing(slot.handle, &status) != CUDA_SUCCESS ||
        status == CU_STREAM_CAPTURE_STATUS_NONE)
      continue;
    step.say("s" + std::to_string(step.world.streams.number(slot)));
    return capture_end_of(step, slot.handle);
  }
  if (step.random.chance(20)) capture_end_of(step, step.stream());
}

void capture_mode(Step& step) {
  CUstreamCaptureMode mode =
      step.random.of({CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                      CU_STREAM_CAPTURE_MODE_RELAXED});
  if (CALL(step, cuThreadExchangeStreamCaptureMode, &mode) == CUDA_SUCCESS)
    step.say("was " + std::to_string(mode));
}

void host_empty(void*) {}

void launch(Step& step) {
  const CUstream stream = step.stream();
  step.capture_of(stream);
  const auto function = reinterpret_cast<CUfunction>(step.world.empty);
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = 32;
  config.blockDimY = config.blockDimZ = 1;
  config.hStream = stream;
  switch (step.random.below(6)) {
    case 0:
    case 1:
      CALL(step, cuLaunchKernel, function, 2, 1, 1, 32, 1, 1, 0, stream, nullptr, nullptr);
      break;
    case 2:
      CALL(step, cuLaunchKernelEx, &config, function, nullptr, nullptr);
      break;
    case 3:
      CALL(step, cuLaunchCooperativeKernel, function, 1, 1, 1, 32, 1, 1, 0, stream, nullptr);
      break;
    case 4:
      CALL(step, cuLaunchHostFunc, stream, host_empty, nullptr);
      break;
    case 5:
      CALL(step, cuLaunchKernel, function, 0, 1, 1, 32, 1, 1, 0, stream, nullptr, nullptr);
      break;
  }
}

// A kernel that writes to memory of the program's.
void launch_fill(Step& step) {
  BlockSlot* block = step.world.blocks.live_one(step.random);
  if (block == nullptr || block->bytes < 4 || (block->address & 3) != 0) return;
  CUstream stream = nullptr;
  if (!step.stream_for(*block, &stream)) return;
  step.say("b" + std::to_string(step.world.blocks.number(*block)));
  CUdeviceptr address = block->address;
  void* parameters[] = {&address};
  CALL(step, cuLaunchKernel, reinterpret_cast<CUfunction>(step.world.fill), 1, 1, 1, 1, 1, 1, 0,
       stream, parameters, nullptr);
}

}  // namespace

void stream_steps(StepKinds& kinds) {
  kinds.insert(kinds.end(), {{"streams", "stream_create", 8, stream_create},
                             {"streams", "stream_destroy", 5, stream_destroy},
                             {"streams", "stream_wait", 4, stream_wait},
                             {"streams", "stream_ask", 3, stream_ask},
                             {"streams", "event_create", 4, event_create},
                             {"streams", "event_destroy", 2, event_destroy},
                             {"streams", "event_use", 10, event_use},
                             {"streams", "context_event", 1, context_event},
                             {"streams", "launch", 12, launch},
                             {"streams", "launch_fill", 6, launch_fill},
                             {"captures", "capture_begin", 8, capture_begin},
                             {"captures", "capture_end", 10, capture_end},
                             {"captures", "capture_mode", 2, capture_mode}});
}

}  // namespace sluice::test
