// A recorder of driver calls: preloaded into a program, it writes one line for each call that the
// program's runtime makes through the pointers it was given, and changes nothing else. It knows
// neither driver nor runtime, so that NVIDIA's and ours can be compared on the same program.
#pragma once

namespace softgpu::trace {

/// A driver function by its exported name, and how the look-up functions name it.
struct Entry {
  const char* symbol;
  const char* base;
  int since;        // the first version that means this symbol
  bool per_thread;  // the form for per-thread default streams
  void** real;      // where its address goes
  void* wrapper;
};
extern const Entry kEntries[];
extern const unsigned kEntryCount;

/// One line: the name, a blank, the result as a number.
void call_write(const char* symbol, int result);

/// cuGetProcAddress and cuGetProcAddress_v2, which hand out wrappers.
void** lookup_real(const char* symbol);
void* lookup_wrapper(const char* symbol);

}  // namespace softgpu::trace
