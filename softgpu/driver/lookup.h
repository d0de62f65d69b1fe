// The table behind cuGetProcAddress, generated from the toolkit's headers (generate.py).
#pragma once

namespace softgpu::driver {

struct Entry {
  const char* base;  // name as asked for
  int since;         // CUDA version of this ABI
  bool per_thread;   // the _ptsz/_ptds form
  const char* symbol;
  void* function;
};

/// Sorted by base, then per_thread, then since.
extern const Entry kEntries[];
extern const unsigned kEntryCount;

}  // namespace softgpu::driver
