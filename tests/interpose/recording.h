// What the plain functions of the fake drivers note of each call: which function it was, and a
// digest of every argument. A caller that digests what it passes can say whether an interposed call
// reached the function of its own ABI with its arguments as they were.
#pragma once

#include <string.h>
#include <unistd.h>

#include <atomic>

#include "interpose/cuda_api.h"

constexpr int kRecordedArgumentsMax = 16;  // no entry point has more
constexpr int kRecordedCallsMax = 4096;

struct RecordedCall {
  const char* symbol;  // written last
  int thread;          // gettid(2)
  int argument_count;
  bool relaxed;  // the thread was in the RELAXED capture mode
  unsigned long long arguments[kRecordedArgumentsMax];
};

struct RecordedCalls {
  std::atomic<int> count;  // of all calls; those beyond kRecordedCallsMax are not kept
  RecordedCall calls[kRecordedCallsMax];
};
extern "C" RecordedCalls fake_calls;

/// What the recording driver answers, where it does not just say yes.
struct RecordingAnswers {
  std::atomic<int> events_pending;             // 1: events do not pass
  std::atomic<int> capturing;                  // 1: a test has begun a capture; 2: of all streams
  std::atomic<unsigned long long> pools_keep;  // what pools have reserved and not in use
  std::atomic<unsigned long long> load_takes;  // of the device's memory, between two questions for
  std::atomic<unsigned long long> taken;       // what is left; and what that has come to
};
extern "C" RecordingAnswers recording_answers;
constexpr unsigned long long kRecordingBytes = 1ull << 34;

/// The calling thread's capture mode.
inline thread_local CUstreamCaptureMode recording_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

/// FNV-1a over the bytes of one argument, whatever its type.
template <class T>
unsigned long long argument_digest(const T& value) {
  unsigned char bytes[sizeof(T)];
  memcpy(bytes, &value, sizeof bytes);
  unsigned long long digest = 0xcbf29ce484222325ull;
  for (const unsigned char byte : bytes) digest = (digest ^ byte) * 0x100000001b3ull;
  return digest;
}

template <class... A>
CUresult recorded(const char* symbol, const A&... arguments) {
  static_assert(sizeof...(A) <= kRecordedArgumentsMax);
  const int index = fake_calls.count.fetch_add(1);
  if (index < kRecordedCallsMax) {
    RecordedCall& one = fake_calls.calls[index];
    one = {nullptr,
           gettid(),
           sizeof...(A),
           recording_mode == CU_STREAM_CAPTURE_MODE_RELAXED,
           {argument_digest(arguments)...}};
    __atomic_store_n(&one.symbol, symbol, __ATOMIC_RELEASE);
  }
  return CUDA_SUCCESS;
}
