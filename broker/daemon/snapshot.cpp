// Laying out and sealing.
#include "broker/daemon/snapshot.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cstring>

namespace sluice::daemon {
namespace {

template <class T>
void records_append(std::string* image, const std::vector<T>& records) {
  if (!records.empty())
    image->append(reinterpret_cast<const char*>(records.data()), records.size() * sizeof(T));
}

bool write_all(int fd, const std::string& image) {
  std::size_t done = 0;
  while (done < image.size()) {
    const ssize_t wrote = write(fd, image.data() + done, image.size() - done);
    if (wrote <= 0) return false;
    done += static_cast<std::size_t>(wrote);
  }
  return true;
}

}  // namespace

devices::Fd snapshot_seal(const SnapshotParts& parts, std::uint64_t* bytes) {
  protocol::SnapshotHeader header = parts.header;
  header.magic = protocol::kSnapshotMagic;
  header.version = protocol::kVersion;
  header.gpu_count = static_cast<std::uint32_t>(parts.gpus.size());
  header.tenant_count = static_cast<std::uint32_t>(parts.tenants.size());
  header.tenant_gpu_count = static_cast<std::uint32_t>(parts.tenant_gpus.size());
  header.process_count = static_cast<std::uint32_t>(parts.processes.size());
  header.ended_count = static_cast<std::uint32_t>(parts.ended.size());
  std::string image(reinterpret_cast<const char*>(&header), sizeof header);
  records_append(&image, parts.gpus);
  records_append(&image, parts.tenants);
  records_append(&image, parts.tenant_gpus);
  records_append(&image, parts.processes);
  records_append(&image, parts.ended);
  *bytes = image.size();
  return bytes_seal(image);
}

devices::Fd bytes_seal(const std::string& bytes) {
  constexpr int kSeals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  devices::Fd fd(memfd_create("sluice-snapshot", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || !write_all(fd.get(), bytes) || fcntl(fd.get(), F_ADD_SEALS, kSeals) < 0)
    return devices::Fd();
  return fd;
}

void text_store(char* field, std::size_t size, const std::string& text) {
  const std::size_t length = text.size() < size ? text.size() : size - 1;
  std::memset(field, 0, size);
  std::memcpy(field, text.data(), length);
}

}  // namespace sluice::daemon
