// Asking for, reading and checking a snapshot.
#include "broker/cli/snapshot_reader.h"

#include <unistd.h>

#include <cstring>

namespace sluice::cli {
namespace {

constexpr std::uint64_t kSnapshotBytesMax = 64ull << 20;

template <class T>
bool records_take(const std::string& bytes, std::size_t* at, std::uint32_t count,
                  std::vector<T>* out) {
  if (count > (bytes.size() - *at) / sizeof(T)) return false;
  out->resize(count);
  if (count != 0)
    std::memcpy(static_cast<void*>(out->data()), bytes.data() + *at, count * sizeof(T));
  *at += count * sizeof(T);
  return true;
}

}  // namespace

bool bytes_read(int fd, std::uint64_t size, std::string* out) {
  out->resize(size);
  std::size_t done = 0;
  while (done < size) {
    const ssize_t got = pread(fd, out->data() + done, size - done, static_cast<off_t>(done));
    if (got <= 0) return false;
    done += static_cast<std::size_t>(got);
  }
  return true;
}

std::optional<Snapshot> snapshot_read(const std::string& bytes) {
  Snapshot snapshot;
  if (bytes.size() < sizeof snapshot.header) return std::nullopt;
  std::memcpy(&snapshot.header, bytes.data(), sizeof snapshot.header);
  const protocol::SnapshotHeader& header = snapshot.header;
  std::size_t at = sizeof header;
  const bool whole =
      header.magic == protocol::kSnapshotMagic && header.version == protocol::kVersion &&
      records_take(bytes, &at, header.gpu_count, &snapshot.gpus) &&
      records_take(bytes, &at, header.tenant_count, &snapshot.tenants) &&
      records_take(bytes, &at, header.tenant_gpu_count, &snapshot.tenant_gpus) &&
      records_take(bytes, &at, header.process_count, &snapshot.processes) &&
      records_take(bytes, &at, header.ended_count, &snapshot.ended) && at == bytes.size();
  if (!whole) return std::nullopt;
  return snapshot;
}

std::optional<Snapshot> snapshot_fetch(Client& client, std::string* error) {
  protocol::SnapshotRequest request;
  protocol::message_init(request, protocol::MessageType::kSnapshotRequest, 1);
  protocol::Envelope envelope;
  const int rc = client.send(request) ? client.receive(&envelope, kAnswer_ms) : 0;
  if (rc != 1) {
    *error = no_answer_text(rc, kAnswer_ms);
    return std::nullopt;
  }
  if (envelope.is<protocol::Refused>(protocol::MessageType::kRefused)) {
    *error = envelope.as<protocol::Refused>().text;
    return std::nullopt;
  }
  const devices::Fd fd(envelope.fd_count == 1 ? envelope.fds[0] : -1);
  std::string bytes;
  if (envelope.is<protocol::SnapshotReply>(protocol::MessageType::kSnapshotReply) && fd &&
      envelope.as<protocol::SnapshotReply>().bytes <= kSnapshotBytesMax &&
      bytes_read(fd.get(), envelope.as<protocol::SnapshotReply>().bytes, &bytes)) {
    if (auto snapshot = snapshot_read(bytes)) return snapshot;
  }
  *error =
      "the broker's answer is not understood; sluice and sluiced must come from one installation";
  return std::nullopt;
}

}  // namespace sluice::cli
