// What registered processes say on their own: words that no order waits for change nothing.
#include "engine_fixture.h"

namespace sluice::daemon {
namespace {

using EngineNotes = EngineTest;

protocol::Moved moved(std::uint32_t gpu, std::uint32_t word) {
  protocol::Moved message;
  message_init(message, protocol::MessageType::kMoved, 0);
  message.gpu = gpu;
  message.word = word;
  return message;
}

TEST_F(EngineNotes, AMoveThatNothingOrderedIsDropped) {
  log_keep();
  Engine engine(loop, log, outbox, slow, setup);
  registers(engine, 2, admitted(engine, 1), peer_of(0));
  ASSERT_EQ(outbox.last[2], protocol::MessageType::kRegistered) << outbox.text;
  const std::uint32_t words[] = {0, protocol::hold_word(1, protocol::kHoldSet | protocol::kHoldOut),
                                 protocol::hold_word(2, protocol::kHoldSet), UINT32_MAX};
  for (const std::uint32_t word : words)
    EXPECT_TRUE(engine.note(engine.process_on(2), envelope_of(moved(0, word))))
        << "an order may be taken back while its answer is on the way";
  EXPECT_EQ(logged("moved"), 0) << "nothing is read for it, and nothing is decided";
  EXPECT_FALSE(engine.note(engine.process_on(2), envelope_of(moved(1, 0)))) << "no such GPU";
}

}  // namespace
}  // namespace sluice::daemon
