// What jobs report of themselves.
#include "engine_fixture.h"

namespace sluice::daemon {
namespace {

using EngineReport = EngineTest;

protocol::JobReport report(const protocol::Admitted& job, std::uint32_t rank, std::uint32_t count,
                           std::uint64_t samples) {
  protocol::JobReport message;
  message_init(message, protocol::MessageType::kJobReport, 1);
  message.tenant = job.tenant;
  message.key = job.key;
  message.rank = rank;
  message.rank_count = count;
  message.samples = samples;
  return message;
}

TEST_F(EngineReport, ASmallerRunLeavesNoFiguresOfTheLargerOneBefore) {
  Engine engine(loop, log, outbox, slow, setup);
  const protocol::Admitted job = admitted(engine, 1);
  const Peer peer = peer_of(0);
  const auto samples = [&] {
    engine.snapshot_send({5, peer, 1});
    const std::string image = outbox.file;
    protocol::SnapshotHeader header{};
    protocol::SnapshotTenant row{};
    EXPECT_GE(image.size(), sizeof header);
    std::memcpy(&header, image.data(), sizeof header);
    const std::size_t at = sizeof header + header.gpu_count * sizeof(protocol::SnapshotGpu);
    EXPECT_GE(image.size(), at + sizeof row);
    std::memcpy(&row, image.data() + at, sizeof row);
    return row.samples;
  };
  for (std::uint32_t rank = 0; rank < 4; ++rank)
    engine.job_report({1, peer, 1}, report(job, rank, 4, 100));
  EXPECT_EQ(samples(), 400u);
  for (std::uint32_t rank = 0; rank < 2; ++rank)
    engine.job_report({1, peer, 1}, report(job, rank, 2, 10));
  EXPECT_EQ(samples(), 20u);
}

TEST_F(EngineReport, AReleaseThatIsRepeatedIsAnsweredAndChangesNothing) {
  log_keep();
  Engine engine(loop, log, outbox, slow, setup);
  const protocol::Admitted job = admitted(engine, 1);
  protocol::Release message;
  message_init(message, protocol::MessageType::kRelease, 1);
  message.tenant = job.tenant;
  message.key = job.key;
  for (ConnectionId connection = 5; connection < 8; ++connection) {
    engine.job_release({connection, peer_of(0), 1}, message);
    EXPECT_EQ(outbox.last[connection], protocol::MessageType::kDone);
  }
  EXPECT_EQ(logged("released"), 1);
}

}  // namespace
}  // namespace sluice::daemon
