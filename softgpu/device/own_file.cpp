// See own_file.h.
#include "softgpu/device/own_file.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "softgpu/device/descriptor.h"

namespace softgpu::device {

FileIdentity FileIdentity::of(int file) {
  struct stat status {};
  if (file < 0 || fstat(file, &status) != 0) return {};
  return {status.st_dev, status.st_ino};
}

bool FileIdentity::is(int file) const {
  const FileIdentity now = of(file);
  return inode != 0 && now.inode == inode && now.device == device;
}

OwnFile::OwnFile(int file) : file_(above_standard(file)), identity_(FileIdentity::of(file_)) {}

OwnFile OwnFile::in_memory(const char* name, std::uint64_t bytes) {
  OwnFile file(memfd_create(name, MFD_CLOEXEC));
  if (file.number() >= 0 && file_size_set(file.file_, bytes)) return file;
  return OwnFile();
}

OwnFile::~OwnFile() {
  const int error = errno;
  if (number() >= 0) close(file_);
  errno = error;
}

OwnFile::OwnFile(OwnFile&& other) noexcept
    : file_(std::exchange(other.file_, -1)), identity_(other.identity_) {}

OwnFile& OwnFile::operator=(OwnFile&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(identity_, other.identity_);
  return *this;
}

int OwnFile::number() const {
  if (identity_.is(file_)) return file_;
  errno = EBADF;
  return -1;
}

void* OwnFile::map(void* at, std::size_t bytes, int protection, int flags,
                   std::uint64_t offset) const {
  if (number() < 0) return MAP_FAILED;
  void* const p = mmap(at, bytes, protection, flags, file_, static_cast<off_t>(offset));
  if (p == MAP_FAILED || number() >= 0) return p;
  if ((flags & MAP_FIXED) == 0)
    munmap(p, bytes);
  else
    mmap(p, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  errno = EBADF;
  return MAP_FAILED;
}

void mapped_pages_drop(void* pages, std::size_t bytes) {
  if (madvise(pages, bytes, MADV_REMOVE) == 0) return;
  // Pages that the program locked, or that may not be written, are not given back as they are.
  munlock(pages, bytes);
  mprotect(pages, bytes, PROT_READ | PROT_WRITE);
  madvise(pages, bytes, MADV_REMOVE);
}

}  // namespace softgpu::device
