// Physical memory of the virtual memory management; see virtual.h. The file of a piece says by its
// name on which device it is, so that a descriptor is all that an importer needs.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <utility>

#include "softgpu/device/directory.h"
#include "softgpu/device/given_files.h"
#include "softgpu/driver/ipc.h"
#include "softgpu/driver/virtual.h"

namespace softgpu::driver {
namespace {

std::string piece_name(Gpu& gpu) {
  return "softgpu-vmm " + device::uuid_text(gpu.model.settings().uuid);
}

/// The device whose piece this file is; nullptr: it is none, or of no device that is visible here.
Gpu* piece_gpu(int file) {
  char path[64], target[256];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  const ssize_t length = readlink(path, target, sizeof target);
  if (length <= 0) return nullptr;
  const std::string name(target, static_cast<std::size_t>(length));
  for (const auto& gpu : Process::get().gpus())
    if (name.starts_with("/memfd:" + piece_name(*gpu))) return gpu.get();
  return nullptr;
}

}  // namespace

CUresult Piece::create(Gpu& gpu, const CUmemAllocationProp& prop, std::size_t bytes,
                       PieceRef& piece) {
  if (!gpu.client_need()) return CUDA_ERROR_OUT_OF_MEMORY;
  device::OwnFile file = device::OwnFile::in_memory(piece_name(gpu).c_str(), bytes);
  if (!file.opened()) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::uint64_t name = prop.requestedHandleTypes != 0 ? file.inode() : 0;
  const bool made = name != 0 ? gpu.model.shared_create(gpu.client, name, bytes)
                              : gpu.model.memory_take(gpu.client, bytes);
  if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
  piece = std::make_shared<Piece>(prop, gpu, bytes, std::move(file), name);
  return CUDA_SUCCESS;
}

CUresult Piece::import(int file, PieceRef& piece) {
  Gpu* gpu = piece_gpu(file);
  struct stat status {};
  if (gpu == nullptr || fstat(file, &status) != 0 || status.st_size <= 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (!gpu->client_need()) return CUDA_ERROR_OUT_OF_MEMORY;
  const auto bytes = static_cast<std::size_t>(status.st_size);
  device::OwnFile own(device::file_reopen(file));
  if (own.inode() != status.st_ino) return CUDA_ERROR_OPERATING_SYSTEM;
  // Charged once, whoever holds it.
  if (!gpu->model.shared_join(gpu->client, status.st_ino, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, gpu->ordinal};
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  piece = std::make_shared<Piece>(prop, *gpu, bytes, std::move(own), status.st_ino);
  return CUDA_SUCCESS;
}

int Piece::give() {
  const int file = file_.number();
  if (file < 0) return -1;
  gpu.model.shared_give(inode_);
  return device::file_give(file);
}

Piece::~Piece() {
  if (inode_ != 0)
    gpu.model.shared_release(gpu.client, inode_);
  else
    gpu.model.memory_give(gpu.client, bytes);
}

}  // namespace softgpu::driver
