// RAII over the driver for one GPU of one process: context, stream, memory, events, and the kernels
// of the fat binary. Every object belongs to the Device's primary context and must go before it;
// one thread uses them at a time.
#pragma once

#include <cuda.h>

#include <array>
#include <cstddef>
#include <span>
#include <string>

#include "kernels/kernels.h"
#include "trainer/base/clock.h"
#include "trainer/device/driver.h"

namespace sluice::train {

/// Number of GPUs that this process sees.
int device_count();

/// The primary context of GPU `ordinal`, current in the constructing thread, and its kernels.
class Device {
 public:
  explicit Device(int ordinal);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const std::string& name() const { return name_; }
  /// For threads other than the constructing one.
  void enter() const;
  int multiprocessors() const { return multiprocessors_; }
  int attribute(CUdevice_attribute which) const;
  /// Software GPUs have a modelled clock, to which link time can be charged.
  bool is_software() const { return driver().stream_delay != nullptr; }
  /// Looked up when it is first asked for: a program uses few of the kernels.
  CUfunction function(kernels::Kernel kernel) const;

 private:
  void kernels_load();

  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  CUmodule module_ = nullptr;
  std::string name_;
  int multiprocessors_ = 0;
  mutable std::array<CUfunction, kernels::kKernelCount> functions_{};
};

class Event;

/// Work in order. Everything the trainer does on a GPU goes through one of these.
class Stream {
 public:
  explicit Stream(const Device& device);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void launch(kernels::Launch launch);
  void upload(CUdeviceptr to, const void* from, std::size_t bytes);
  void download(void* to, CUdeviceptr from, std::size_t bytes);
  /// Within the device.
  void copy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes);
  void zero(CUdeviceptr at, std::size_t words);
  /// What is enqueued from here on begins after `event` was passed in its stream.
  void wait(const Event& event);
  /// Occupies the link for `ns` of modelled time; nothing on hardware, where a link takes its own
  /// time.
  void link_delay(Nanos ns);
  /// After a synchronisation: what the host has waited for its peers since then was the link's
  /// time, which is charged where it is modelled. Nothing on hardware.
  void peers_awaited();
  void synchronize();
  CUstream handle() const { return stream_; }
  const Device& device() const { return device_; }

 private:
  const Device& device_;
  CUstream stream_ = nullptr;
};

/// `count` elements of T in device memory.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t count) : count_(count) {
    driver_check(driver().cuMemAlloc(&pointer_, count * sizeof(T)), "allocating device memory");
  }
  ~DeviceArray() { driver().cuMemFree(pointer_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  CUdeviceptr at(std::size_t index = 0) const { return pointer_ + index * sizeof(T); }
  std::size_t size() const { return count_; }
  std::size_t bytes() const { return count_ * sizeof(T); }

 private:
  CUdeviceptr pointer_ = 0;
  std::size_t count_;
};

/// `count` elements of T in page-locked host memory, so that copies need no staging.
template <class T>
class PinnedArray {
 public:
  explicit PinnedArray(std::size_t count) : count_(count) {
    void* memory = nullptr;
    driver_check(driver().cuMemAllocHost(&memory, count * sizeof(T)), "allocating pinned memory");
    data_ = static_cast<T*>(memory);
  }
  ~PinnedArray() { driver().cuMemFreeHost(data_); }
  PinnedArray(const PinnedArray&) = delete;
  PinnedArray& operator=(const PinnedArray&) = delete;

  T* data() { return data_; }
  T& operator[](std::size_t index) { return data_[index]; }
  std::size_t size() const { return count_; }
  std::span<T> span() { return {data_, count_}; }

 private:
  T* data_ = nullptr;
  std::size_t count_;
};

/// A point in a stream, with its device time.
class Event {
 public:
  Event();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(const Stream& stream);
  /// Waits until the stream has come here.
  void synchronize() const;
  /// Device time from `earlier` to this; both must have passed.
  Nanos since(const Event& earlier) const;
  CUevent handle() const { return event_; }

 private:
  CUevent event_ = nullptr;
};

/// ../lib/sluice_kernels.fatbin, seen from the running program.
std::string fatbin_path();

}  // namespace sluice::train
